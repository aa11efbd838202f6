// Layers: what a training framework calls a module, forward and backward under a recipe
// (docs/quantizers.md sections 9 and 10). Each is a chain of basic operations; the kinds differ in
// which operations, and in where an operation hands its fp32 result to the next quantizer without
// rounding it in between.
//
//   linear            y = x w^T + b
//   layernorm_linear  linear of norm(x)
//   layernorm_mlp     fc2 of activation(fc1 of norm(x))
//   grouped_linear    rows of x in m_splits, a linear ("expert") each
//   chain             the operations of LayerSpec::operations
//
// Parameters, by name: "weight", "bias", "gamma", "beta"; "fc1.weight", "fc2.bias", ... of
// layernorm_mlp; "weight.0", "bias.0", ... of grouped_linear; OPERATION.weight, ... of a chain.
// The gradient of a parameter has its name with dw, db, dgamma, dbeta in place of the last word
// ("fc1.dw", "dw.0"); of a weight with a main gradient, main_grad ("fc1.main_grad").
// Delayed scaling's states: "input", "weight", "grad_output" likewise ("fc1.input", "weight.0").
#pragma once

#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/layer/layer_kinds.h"
#include "kernels/layer/layer_state.h"
#include "kernels/layer/step_recorder.h"
#include "kernels/ops/activation/activation.h"
#include "kernels/ops/norm/norm.h"

namespace quantgate {

/// One operation of a chain: [..., columns] in, [..., columns] out.
struct OperationSpec {
  OperationKind kind = OperationKind::kBasicLinear;
  std::string name;                ///< Of its parameters; unique within the chain.
  NormOptions norm;                ///< kNorm.
  ActivationOptions activation;    ///< kActivation.
  float factor = 1;                ///< kScale.
  std::string addend;              ///< kAdd: an earlier operation whose output is added, or "x".
  bool quantize_forward = true;    ///< kQuantize: the activation, as an input,
  bool quantize_backward = false;  ///< and its gradient, as a grad_output.
  ParallelMode parallel_mode = ParallelMode::kNone;  ///< kBasicLinear.
  friend bool operator==(const OperationSpec& a, const OperationSpec& b);
};

/// Operations of a chain, a bound on untrusted input.
inline constexpr int kOperationsMax = 64;
/// Experts of a grouped_linear, likewise.
inline constexpr int kExpertsMax = 256;

/// What a layer computes, without its tensors.
struct LayerSpec {
  LayerKind kind = LayerKind::kLinear;
  NormOptions norm;                 ///< layernorm_linear, layernorm_mlp.
  ActivationOptions activation;     ///< layernorm_mlp.
  bool return_norm_output = false;  ///< Likewise: "norm_out" too, which is then rounded first.
  std::vector<int64_t> m_splits;    ///< grouped_linear: rows of each expert, 0 included.
  std::vector<OperationSpec> operations;  ///< chain.
  /// Neighbouring operations are one where frameworks have one kernel for them: a bias joins its
  /// GEMM's epilogue; under delayed scaling norms and activations are quantized unrounded. False:
  /// every operation rounds its result to the activation dtype.
  bool fused = true;
  /// How weights are divided over the tensor-parallel group of a step; all sizes above are then of
  /// one rank's part. layernorm_mlp: kColumn, which is of fc1, with fc2 row-parallel;
  /// layernorm_linear: kColumn; a chain's stand with its operations. A grouped_linear communicates
  /// nothing: y, or dx, is the rank's part of it (kernels/layer/experts/grouped_run.h adds them
  /// up).
  ParallelMode parallel_mode = ParallelMode::kNone;

