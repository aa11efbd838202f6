// The RPCs of the service, as the protos declare them, for metrics.
#pragma once

#include <span>
#include <string_view>

#include "server/metrics/metrics.h"

namespace quantgate {

/// All methods of package quantgate.v1's services.
std::span<const RpcMethod> AllRpcMethods();

/// One RPC.
class Rpc {
 public:
  /// `name`: "Engine.Quantize". A name that no proto has ends the process.
  explicit Rpc(std::string_view name);
  /// Its index in AllRpcMethods.
  int index() const { return index_; }

 private:
  int index_;
};

}  // namespace quantgate
