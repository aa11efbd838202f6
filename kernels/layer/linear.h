// Linear: y = x w^T + bias, forward and backward under a recipe (docs/quantizers.md sections 9
// and 10.3, 10.4). x [..., K], weight [N][K], bias [N], grad_output [..., N]; M is the product of
// x's leading dims.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/layer/layer.h"

namespace quantgate {

struct LinearRequest {
  Tensor x;            ///< f32, bf16 or f16.
  Tensor weight;       ///< High precision; may differ in dtype from x.
  Tensor bias;         ///< Absent: no bias.
  Tensor grad_output;  ///< Absent: forward only.
  Tensor main_grad;    ///< f32 [N][K]; wgrad accumulates into a copy of it, returned as "main_grad"
                       ///< in place of "dw".
  RequiresGrad requires_grad;
  uint64_t seed = 0;  ///< Of stochastic rounding; each role is one quantization of it.
  /// What delayed scaling brings from earlier steps; fresh where absent. Recipes without it do not
  /// look. In host memory, where values are checked, or an earlier result of the same engine.
  std::map<TensorRole, DelayedScalingState> delayed;
  /// Under delayed scaling: compute in high precision and note the amaxes only.
  bool calibrate = false;
};

/// The part of CheckLinear that no recipe changes: presence, dtypes and shapes.
absl::Status CheckLinearTensors(const LinearRequest& request);

/// Checks a request against a recipe and says what is wrong before anything is computed:
/// INVALID_ARGUMENT naming field, value and rule. Per-tensor FP8 and fp8_block: K % 16 == 0,
/// M % 8 == 0, N % 8 == 0, and what the FP8 backward GEMMs need; mxfp8 and nvfp4: whole blocks.
absl::Status CheckLinear(const LinearRequest& request, const Recipe& recipe);

/// Whether the arithmetic takes every GEMM of a request that CheckLinear accepts: INVALID_ARGUMENT
/// or UNIMPLEMENTED naming the GEMM.
absl::Status CheckLinearGemms(const LinearRequest& request, const Recipe& recipe,
                              const Arithmetic& arithmetic);

using LinearResult = LayerResult;

/// Names of the outputs of a run in order: "y", then "dx", "dw" or "main_grad", "db" as asked for.
std::vector<std::string> LinearOutputs(const LinearRequest& request);

/// The stages of a run in order, known before it starts: LinearResult::stages has these names. For
/// a request that CheckLinear accepts.
std::vector<std::string> LinearStages(const LinearRequest& request, const Recipe& recipe);

/// Runs forward and, with a grad_output, backward. A numerical oddity is a result, never an error.
/// Cancellation is looked at between stages and inside the engine's operations.
absl::StatusOr<LinearResult> RunLinear(Engine& engine, const LinearRequest& request,
                                       const Recipe& recipe, const Arithmetic& arithmetic,
                                       const Cancellation* cancellation,
                                       StageObserver on_stage = IgnoreStage);

}  // namespace quantgate
