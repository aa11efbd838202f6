// A LayerRequest as the steps of kernels/layer/layer_step.h see it.
#pragma once

#include "kernels/layer/layer_plan.h"
#include "kernels/layer/layer_step.h"

namespace quantgate {

/// Of the tensors that are there; no tensor under a name is the same as no such name.
LayerOutline OutlineOf(const LayerRequest& request);
LayerState StateOf(const LayerRequest& request);
StepOptions OptionsOf(const LayerRequest& request, const Recipe& recipe);
/// Decided by those, and not checked.
inline LayerPlan PlanOf(const LayerRequest& request, const Recipe& recipe) {
  return PlanLayer(request.layer, OutlineOf(request), OptionsOf(request, recipe));
}

/// What a step has computed, from which its result is put together.
struct ComputedLayer {
  LayerPlanPointer plan;
  LayerState state;
  ForwardResult forward;
  BackwardResult backward;  ///< Empty where there is none.
};
/// Forward, and with a grad_output backward, of a request that was decided and that CheckLayerGemms
/// accepts, with delayed scaling's updates. Waits for nothing.
absl::StatusOr<ComputedLayer> ComputeLayer(StepRecorder& recorder, const LayerRequest& request,
                                           LayerPlanPointer plan, const Recipe& recipe);

/// A step that RunLayer, or its like over ranks, has done: outputs, delayed scaling's state and
/// what the recorder noted, but for what StepRecorder::Read reads. `backward` is empty where there
/// was none.
LayerResult CollectStep(StepRecorder& recorder, const LayerRequest& request, LayerPlanPointer plan,
                        const LayerState& state, ForwardResult forward, BackwardResult backward);
/// The same with that, for which it waits.
absl::StatusOr<LayerResult> FinishStep(StepRecorder& recorder, const LayerRequest& request,
                                       LayerPlanPointer plan, const LayerState& state,
                                       ForwardResult forward, BackwardResult backward);

/// Some grad_output is quantized.
bool QuantizesGradients(const LayerPlan& plan);

}  // namespace quantgate
