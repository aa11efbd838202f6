// One linear unit, y = x w^T + bias, forward and backward: the part of every layer that quantizes
// and multiplies (docs/quantizers.md sections 9 and 10). What a unit does in a step is decided
// before anything is computed. Forward keeps a LinearSaved for backward.
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

/// The names of a unit's tensors in records, states and errors.
struct LinearNames {
  LinearNames() = default;
  /// Prefix "fc1." gives "fc1.x", "fc1.weight"; suffix ".3" gives "x.3", "weight.3".
  LinearNames(const std::string& prefix, const std::string& suffix);

  std::string x = "x", weight = "weight", bias = "bias", y = "y";
  std::string grad_output = "grad_output", dx = "dx", dw = "dw", db = "db";
  std::string main_grad = "main_grad";

  std::string Stage(const std::string& stage) const { return prefix + stage + suffix; }
  /// The name of the delayed scale of a role: "fc1.input", "weight.3"; of a columnwise direction
  /// with a scale of its own (Quantizer::delayed_directions) "fc1.input_columnwise".
  std::string StateOf(TensorRole role, Usage usage) const;

  std::string prefix, suffix;
};

/// A unit in one step.
struct LinearUnit {
  LinearNames names;
  int index = 0;  ///< The number of the unit in its layer.
  uint32_t first_call_id = 0;
  int64_t m = 0, n = 0, k = 0;           ///< The GEMM's dims; m counts the rows of all ranks.
  std::shared_ptr<const Recipe> recipe;  ///< The recipe of this module.
  LinearFacts facts;
  LinearDataflow flow;
  LinearParallel parallel;

  /// The numbers of rows that this rank has of x and of y.
  int64_t x_rows() const { return parallel.gathers_x() ? parallel.rows[parallel.rank] : m; }
  int64_t y_rows() const {
    return parallel.gathers_grad_output() ? parallel.rows[parallel.rank] : m;
  }
  Shape OutputShape(Shape x) const;
  /// Whether the GEMM adds the bias; if not, it is added to the sum over the ranks.
  bool adds_bias_in_gemm() const { return facts.has_bias && !parallel.is_row(); }
};

/// The arguments of forward. The weight, its workspace and its delayed state are in the LayerState.
struct LinearInput {
  Tensor x;  ///< [..., K]: f32, bf16 or f16; f32 if facts.x_is_unrounded.
  /// If facts.x_is_codes: x quantized, in usages that have or give those of the dataflow.
  QuantizedTensor codes;
  Tensor bias;  ///< May be absent.
  /// Non-null in a grouped_linear, which reduces the amaxes of its experts together.
  ExpertAmaxes* expert_amaxes = nullptr;
};

/// An operand kept for backward: the original, codes, or both if its directions differ.
struct KeptOperand {
  Tensor original;
  QuantizedTensor codes;
  SavedMarkPointer mark;              ///< Null until it is kept.
  std::string quantized_before = {};  ///< OperandOrigin::quantized_before of its codes.
  /// Counts the bytes of an operand that was gathered for a backward (StepRecorder::HoldGathered).
  std::shared_ptr<const void> gathered = {};

  bool has_codes() const { return codes.has_codes(); }
  /// The tensors that backward needs: those that are fingerprinted, and whose bytes count.
  std::vector<SavedTensor> SavedTensors() const;
  std::vector<Tensor> Parts() const;
  /// SavedOperand::format.
  std::string Format() const;
};

/// What forward keeps for backward.
struct LinearSaved {
  LinearUnit unit;
  std::shared_ptr<const StepOptions> options;
  Shape x_shape;
  KeptOperand x;
  KeptOperand weight;
  /// The quantized weight, which backward_override=high_precision keeps too although nothing reads
  /// it (docs/quantizers.md section 9).
  KeptOperand weight_workspace;
};

struct LinearForward {
  Tensor y;                          ///< [..., N] in the activation dtype.
  Tensor whole_x;                    ///< The x of all ranks, [M][K], if parallel.returns_x.
  std::optional<LinearSaved> saved;  ///< If there is a backward.
};

/// Changes state.workspaces and the histories in state.delayed (amaxes are noted, scales are not
/// updated). Adds a usage that this step reads to a quantized weight that lacks it.
/// FAILED_PRECONDITION if a quantized weight was made by another quantizer or cannot get the usage.
absl::StatusOr<LinearForward> ForwardLinear(StepRecorder& recorder, const LinearUnit& unit,
                                            LayerState& state, const LinearInput& input,
                                            std::shared_ptr<const StepOptions> options);

/// The gradient of y, backward's argument.
struct LinearGradient {
  Tensor value;               ///< y's shape: f32, bf16 or f16; f32 if is_unrounded.
  bool is_unrounded = false;  ///< `value` is not rounded before it is quantized.
  /// The gradient before its rounding, which the bias gradient sums in place of `value`. May be
  /// absent.
  Tensor bias_source;
  QuantizedTensor codes;  ///< `value` quantized, if it comes quantized.
  /// `value` has the values of `codes`, which were given; otherwise it is what they were made from.
  bool is_of_codes = false;
  ExpertAmaxes* expert_amaxes = nullptr;  ///< As LinearInput::expert_amaxes, for this backward.
};

/// What a weight gradient is computed from, now or later.
struct LinearWgrad {
  LinearUnit unit;
  std::shared_ptr<const StepOptions> options;
  KeptOperand x;
  KeptOperand grad_output;
};

struct LinearBackward {
  // Each is absent unless it is needed.
  Tensor dx;  ///< x's shape.
  Tensor db;
  Tensor dw;  ///< Absent too if it was added to state.main_grads or is deferred.
  std::optional<LinearWgrad> deferred;
};

/// Changes state.main_grads and grad_output's history in state.delayed. Consumes `saved`.
absl::StatusOr<LinearBackward> BackwardLinear(StepRecorder& recorder, LinearSaved& saved,
                                              LayerState& state, const LinearGradient& gradient);

/// A weight gradient that BackwardLinear deferred, with the bits that it would have had without the
/// delay. Absent if it was added to state.main_grads.
absl::StatusOr<Tensor> RunDeferredWgrad(StepRecorder& recorder, LinearWgrad& deferred,
                                        LayerState& state);

}  // namespace quantgate
