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

/// INVALID_ARGUMENT for text that is neither "host:port" with a port from 0 to 65535 nor
/// "unix:/path": gRPC would take port 99999 for 34463. UNAVAILABLE for a Unix socket that another
/// process listens on: gRPC would remove it and leave that process without clients.
absl::Status CheckListenAddress(const std::string& address);

/// FAILED_PRECONDITION, unless `insecure`, for an address that other machines may reach: one that
/// is neither a Unix socket nor a host whose addresses are all loopback. UNAVAILABLE for a host
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
