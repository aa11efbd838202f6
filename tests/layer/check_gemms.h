// CheckLayerGemms of a request that CheckLayer accepts.
#pragma once

#include "kernels/base/status_macros.h"
#include "kernels/layer/layer.h"

namespace quantgate {

inline absl::Status CheckGemmsOf(const LayerRequest& request, const Recipe& recipe,
                                 const Arithmetic& arithmetic) {
  QG_ASSIGN_OR_RETURN(const LayerPlanPointer plan, DecideLayer(request, recipe));
  return CheckLayerGemms(request.layer, *plan, recipe, arithmetic);
}

}  // namespace quantgate
