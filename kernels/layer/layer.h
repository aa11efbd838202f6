// Layers: what a training framework calls a module, forward and backward under a recipe
// (docs/quantizers.md sections 9 to 10). Each is a chain of basic operations. The kinds differ in
// their operations, and in where an operation hands its fp32 result to the next quantizer without
// rounding it in between.
//
//   linear            y = x w^T + b
//   layernorm_linear  linear of norm(x)
//   layernorm_mlp     fc2 of activation(fc1 of norm(x))
//   grouped_linear    one linear ("expert") for each run of rows of x; m_splits gives the lengths
//   chain             the operations of LayerSpec::operations
//   attention         proj of the attention of qkv(x)
//   transformer_layer s = x + attention(norm1(x)), y = s + fc2 of activation(fc1 of norm2(s))
//
// Names of parameters: "weight", "bias", "gamma", "beta"; in layernorm_mlp, attention and
// transformer_layer "fc1.weight", "fc2.bias", "norm1.gamma", ...; in grouped_linear "weight.0",
// "bias.0", ...; in a chain OPERATION.weight, .... A gradient has the name of its parameter with
// dw, db, dgamma or dbeta as its word ("fc1.dw", "dw.0"), or main_grad if the weight has a main
// gradient ("fc1.main_grad"). Delayed scaling's states have the words "input", "weight",
// "grad_output" ("fc1.input", "weight.0"), and "weight_columnwise", ... where a columnwise
// direction has a delayed scale of its own.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/layer/layer_kinds.h"
#include "kernels/layer/layer_state.h"
#include "kernels/layer/step_recorder.h"
#include "kernels/ops/activation/activation.h"
#include "kernels/ops/attention/attention.h"
#include "kernels/ops/norm/norm.h"

namespace quantgate {

/// The name of a parameter, gradient or state of delayed scaling, taken apart: "fc1.weight.2" is
/// the weight of expert 2 in layer fc1.
struct ParameterName {
  std::string path;  ///< The enclosing layers with their dots: "fc1.", "block1.fc1."; may be empty.
  std::string word;  ///< "weight", "dw".
  int64_t expert = -1;  ///< -1: the name has no expert's number.

  static ParameterName Parse(std::string_view text);
  std::string Text() const;
};

/// One operation of a chain: [..., columns] in, [..., columns] out.
struct OperationSpec {
  OperationKind kind = OperationKind::kBasicLinear;
  std::string name;                ///< Prefix of its parameters' names; unique within the chain.
  NormOptions norm;                ///< kNorm.
  ActivationOptions activation;    ///< kActivation.
  float factor = 1;                ///< kScale.
  std::string addend;              ///< kAdd: an earlier operation whose output is added, or "x".
  bool quantize_forward = true;    ///< kQuantize: the activation, as an input,
  bool quantize_backward = false;  ///< and its gradient, as a grad_output.
  ParallelMode parallel_mode = ParallelMode::kNone;  ///< kBasicLinear.
  friend bool operator==(const OperationSpec& a, const OperationSpec& b);
};

// Bounds on untrusted input: operations of a chain, experts of a grouped_linear.
inline constexpr int kOperationsMax = 64;
inline constexpr int kExpertsMax = 256;

/// How attention joins the heads that qkv gives (docs/quantizers.md section 10.11).
struct AttentionOptions {
  int64_t heads = 0;   ///< Query heads of the whole layer.
  int64_t groups = 0;  ///< Pairs of a key head and a value head, which divide `heads`; 0: `heads`.
  AttentionMask mask = AttentionMask::kNone;
  std::optional<float> rotary_base = {};  ///< Absent: queries and keys are not rotated.

