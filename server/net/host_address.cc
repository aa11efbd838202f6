#include "server/net/host_address.h"

#include <netdb.h>

#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace quantgate {
namespace {

bool IsLoopback(const in_addr& address) { return ntohl(address.s_addr) >> 24 == 127; }

bool IsLoopback(const in6_addr& address) {
  if (!IN6_IS_ADDR_V4MAPPED(&address)) return IN6_IS_ADDR_LOOPBACK(&address);
  in_addr v4;
  std::memcpy(&v4, &address.s6_addr[12], sizeof(v4));
  return IsLoopback(v4);
}

/// The halves around the last colon; the brackets of an IPv6 address go.
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
