#include "server/net/listen_address.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace quantgate {
namespace {

constexpr char kUnix[] = "unix:";

bool HasListener(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) return false;
  std::memcpy(address.sun_path, path.data(), path.size());
  const int probe = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (probe < 0) return false;
  const int connected =
      ::connect(probe, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  ::close(probe);
  return connected == 0;
}

bool IsLoopback(const in_addr& address) { return ntohl(address.s_addr) >> 24 == 127; }

bool IsLoopback(const in6_addr& address) {
  if (!IN6_IS_ADDR_V4MAPPED(&address)) return IN6_IS_ADDR_LOOPBACK(&address);
  in_addr v4;
  std::memcpy(&v4, &address.s6_addr[12], sizeof(v4));
  return IsLoopback(v4);
}

/// Splits the text at the last colon and removes the brackets of an IPv6 address. False for text
/// that is not of this form.
bool SplitHostPort(const std::string& text, std::string& host, std::string& port) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return false;
  host = text.substr(0, colon);
  port = text.substr(colon + 1);
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  int number = 0;
  return !host.empty() && !port.empty() &&
         port.find_first_not_of("0123456789") == std::string::npos &&
         absl::SimpleAtoi(port, &number) && number <= 65535;
}

}  // namespace

absl::Status CheckListenAddress(const std::string& address) {
  if (absl::StartsWith(address, kUnix)) {
    if (!HasListener(address.substr(sizeof(kUnix) - 1))) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address, ": another process does"));
  }
  std::string host, port;
  if (SplitHostPort(address, host, port)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", address, "\" is no address; write host:port, the port from 0 to 65535, or unix:/path"));
}

absl::Status CheckReach(const std::string& address, bool insecure) {
  if (insecure || absl::StartsWith(address, kUnix)) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(const std::vector<HostAddress> hosts, ResolveHostPort(address));
  if (std::all_of(hosts.begin(), hosts.end(),
                  [](const HostAddress& host) { return host.is_loopback(); })) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat(address,
                   " can be reached from other machines, and there is neither encryption nor "
                   "authentication; listen on 127.0.0.1 (gRPC also on unix:/path), or pass "
                   "--insecure"));
}

int HostAddress::port() const {
  return ntohs(storage.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(storage).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(storage).sin_port);
}

bool HostAddress::is_loopback() const {
  return storage.ss_family == AF_INET6
             ? IsLoopback(reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr)
             : IsLoopback(reinterpret_cast<const sockaddr_in&>(storage).sin_addr);
}

absl::StatusOr<std::vector<HostAddress>> ResolveHostPort(const std::string& text) {
  std::string host, port;
  if (!SplitHostPort(text, host, port)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is no address; write host:port, the port from 0 to 65535"));
  }
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int failure = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (failure != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", text, ": host \"", host, "\": ", gai_strerror(failure)));
  }
  std::vector<HostAddress> addresses;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    HostAddress& address = addresses.emplace_back();
    std::memcpy(&address.storage, one->ai_addr, one->ai_addrlen);
    address.size = one->ai_addrlen;
  }
  ::freeaddrinfo(found);
  return addresses;
}

}  // namespace quantgate