  int64_t group_count() const { return groups == 0 ? heads : groups; }
  friend bool operator==(const AttentionOptions&, const AttentionOptions&) = default;
};

/// What a layer computes, without its tensors.
struct LayerSpec {
  LayerKind kind = LayerKind::kLinear;
  NormOptions norm;              ///< layernorm_linear, layernorm_mlp, transformer_layer.
  ActivationOptions activation;  ///< layernorm_mlp, transformer_layer.
  /// layernorm_linear, layernorm_mlp: also returns "norm_out", rounded before it is quantized.
  bool return_norm_output = false;
  std::vector<int64_t> m_splits;          ///< grouped_linear: rows of each expert, 0 included.
  std::vector<OperationSpec> operations;  ///< chain.
  /// attention, transformer_layer. Counts heads of the whole layer, also in one rank's part.
  AttentionOptions attention;
  /// True: neighbouring operations for which frameworks have one kernel are one operation: a bias
  /// joins its GEMM's epilogue, and under delayed scaling the results of norms and activations are
  /// quantized without rounding. False: every operation rounds its result to the activation dtype.
  bool fused = true;
  /// How weights are divided over the tensor-parallel group of a step; all sizes above are then
  /// those of one rank's part. layernorm_mlp takes kColumn: fc1 is column-parallel and fc2
  /// row-parallel; likewise attention and transformer_layer, whose qkv is column-parallel and whose
  /// proj is row-parallel. layernorm_linear takes kColumn. The operations of a chain have modes of
  /// their own. A grouped_linear does not communicate: its y, or dx, is this rank's summand
  /// (kernels/layer/experts/grouped_run.h adds them up).
  ParallelMode parallel_mode = ParallelMode::kNone;
  /// What rules of a custom recipe know the layer by; may be empty. A session gives its layers the
  /// names that they have there.
  std::string name = {};

