// A layer's forward and backward as steps of their own, for training: what forward leaves for
// backward is a value that the caller keeps, so several microbatches can be on their way, and what
// training keeps between steps is a LayerState.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/layer/layer.h"
#include "kernels/layer/layer_state.h"

namespace quantgate {

/// Call ids that one forward and backward of a layer take.
uint32_t CallIdsOf(const LayerSpec& spec);

/// One tensor that forward saved for backward, for hashing, offload and checkpoints. The pointers
/// are into the LayerSaved that gave it.
struct SavedPart {
  std::string name;  ///< "weight.columnwise_data", "x.original".
  Tensor* tensor;
};

/// What forward left for backward, or backward for a deferred wgrad: operands, the step's options,
/// shapes. Movable; may be kept for any time, beside others of the same layer.
class LayerSaved {
 public:
  virtual ~LayerSaved() = default;
  virtual const StepOptions& options() const = 0;
  /// Every tensor that is held, in an order and under names that are the same for the same step.
  virtual std::vector<SavedPart> parts() = 0;
  virtual int64_t bytes() const = 0;
  /// Shares the tensors.
  virtual std::unique_ptr<LayerSaved> Clone() const = 0;
};

struct ForwardResult {
  Tensor y;
  Tensor norm_out;                    ///< LayerSpec::return_norm_output.
  std::unique_ptr<LayerSaved> saved;  ///< Null where grad is not enabled.
  /// What one operation gave the next: LayerResult::intermediates.
  std::vector<NamedTensor> intermediates;
};

struct BackwardResult {
  Tensor dx;                           ///< Absent where x requires none.
  std::vector<NamedTensor> gradients;  ///< "dw", "db", ... without those that went to main_grads.
  /// StepOptions::defer_wgrad: what BackwardWgrad takes. Null where there is nothing to do.
  std::unique_ptr<LayerSaved> deferred;
  std::vector<NamedTensor> intermediates;
};

/// Forward of a layer whose tensors CheckLayer accepts. Changes state.workspaces, and of
/// state.delayed the histories (amax noted, scales not updated: UpdateScales). A quantized
/// parameter that lacks a direction which this step needs gets it where its format allows
/// (UpdateUsages), else FAILED_PRECONDITION naming parameter, direction and rule.
absl::StatusOr<ForwardResult> ForwardLayer(StepRecorder& recorder, const LayerSpec& spec,
                                           LayerState& state, const Tensor& x,
                                           const StepOptions& options);

/// Backward of that forward. Changes state.main_grads, and of state.delayed grad_output's
/// histories. `saved` is used up.
absl::StatusOr<BackwardResult> BackwardLayer(StepRecorder& recorder, const LayerSpec& spec,
                                             LayerState& state, std::unique_ptr<LayerSaved> saved,
                                             const Tensor& grad_output);

/// The weights' gradients that a backward deferred, with the bits that they would have had then;
/// those of weights with main gradients go there. `deferred` is used up.
absl::StatusOr<std::vector<NamedTensor>> BackwardWgrad(StepRecorder& recorder,
                                                       const LayerSpec& spec, LayerState& state,
                                                       std::unique_ptr<LayerSaved> deferred);

/// Delayed scaling's update at the end of a forward (inputs and weights) or of a backward
/// (grad_outputs); nothing under other recipes.
enum class UpdatePoint { kForward, kBackward };
absl::Status UpdateScales(StepRecorder& recorder, const LayerSpec& spec, LayerState& state,
                          const Recipe& recipe, UpdatePoint point);

}  // namespace quantgate
