// A LayerRequest as the steps of kernels/layer/layer_step.h see it.
#pragma once

#include "kernels/layer/layer_plan.h"

namespace quantgate {

/// Of the tensors that are there; no tensor under a name is the same as no such name.
LayerOutline OutlineOf(const LayerRequest& request);
LayerState StateOf(const LayerRequest& request);
StepOptions OptionsOf(const LayerRequest& request, const Recipe& recipe);
inline LayerPlan PlanOf(const LayerRequest& request, const Recipe& recipe) {
  return PlanLayer(request.layer, OutlineOf(request), OptionsOf(request, recipe));
}

/// Some grad_output is quantized.
bool QuantizesGradients(const LayerPlan& plan);

}  // namespace quantgate
