// Addresses "host:port" of listeners as the system's resolver sees them.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace quantgate {

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
