// Layers composed by hand, in the order of docs/quantizers.md sections 10.5 to 10.10: linear units
// as scenarios expect them (expected_linear.h), and every other step by a call of its CPU function.
#pragma once

#include <map>
#include <string>

#include "kernels/layer/layer.h"

namespace quantgate {

/// The outputs by name, with all gradients; main_grad only for linear layers. For the requests of
/// tests/layer/layer_cases.h with fused operations; delayed scaling has the scales of kCaseScales.
std::map<std::string, Tensor> ReferenceOf(const LayerRequest& request, const Recipe& recipe);

}  // namespace quantgate
