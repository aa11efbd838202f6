// One linear unit, y = x w^T + bias, forward and backward: the part of every layer that quantizes
// and multiplies (docs/quantizers.md sections 9 and 10). What a unit does in a step is decided
// before anything is computed; forward leaves a LinearSaved, which backward reads.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/layer/delayed_states.h"
#include "kernels/layer/layer_state.h"
#include "kernels/layer/linear/linear_dataflow.h"
#include "kernels/layer/parallel_step.h"
#include "kernels/layer/step_recorder.h"

namespace quantgate {

class ExpertAmaxes;

/// What a unit's tensors are called in records, and its parameters in states and errors.
struct LinearNames {
  LinearNames() = default;
  /// "fc1." and "": "fc1.x", "fc1.weight"; "" and ".3": "x.3", "weight.3".
  LinearNames(const std::string& prefix, const std::string& suffix);

  std::string x = "x", weight = "weight", bias = "bias", y = "y";
  std::string grad_output = "grad_output", dx = "dx", dw = "dw", db = "db";
  std::string main_grad = "main_grad";
  // Of delayed scaling.
  std::string input_state = "input", weight_state = "weight", grad_output_state = "grad_output";

  std::string Stage(const std::string& stage) const { return prefix + stage + suffix; }
  const std::string& StateOf(TensorRole role) const;

  std::string prefix, suffix;
};

/// A unit in one step.
struct LinearUnit {
  LinearNames names;
  int index = 0;  ///< Among the units of its layer.
  uint32_t first_call_id = 0;
  int64_t m = 0, n = 0, k = 0;  ///< Of the GEMMs; m of all ranks.
  LinearFacts facts;
  LinearDataflow flow;
  LinearParallel parallel;

  /// This rank's rows of x and of y.
  int64_t x_rows() const { return parallel.gathers_x() ? parallel.rows[parallel.rank] : m; }
  int64_t y_rows() const {
    return parallel.gathers_grad_output() ? parallel.rows[parallel.rank] : m;
  }
  Shape OutputShape(Shape x) const;
  /// The GEMM adds the bias; else it is added to the sum over the ranks.
  bool adds_bias_in_gemm() const { return facts.has_bias && !parallel.is_row(); }
};

/// What forward takes; the weight, with its workspace and its delayed state, is in the LayerState.
struct LinearInput {
  Tensor x;  ///< [..., K]: f32, bf16 or f16; f32, and quantized from it, where it is unrounded.
  QuantizedTensor codes;  ///< Where flow.facts.x_is_codes: of x, in the usages that the flow asks.
  Tensor bias;            ///< Absent: none.
  /// Of a grouped_linear, whose experts' amaxes are reduced together; null: the unit's by itself.
  ExpertAmaxes* expert_amaxes = nullptr;
};

/// Something kept for backward: what was given, codes, or both where directions differ.
struct KeptOperand {
  Tensor original;
  QuantizedTensor codes;
  SavedMarkPointer mark;  ///< Null: not kept.

  bool has_codes() const { return codes.rowwise.has_value() || codes.columnwise.has_value(); }
  /// What is fingerprinted.
  std::vector<Tensor> Parts() const;
};

/// What forward leaves for backward.
struct LinearSaved {
  LinearUnit unit;
  std::shared_ptr<const StepOptions> options;
  Shape x_shape;
  KeptOperand x;
  KeptOperand weight;
  /// The quantized weight that high_precision also keeps (docs/quantizers.md section 9); nothing
  /// reads it.
  KeptOperand weight_workspace;
};

struct LinearForward {
  Tensor y;                          ///< [..., N] in the activation dtype.
  Tensor whole_x;                    ///< LinearParallel::returns_x: [M][K] of all ranks.
  std::optional<LinearSaved> saved;  ///< Where there is a backward.
};

/// Changes state.workspaces, the weight's usages where it is quantized and lacks one that this step
/// reads, and the histories of state.delayed (amax noted, scales not updated). FAILED_PRECONDITION
/// where a quantized weight is of another quantizer or cannot get a usage.
absl::StatusOr<LinearForward> ForwardLinear(StepRecorder& recorder, const LinearUnit& unit,
                                            LayerState& state, const LinearInput& input,
                                            std::shared_ptr<const StepOptions> options);

/// What backward takes.
struct LinearGradient {
  Tensor value;  ///< y's shape: f32, bf16 or f16; f32, and quantized from it, where unrounded.
  bool is_unrounded = false;
  /// What the bias gradient sums in place of `value`: a gradient before its rounding.
  Tensor bias_source;
  QuantizedTensor codes;                  ///< Of `value`, where it was quantized before.
  ExpertAmaxes* expert_amaxes = nullptr;  ///< LinearInput's, of this backward.
};

/// What the weight's gradient is made of, now or later.
struct LinearWgrad {
  LinearUnit unit;
  std::shared_ptr<const StepOptions> options;
  KeptOperand x;
  KeptOperand grad_output;
};

struct LinearBackward {
  Tensor dx;  ///< x's shape; absent unless needed, like the others.
  Tensor db;
  Tensor dw;  ///< Absent too where it went to state.main_grads, or is deferred.
  std::optional<LinearWgrad> deferred;
};

/// Changes state.main_grads, and the history of grad_output in state.delayed. `saved` is used up.
absl::StatusOr<LinearBackward> BackwardLinear(StepRecorder& recorder, LinearSaved& saved,
                                              LayerState& state, const LinearGradient& gradient);

/// A weight gradient that BackwardLinear deferred: dw, or no tensor where it went to
/// state.main_grads. The same bits as without the delay.
absl::StatusOr<Tensor> RunDeferredWgrad(StepRecorder& recorder, LinearWgrad& deferred,
                                        LayerState& state);

}  // namespace quantgate
