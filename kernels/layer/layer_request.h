// Between a LayerRequest or LayerResult and the steps of kernels/layer/layer_step.h: what a step is
// given, and how its result is put together.
#pragma once

#include "kernels/layer/layer_plan.h"
#include "kernels/layer/layer_step.h"

namespace quantgate {

// Names whose tensor is absent are left out.
LayerOutline OutlineOf(const LayerRequest& request);
LayerState StateOf(const LayerRequest& request, const Recipe& recipe);
StepOptions OptionsOf(const LayerRequest& request, const Recipe& recipe);
/// The plan of an unchecked request.
inline LayerPlan PlanOf(const LayerRequest& request, const Recipe& recipe) {
  return PlanLayer(request.layer, OutlineOf(request), OptionsOf(request, recipe));
}

/// Checks that the codes of a grad_output are what the step of `plan` reads. INVALID_ARGUMENT
/// naming grad_output, the format given and the format wanted, or the operation that reads no
/// codes.
absl::Status CheckGivenGradient(const LayerPlan& plan, const QuantizedTensor& codes);

/// What a step has computed; CollectStep makes the result of it.
struct ComputedLayer {
  LayerPlanPointer plan;
  LayerState state;
  ForwardResult forward;
  BackwardResult backward;  ///< Empty where there is none.
};
/// Does forward and, with a grad_output, backward, with delayed scaling's updates, without waiting
/// for the engine. `plan` must be DecideLayer's of this request, and CheckLayerGemms must accept
/// it.
absl::StatusOr<ComputedLayer> ComputeLayer(StepRecorder& recorder, const LayerRequest& request,
                                           LayerPlanPointer plan, const Recipe& recipe);

/// Puts together the result of a step: outputs, delayed scaling's state and the recorder's records,
/// except for those that StepRecorder::Read waits for. Ends the recording. `backward` is empty if
/// there was none.
LayerResult CollectStep(StepRecorder& recorder, const LayerRequest& request, LayerPlanPointer plan,
                        const LayerState& state, ForwardResult forward, BackwardResult backward);
/// CollectStep, then StepRecorder::Read, for which it waits.
absl::StatusOr<LayerResult> FinishStep(StepRecorder& recorder, const LayerRequest& request,
                                       LayerPlanPointer plan, const LayerState& state,
                                       ForwardResult forward, BackwardResult backward);

/// Whether the step quantizes any grad_output.
bool QuantizesGradients(const LayerPlan& plan);

}  // namespace quantgate
