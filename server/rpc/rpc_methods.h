// Every RPC of the service, for metrics and admission: as the protos declare them.
#pragma once

#include <span>
#include <string_view>

#include "server/metrics/metrics.h"

namespace quantgate {

/// All methods of package quantgate.v1's services.
std::span<const RpcMethod> AllRpcMethods();

/// One of them.
class Rpc {
 public:
  /// By "Engine.Quantize". A name that no proto has ends the process.
  explicit Rpc(std::string_view name);
  /// In AllRpcMethods.
  int index() const { return index_; }

 private:
  int index_;
};

}  // namespace quantgate
