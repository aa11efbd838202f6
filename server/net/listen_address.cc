#include "server/net/listen_address.h"

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
#include "server/net/host_address.h"

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

bool HasPort(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) return false;
  const std::string port = address.substr(colon + 1);
  int number = 0;
  return port.find_first_not_of("0123456789") == std::string::npos &&
         absl::SimpleAtoi(port, &number) && number <= 65535;
}

}  // namespace

absl::Status CheckListenAddress(const std::string& address) {
  if (absl::StartsWith(address, kUnix)) {
    if (!HasListener(address.substr(sizeof(kUnix) - 1))) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address, ": another process does"));
  }
  if (HasPort(address)) return absl::OkStatus();
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

}  // namespace quantgate
