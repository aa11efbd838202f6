// The unary operations of the engine. Each checks its request and returns the work for the device.
// The caller keeps request and response until the work has ended.
#pragma once

#include "absl/status/statusor.h"
#include "kernels/validate/gemm_plan.h"
#include "quantgate/v1/engine_service.pb.h"
#include "server/runs/call_context.h"
#include "server/wire/tensor_reference.h"

namespace quantgate {

// The list of these operations. A server answers them, and so does a command in its own process.
#define QG_ENGINE_CALLS(CALL) \
  CALL(Quantize)              \
  CALL(Dequantize)            \
  CALL(UpdateUsages)          \
  CALL(Gemm)                  \
  CALL(Compare)               \
  CALL(Explain)               \
  CALL(Diagnose)

/// PrepareQuantize(context, request, response), and so on.
#define QG_DECLARE_CALL(Name)                                                                      \
  absl::StatusOr<DeviceWork> Prepare##Name(CallContext& context, const v1::Name##Request& request, \
                                           v1::Name##Response& response);
QG_ENGINE_CALLS(QG_DECLARE_CALL)
#undef QG_DECLARE_CALL

/// A GEMM as a request describes it: its plan, and references to the tensors that it takes.
struct GemmWork {
  SlotReferences references;
  GemmPlan plan;
};

/// Does every check of a GEMM request that needs no tensor's bytes. PrepareExplain uses it too.
absl::StatusOr<GemmWork> CheckGemmRequest(CallContext& context, const v1::GemmRequest& request);

}  // namespace quantgate
