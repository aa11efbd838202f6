// Addresses that quantgated listens on: their syntax, which gRPC checks too loosely, what the
// system's resolver makes of them, and whether other machines can reach them.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quantgate {

/// INVALID_ARGUMENT for what is neither "host:port", port 0 to 65535, nor "unix:/path": gRPC takes
/// port 99999 for 34463. UNAVAILABLE for a Unix socket that somebody listens on: gRPC would remove
/// it and leave that server without clients.
absl::Status CheckListenAddress(const std::string& address);

/// FAILED_PRECONDITION for an address that other machines may reach, unless `insecure`: one that is
/// neither a Unix socket nor, with all that its host stands for, loopback. UNAVAILABLE for a host
/// that has no address.
absl::Status CheckReach(const std::string& address, bool insecure);

/// An IPv4 or IPv6 address with a port.
struct HostAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int port() const;
  /// 127.0.0.0/8, ::1, and the former written as IPv6 addresses.
  bool is_loopback() const;
};

/// Every address that "host:port" or "[host]:port" stands for. INVALID_ARGUMENT for what is not of
/// that form, the port from 0 to 65535; UNAVAILABLE for a host that has no address.
absl::StatusOr<std::vector<HostAddress>> ResolveHostPort(const std::string& text);

}  // namespace quantgate
