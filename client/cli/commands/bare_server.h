// A gRPC server that reads whatever comes and answers nothing: the ceiling of what any service over
// gRPC can do.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "client/channel_connection.h"

namespace quantgate {

class BareServer {
 public:
  /// In process, or on a loopback port of the system's choice. UNAVAILABLE when none can be had.
  static absl::StatusOr<std::unique_ptr<BareServer>> Start(bool in_process);
  virtual ~BareServer() = default;
  /// Every method of every service answers an empty message, after all of the request's.
  virtual std::unique_ptr<ChannelConnection> Connect() = 0;
};

}  // namespace quantgate