  const LayerTraits& traits() const { return TraitsOf(kind); }
  friend bool operator==(const LayerSpec& a, const LayerSpec& b);
};

/// A recipe as the modules of a layer follow it (Recipe::ForModule). The functions of this folder
/// take recipes as they are given.
Recipe RecipeOfLayer(const LayerSpec& spec, const Recipe& recipe);

/// One step of one layer, forward and perhaps backward, with nothing kept afterwards.
struct LayerRequest {
  LayerSpec layer;
  Tensor x;                                  ///< [..., K]: f32, bf16 or f16.
  Tensor grad_output;                        ///< y's shape. Absent: forward only.
  std::map<std::string, Tensor> parameters;  ///< High precision; biases and beta may be absent.
  /// f32, by weight ("weight", "fc1.weight"): wgrad accumulates into a copy of it, returned as
  /// "main_grad", "fc1.main_grad" in place of "dw", "fc1.dw".
  std::map<std::string, Tensor> main_grads;
  RequiresGrad requires_grad;
  uint64_t seed = 0;  ///< Of stochastic rounding; each quantization is one call of it.
  /// What delayed scaling brings from earlier steps; fresh where absent. Recipes without it do not
  /// look. In host memory, where values are checked, or an earlier result of the same engine.
  std::map<std::string, DelayedScalingState> delayed;
  /// Under delayed scaling: compute in high precision and note the amaxes only.
  bool calibrate = false;
  /// The ranks among which the layer is divided, of which this request is one's part; null: one.
  std::shared_ptr<const ParallelStep> parallel;
  /// Of y and of every tensor between two operations, in x's dtype: small operands may make large
  /// ones.
  int64_t value_bytes_max = std::numeric_limits<int64_t>::max();
};

/// What one step of a layer does, decided when its request is checked; the step and its report
/// follow it.
using LayerPlanPointer = std::shared_ptr<const LayerPlan>;

struct LayerResult : StepRecords {
  /// "y", "norm_out"; "dx" and the gradients of parameters, as asked for.
  std::vector<NamedTensor> outputs;
  /// What one operation gave the next in the activation dtype: "fc1.y", "fc2.x", "fc2.dx", ...
  std::vector<NamedTensor> intermediates;
  /// Under delayed scaling what the next step needs: "input.scale", "input.amax_history", ...
  std::vector<NamedTensor> state;
  LayerPlanPointer plan;  ///< By which it was made.
};

/// The part of CheckLayer that no recipe changes: the spec, presence, dtypes and shapes.
absl::Status CheckLayerTensors(const LayerRequest& request);

/// Checks a request against a recipe and says what is wrong before anything is computed:
/// INVALID_ARGUMENT naming field, value and rule.
absl::Status CheckLayer(const LayerRequest& request, const Recipe& recipe);

/// The rest of CheckLayer, of a request that CheckLayerTensors accepts, and what it decides.
absl::StatusOr<LayerPlanPointer> DecideLayer(const LayerRequest& request, const Recipe& recipe);

/// Whether the arithmetic takes every GEMM of a layer that was decided under `recipe`:
/// INVALID_ARGUMENT or UNIMPLEMENTED naming the GEMM.
absl::Status CheckLayerGemms(const LayerSpec& spec, const LayerPlan& plan, const Recipe& recipe,
                             const Arithmetic& arithmetic);

/// Names of the outputs of a run, in order.
std::vector<std::string> LayerOutputs(const LayerRequest& request);

/// Shape of an output of a request that CheckLayerTensors accepts.
Shape LayerOutputShape(const LayerRequest& request, std::string_view output);

/// A run of which the fingerprints of saved operands and what quantizations left are still to be
/// read.
struct StartedLayer {
  LayerResult result;  ///< Whoever uses its outputs need not wait.
  std::unique_ptr<StepRecorder> recorder;
  /// Completes `result`: waits for these, not for what came after them. Once.
  absl::Status Finish() { return recorder->Read(result); }
};

/// Runs forward and, with a grad_output, backward. A numerical oddity is a result, never an error.
/// Cancellation is looked at between stages and inside the engine's operations.
absl::StatusOr<LayerResult> RunLayer(Engine& engine, const LayerRequest& request,
                                     const Recipe& recipe, const Arithmetic& arithmetic,
                                     const Cancellation* cancellation,
                                     StageObserver on_stage = IgnoreStage);
/// The same of a request of which DecideLayer gave `plan` and CheckLayerGemms accepts that, and
/// waits for nothing: the caller has more for the engine to do meanwhile.
absl::StatusOr<StartedLayer> StartLayer(Engine& engine, const LayerRequest& request,
                                        LayerPlanPointer plan, const Recipe& recipe,
                                        const Arithmetic& arithmetic,
                                        const Cancellation* cancellation,
                                        StageObserver on_stage = IgnoreStage);

}  // namespace quantgate
