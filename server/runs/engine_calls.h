// The unary operations of the engine: each checks its request and gives the work for the device.
// Requests and responses are gRPC's and outlive the work.
#pragma once

#include "absl/status/statusor.h"
#include "quantgate/v1/engine_service.pb.h"
#include "server/runs/call_context.h"

namespace quantgate {

// The list; a server answers each, and so does a command in its own process.
#define QG_ENGINE_CALLS(CALL) \
  CALL(Quantize)              \
  CALL(Dequantize)            \
  CALL(Gemm)                  \
  CALL(Compare)               \
  CALL(Explain)

/// PrepareQuantize(context, request, response), and so on.
#define QG_DECLARE_CALL(Name)                                                                      \
  absl::StatusOr<DeviceWork> Prepare##Name(CallContext& context, const v1::Name##Request& request, \
                                           v1::Name##Response& response);
QG_ENGINE_CALLS(QG_DECLARE_CALL)
#undef QG_DECLARE_CALL

}  // namespace quantgate
