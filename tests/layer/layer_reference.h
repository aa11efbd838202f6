// Layers composed by hand, in the order of docs/quantizers.md sections 10.5 to 10.10: linear units
// as scenarios expect them (expected_linear.h), any other step a call of the CPU function that does
// it.
#pragma once

#include <map>
#include <string>

#include "kernels/layer/layer.h"

namespace quantgate {

/// Outputs by name, all gradients; main_grad of linear layers alone. For the requests of
/// tests/layer/layer_cases.h with fused operations; delayed scaling with the scales of kCaseScales.
std::map<std::string, Tensor> ReferenceOf(const LayerRequest& request, const Recipe& recipe);

}  // namespace quantgate
