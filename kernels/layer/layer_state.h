// What training keeps of a layer between steps, and the options of one step. The tensors of a state
// are never written to: a step replaces them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/layer/parallel_step.h"
#include "kernels/ops/attention/attention.h"
#include "kernels/quantize/recipe/recipe.h"

namespace quantgate {

struct LayerPlan;  ///< kernels/layer/layer_plan.h.

struct RequiresGrad {
  bool x = true;
  bool weight = true;
  bool bias = true;  ///< All biases that the layer has.
  bool norm = true;  ///< gamma and beta.
  friend bool operator==(const RequiresGrad&, const RequiresGrad&) = default;
};

/// A parameter as training holds it: high precision, or, for weights, quantized.
struct Parameter {
  Tensor value;               ///< Absent where the parameter is quantized.
  QuantizedTensor quantized;  ///< Without any copy: the parameter is not quantized.
  Quantizer quantizer;        ///< The rule that made `quantized`, which an update follows.
  bool is_quantized() const { return quantized.usages().rowwise || quantized.usages().columnwise; }
};

/// The quantized weight of the first microbatch, for the ones after it.
struct WeightWorkspace {
  QuantizedTensor quantized;
  // What it was made with. A step with others quantizes the weight anew.
  Quantizer quantizer;
  AmaxGroup amax_group = {};
};

/// What a table of rotary positions follows from.
struct RotaryKey {
  float base = 0;
  int64_t positions = 0, columns = 0;
  DType dtype = DType::kBF16;
  friend bool operator==(const RotaryKey&, const RotaryKey&) = default;
};
/// The last table that an attention made, which the next step of as many positions reads too.
struct RotaryMemory {
  RotaryKey key = {};
  RotaryTable table = {};  ///< In the engine's memory.
};

/// What a module with a seeded bug remembers from one step to the next (layer_faults.h).
struct SeededMemory {
  std::map<std::string, QuantizedTensor> codes;
  std::map<std::string, Parameter> gathered;
  std::vector<std::shared_ptr<const void>> kept;  ///< Gathered gradients.
  std::shared_ptr<const ParallelStep> parallel;
};

/// What a layer keeps between steps, under the names of kernels/layer/layer.h.
struct LayerState {
  std::map<std::string, Parameter> parameters;
  std::map<std::string, DelayedScalingState> delayed;
  std::map<std::string, WeightWorkspace> workspaces;  ///< By weight.
  /// f32, by weight. The gradient of a weight without one is returned.
  std::map<std::string, Tensor> main_grads;
  RotaryMemory rotary;  ///< Not part of checkpoints: it follows from the spec and the shapes.
  std::shared_ptr<SeededMemory> seeded_memory;  ///< Null where no fault is seeded.
};

/// x or grad_output of a step: the tensor or, where it is given as codes, its values and the codes.
struct StepOperand {
  StepOperand() = default;
  StepOperand(Tensor tensor) : value(std::move(tensor)) {}
  StepOperand(Tensor values, QuantizedTensor given)
      : value(std::move(values)), codes(std::move(given)) {}

  /// High precision; the values of the codes in the dtype that they were made from.
  Tensor value;
  QuantizedTensor codes;
  bool is_codes() const { return codes.has_codes(); }
};

/// Transformer Engine's is_first_microbatch (docs/sessions.md section 3).
enum class Microbatch {
  kUnset,  ///< No cache; gradients accumulate into main gradients.
  kFirst,  ///< Weights are quantized and cached; main gradients are overwritten.
  kLater,  ///< The cache is used, completed where a direction is missing; gradients accumulate.
};

/// QuantizeArguments::call_id of a role within its unit: the role's place in the order input,
/// weight, grad_output. So the random numbers of one tensor do not depend on which others are
/// quantized.
uint32_t CallIdOf(TensorRole role);
/// Units of one step take consecutive ranges of so many call ids.
inline constexpr uint32_t kCallIdsPerUnit = 3;
/// The first call id of results (QuantizeResult), beyond all those of operands.
inline constexpr uint32_t kResultCallIds = uint32_t{1} << 31;

/// How one forward step is done. Its backward follows the same options: nothing is read from
/// outside again, not even a recipe that has changed since.
struct StepOptions {
  Recipe recipe;
  bool grad_enabled = true;  ///< False: nothing is saved, as in evaluation.
  RequiresGrad requires_grad = {};
  Microbatch microbatch = Microbatch::kUnset;
  /// Under delayed scaling: compute in high precision and only note the amaxes.
  bool calibrate = false;
  uint64_t seed = 0;  ///< For stochastic rounding; each quantization has its own call id.
  /// QuantizeArguments::call_id of this step's first quantization. Forward uses the first
  /// CallIdsOf(spec), backward the same range, each tensor its own.
  uint32_t first_call_id = 0;
  bool defer_wgrad = false;  ///< BackwardLayer leaves the weights' gradients to BackwardWgrad.
  /// The ranks that divide the layer; null: one rank. Every rank of the group must take the same
  /// steps in the same order.
  std::shared_ptr<const ParallelStep> parallel = nullptr;
  /// The plan that the check of a request made (kernels/layer/layer.h). Null: ForwardLayer makes
  /// one from the layer's state.
  std::shared_ptr<const LayerPlan> plan = nullptr;
  /// This rank's expert range within the whole grouped_linear; a count of 0 means all experts.
  AmaxPlaces experts = {0, 0};
};

}  // namespace quantgate
