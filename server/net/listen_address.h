// Addresses that quantgated listens on, checked where gRPC itself is generous.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace quantgate {

/// INVALID_ARGUMENT for what is neither "host:port", port 0 to 65535, nor "unix:/path": gRPC takes
/// port 99999 for 34463. UNAVAILABLE for a Unix socket that somebody listens on: gRPC would remove
/// it and leave that server without clients.
absl::Status CheckListenAddress(const std::string& address);

/// FAILED_PRECONDITION for an address that other machines may reach, unless `insecure`: one that is
/// neither a Unix socket nor, with all that its host stands for, loopback. UNAVAILABLE for a host
/// that has no address.
absl::Status CheckReach(const std::string& address, bool insecure);

}  // namespace quantgate
