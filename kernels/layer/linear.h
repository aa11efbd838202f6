// Linear: y = x w^T + bias, forward and backward under a recipe (docs/quantizers.md sections 9
// and 10.3, 10.4). x [..., K], weight [N][K], bias [N], grad_output [..., N]; M is the product of
// x's leading dims.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "kernels/engine/engine.h"
#include "kernels/quantize/recipe.h"
#include "kernels/tensor/tensor_file.h"

namespace quantgate {

struct RequiresGrad {
  bool x = true;
  bool weight = true;
  bool bias = true;  ///< Ignored without a bias.
};

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

/// A GEMM that the layer did, with its operands, so that it can be done again under another
/// arithmetic.
struct GemmRecord {
  GemmRole role = GemmRole::kFprop;
  std::string output;  ///< "y", "dx", "dw" or "main_grad".
  GemmDesc desc;
  std::string a_source;  ///< What operand a was: "x quantized rowwise", "grad_output", "weight
                         ///< dequantized".
  std::string b_source;
  GemmResult result;  ///< d is 2-D; the output of the same name has the caller's shape.
};

/// One operand kept between forward and backward; equal fingerprints show that nobody wrote to it.
struct SavedOperand {
  std::string name;     ///< "x", "weight", "weight workspace" (docs/quantizers.md section 9).
  std::string content;  ///< "f8_e4m3 columnwise codes", "bf16 as given", "f8_e4m3 rowwise codes".
  Fingerprint at_save;  ///< Codes and scale_inv together: the sum of their fingerprints.
  Fingerprint at_use;
  bool used = false;  ///< False: saved by the mode's rule but read by no GEMM.
};

/// One quantization that the layer did.
struct QuantizationRecord : QuantizationSummary {
  TensorRole role = TensorRole::kInput;
  Usages usages;
  std::string quantizer;  ///< QuantizerText: the rule.
};

/// QuantizeArguments::call_id of a role: its number in the order input, weight, grad_output, so
/// that the random numbers of one tensor do not depend on which others are quantized.
uint32_t CallIdOf(TensorRole role);

struct StageTime {
  std::string stage;  ///< "quantize x", "fprop", "bias gradient", ...
  double seconds = 0;
};

struct LinearResult {
  std::vector<NamedTensor> outputs;  ///< "y"; "dx", "dw" (or "main_grad"), "db" as asked for.
  std::vector<GemmRecord> gemms;
  std::vector<SavedOperand> saved;
  std::vector<QuantizationRecord> quantizations;
  std::vector<StageTime> stages;
  /// Under delayed scaling what the next step needs: "input.scale", "input.amax_history", ...
  std::vector<NamedTensor> state;
  std::vector<std::string>
      notes;  ///< "backward_override has no effect without a quantized recipe".
};

/// Names of the outputs of a run in order: "y", then "dx", "dw" or "main_grad", "db" as asked for.
std::vector<std::string> LinearOutputs(const LinearRequest& request);

/// The stages of a run in order, known before it starts: LinearResult::stages has these names. For
/// a request that CheckLinear accepts.
std::vector<std::string> LinearStages(const LinearRequest& request, const Recipe& recipe);

/// Called from the running thread before each stage.
using StageObserver = absl::FunctionRef<void(const std::string& stage)>;

/// Runs forward and, with a grad_output, backward. A numerical oddity is a result, never an error.
/// Cancellation is looked at between stages and inside the engine's operations.
absl::StatusOr<LinearResult> RunLinear(
    Engine& engine, const LinearRequest& request, const Recipe& recipe,
    const Arithmetic& arithmetic, const Cancellation* cancellation,
    StageObserver on_stage = [](const std::string&) {});

}  // namespace quantgate
