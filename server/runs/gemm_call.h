// A GEMM as a request describes it: its plan, its tensors still references.
#pragma once

#include "absl/status/statusor.h"
#include "kernels/validate/gemm_plan.h"
#include "quantgate/v1/engine_service.pb.h"
#include "server/runs/call_context.h"
#include "server/wire/tensor_reference.h"

namespace quantgate {

struct GemmWork {
  SlotReferences references;
  GemmPlan plan;
};

/// Everything that can be refused before tensors are loaded.
absl::StatusOr<GemmWork> CheckGemmRequest(CallContext& context, const v1::GemmRequest& request);

}  // namespace quantgate
