// What training keeps of a layer between steps, and how one step is done. Values: the tensors of a
// state are never written to, a step puts others in their place.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "kernels/layer/parallel_step.h"
#include "kernels/quantize/recipe/recipe.h"

namespace quantgate {

struct LayerPlan;  ///< kernels/layer/layer_plan.h.

struct RequiresGrad {
  bool x = true;
  bool weight = true;
  bool bias = true;  ///< Of the biases that there are.
  bool norm = true;  ///< gamma and beta.
  friend bool operator==(const RequiresGrad&, const RequiresGrad&) = default;
};

/// A parameter as training holds it: high precision, or, for weights, quantized.
struct Parameter {
  Tensor value;               ///< Absent where the parameter is quantized.
  QuantizedTensor quantized;  ///< With the usages that it has; no copy: not quantized.
  Quantizer quantizer;        ///< Of `quantized`: what an update of it follows.
  bool is_quantized() const { return quantized.usages().rowwise || quantized.usages().columnwise; }
};

/// The quantized weight of the first microbatch, for the ones after it.
struct WeightWorkspace {
  QuantizedTensor quantized;
  // What made it: under others it is made anew.
  Quantizer quantizer;
  AmaxGroup amax_group = {};
};

/// What a module with a seeded bug remembers from one step to the next (layer_faults.h).
struct SeededMemory {
  std::map<std::string, QuantizedTensor> codes;
  std::map<std::string, Parameter> gathered;
  std::shared_ptr<const ParallelStep> parallel;
};

/// What a layer keeps between steps, by the names of kernels/layer/layer.h.
struct LayerState {
  std::map<std::string, Parameter> parameters;
  std::map<std::string, DelayedScalingState> delayed;
  std::map<std::string, WeightWorkspace> workspaces;  ///< By weight.
  std::map<std::string, Tensor> main_grads;     ///< f32, by weight; absent: gradients are returned.
  std::shared_ptr<SeededMemory> seeded_memory;  ///< Null wherever no fault is in place.
};

/// Transformer Engine's is_first_microbatch (docs/sessions.md section 3).
enum class Microbatch {
  kUnset,  ///< No cache; gradients accumulate into main gradients.
  kFirst,  ///< Weights are quantized and cached; main gradients are overwritten.
  kLater,  ///< The cache is used, completed where a direction is missing; gradients accumulate.
};

/// QuantizeArguments::call_id of a role: its number in the order input, weight, grad_output, so
/// that the random numbers of one tensor do not depend on which others are quantized.
uint32_t CallIdOf(TensorRole role);
/// Of the units of one step, one after the other.
inline constexpr uint32_t kCallIdsPerUnit = 3;

/// How one forward step is done. Backward follows its forward's: nothing is read from the outside
/// again, a later change of the recipe included.
struct StepOptions {
  Recipe recipe;
  bool grad_enabled = true;  ///< False: nothing is saved, as in evaluation.
  RequiresGrad requires_grad = {};
  Microbatch microbatch = Microbatch::kUnset;
  /// Under delayed scaling: compute in high precision and note the amaxes only.
  bool calibrate = false;
  uint64_t seed = 0;  ///< Of stochastic rounding; each quantization is one call of it.
  /// QuantizeArguments::call_id of this step's first quantization. Forward uses the first
  /// CallIdsOf(spec), backward the same range, each tensor its own.
  uint32_t first_call_id = 0;
  bool defer_wgrad = false;  ///< BackwardLayer leaves the weights' gradients to BackwardWgrad.
  /// The ranks among which the layer is divided; null: one. Every rank of the group takes the same
  /// steps in the same order.
  std::shared_ptr<const ParallelStep> parallel = nullptr;
  /// As the check of a request decided the step (kernels/layer/layer.h); null: ForwardLayer decides
  /// it by what the layer's state holds.
  std::shared_ptr<const LayerPlan> plan = nullptr;
  /// Where the experts of this rank are among those of the whole grouped_linear; of 0: it has all.
  AmaxPlaces experts = {0, 0};
};

}  // namespace quantgate