  const LayerTraits& traits() const { return TraitsOf(kind); }
  friend bool operator==(const LayerSpec& a, const LayerSpec& b);
};

/// The recipe of this layer's only module, or of the layer apart from its modules
/// (Recipe::ForModule). Other functions of this folder apply the recipe that they are given as it
/// is.
Recipe RecipeOfLayer(const LayerSpec& spec, const Recipe& recipe);
/// The recipe of the linear module whose names begin with `prefix`: "fc1.", or "" for the only one.
Recipe RecipeOfModule(const LayerSpec& spec, const Recipe& recipe, const std::string& prefix);
/// The recipe of the linear module that has the parameter: "fc1.weight", "weight.0".
inline Recipe RecipeOfParameter(const LayerSpec& spec, const Recipe& recipe,
                                std::string_view parameter) {
  return RecipeOfModule(spec, recipe, ParameterName::Parse(parameter).path);
}
/// The recipes of all modules of the layer; that of the layer alone if the rules do not depend on
/// the module.
std::vector<Recipe> RecipesOfModules(const LayerSpec& spec, const Recipe& recipe);
/// Recipe::UnusedRules of all modules of these layers, and of `quantize` operations whose tensor no
/// module reads.
std::vector<std::string> NotesOfRules(std::span<const LayerSpec* const> layers,
                                      const Recipe& recipe, std::string_view where);

/// One step of one layer, forward and optionally backward, with nothing kept afterwards.
struct LayerRequest {
  LayerSpec layer;
  Tensor x;                                  ///< [..., K]: f32, bf16 or f16.
  Tensor grad_output;                        ///< y's shape. Absent: forward only.
  std::map<std::string, Tensor> parameters;  ///< High precision; biases and beta may be absent.
  /// Operands that are given as codes, by "x", "grad_output" and the names of weights: GEMMs read
  /// the codes as they are (docs/quantizers.md section 8.1). `x`, `grad_output` and `parameters`
  /// then have their values, dequantized to the dtype that the codes were made from.
  std::map<std::string, QuantizedTensor> codes = {};
  /// f32 main gradients by weight ("weight", "fc1.weight"). wgrad accumulates into a copy, which is
  /// returned as "main_grad" ("fc1.main_grad") in place of "dw" ("fc1.dw").
  std::map<std::string, Tensor> main_grads;
  RequiresGrad requires_grad;
  uint64_t seed = 0;  ///< For stochastic rounding; each quantization has its own call id.
  /// Delayed scaling's states from earlier steps; absent ones are fresh. Other recipes ignore them.
  /// In host memory, where their values are checked, or an earlier result of the same engine.
  std::map<std::string, DelayedScalingState> delayed;
  /// Under delayed scaling: compute in high precision and only note the amaxes.
  bool calibrate = false;
  /// The ranks that divide the layer; the request is then one rank's part. Null: one rank.
  std::shared_ptr<const ParallelStep> parallel;
  /// Bound on the bytes, in x's dtype, of y and of every tensor between two operations, which may
  /// be large although the operands are small.
  int64_t value_bytes_max = std::numeric_limits<int64_t>::max();
};

/// What one step of a layer does. Decided when the request is checked; the step and its report
/// follow it.
using LayerPlanPointer = std::shared_ptr<const LayerPlan>;

struct LayerResult : StepRecords {
  /// "y", "norm_out", "dx" and the gradients of parameters, as far as they were asked for.
  std::vector<NamedTensor> outputs;
  /// Tensors between two operations, in the activation dtype: "fc1.y", "fc2.x", "fc2.dx", ...
  std::vector<NamedTensor> intermediates;
  /// What the next step needs under delayed scaling: "input.scale", "input.amax_history", ...
  std::vector<NamedTensor> state;
  LayerPlanPointer plan;  ///< The plan that the step followed.
};

/// The part of CheckLayer that does not depend on the recipe: spec, presence, dtypes and shapes.
absl::Status CheckLayerTensors(const LayerRequest& request);

/// Checks a request under a recipe before anything is computed. INVALID_ARGUMENT naming field,
/// value and rule.
absl::Status CheckLayer(const LayerRequest& request, const Recipe& recipe);

/// The rest of CheckLayer for a request that CheckLayerTensors accepts. Gives the step's plan.
absl::StatusOr<LayerPlanPointer> DecideLayer(const LayerRequest& request, const Recipe& recipe);

/// Checks that the arithmetic takes every GEMM of a plan that DecideLayer made. INVALID_ARGUMENT or
/// UNIMPLEMENTED naming the GEMM.
absl::Status CheckLayerGemms(const LayerPlan& plan, const Arithmetic& arithmetic);

/// Names of the outputs that RunLayer gives for `request`, in order.
std::vector<std::string> LayerOutputs(const LayerRequest& request);

/// Shape of one of these outputs, for a request that CheckLayerTensors accepts.
Shape LayerOutputShape(const LayerRequest& request, std::string_view output);

/// A step whose work has been given to the engine. The fingerprints of saved operands and the
/// statistics of quantizations have not been read yet.
struct StartedLayer {
  LayerResult result;  ///< Its outputs can be used without waiting.
  std::unique_ptr<StepRecorder> recorder;
  /// Reads them into `result`. Waits until they are computed, but not for later work. Call once.
  absl::Status Finish() { return recorder->Read(result); }
};

/// Runs forward and, with a grad_output, backward. A numerical oddity is a result, never an error.
/// Cancellation is checked between stages and inside the engine's operations.
absl::StatusOr<LayerResult> RunLayer(Engine& engine, const LayerRequest& request,
                                     const Recipe& recipe, const Arithmetic& arithmetic,
                                     const Cancellation* cancellation,
                                     StageObserver on_stage = IgnoreStage);
/// Starts the same step without waiting for the engine, so that the caller can give it more work.
/// `plan` must be DecideLayer's of this request, and CheckLayerGemms must accept it.
absl::StatusOr<StartedLayer> StartLayer(Engine& engine, const LayerRequest& request,
                                        LayerPlanPointer plan, const Recipe& recipe,
                                        const Arithmetic& arithmetic,
                                        const Cancellation* cancellation,
                                        StageObserver on_stage = IgnoreStage);

}  // namespace quantgate
