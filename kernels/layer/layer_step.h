// A layer's forward and backward as separate steps, for training. What forward keeps for backward
// is a value that the caller holds, so several microbatches can be in flight. What training keeps
// between steps is a LayerState.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/layer/layer.h"
#include "kernels/layer/layer_state.h"

namespace quantgate {

/// The number of call ids that one forward and backward of a layer take.
uint32_t CallIdsOf(const LayerSpec& spec);

/// One tensor that a LayerSaved holds, for hashing, offload and checkpoints. `tensor` points into
/// the LayerSaved.
struct SavedPart {
  std::string name;  ///< "weight.columnwise_data", "x.original".
  Tensor* tensor;
};

/// One operand that a LayerSaved holds: the tensors that count as saved
/// (KeptOperand::SavedTensors).
struct HeldOperand {
  std::string name;    ///< SavedOperand::name.
  std::string format;  ///< SavedOperand::format.
  std::vector<SavedTensor> tensors;
};

/// What forward keeps for backward, or backward for a deferred wgrad: operands, the step's options
/// and shapes. May be held for any time, beside others of the same layer.
class LayerSaved {
 public:
  virtual ~LayerSaved() = default;
  virtual const StepOptions& options() const = 0;
  /// Every tensor that it holds. The same step always gives the same names in the same order.
  virtual std::vector<SavedPart> parts() = 0;
  virtual std::vector<HeldOperand> operands() const = 0;
  virtual int64_t bytes() const = 0;
  /// A copy that shares the tensors.
  virtual std::unique_ptr<LayerSaved> Clone() const = 0;
};

struct ForwardResult {
  Tensor y;
  Tensor norm_out;                    ///< LayerSpec::return_norm_output.
  std::unique_ptr<LayerSaved> saved;  ///< Null where grad is not enabled.
  /// As LayerResult::intermediates.
  std::vector<NamedTensor> intermediates;
};

struct BackwardResult {
  Tensor dx;                           ///< Absent if x requires no gradient.
  std::vector<NamedTensor> gradients;  ///< "dw", "db", ... without those that went to main_grads.
  /// What BackwardWgrad takes under StepOptions::defer_wgrad. Null if there is nothing to do.
  std::unique_ptr<LayerSaved> deferred;
  std::vector<NamedTensor> intermediates;
};

/// Forward of a layer whose tensors CheckLayer accepts. Changes state.workspaces, and the histories
/// in state.delayed: amaxes are noted, scales are left to UpdateScales. A quantized parameter that
/// lacks a direction which this step needs gets that direction if its format allows (UpdateUsages);
/// else FAILED_PRECONDITION naming parameter, direction and rule.
absl::StatusOr<ForwardResult> ForwardLayer(StepRecorder& recorder, const LayerSpec& spec,
                                           LayerState& state, const StepOperand& x,
                                           const StepOptions& options);

/// Backward of the forward that gave `saved`. Changes state.main_grads, and grad_output's histories
/// in state.delayed. INVALID_ARGUMENT naming grad_output if its codes are not what the forward's
/// recipe reads.
absl::StatusOr<BackwardResult> BackwardLayer(StepRecorder& recorder, const LayerSpec& spec,
                                             LayerState& state, std::unique_ptr<LayerSaved> saved,
                                             const StepOperand& grad_output);

/// The weights' gradients that a backward deferred, with the bits that they would have had without
/// the delay. Gradients of weights with main gradients are added to state.main_grads instead.
absl::StatusOr<std::vector<NamedTensor>> BackwardWgrad(StepRecorder& recorder,
                                                       const LayerSpec& spec, LayerState& state,
                                                       std::unique_ptr<LayerSaved> deferred);

/// Updates delayed scaling's scales at the end of a forward (of inputs and weights) or of a
/// backward (of grad_outputs). Does nothing under other recipes.
enum class UpdatePoint { kForward, kBackward };
absl::Status UpdateScales(StepRecorder& recorder, const LayerSpec& spec, LayerState& state,
                          const Recipe& recipe, UpdatePoint point);

}  // namespace quantgate
