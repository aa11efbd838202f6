// Activation functions and their gradients in fp64 with the bound of their fp32 evaluation
// (docs/quantizers.md section 10.6): the formulas of kernels/numerics/activation.h, operation by
// operation, over RunningError.
#pragma once

#include <span>

#include "kernels/numerics/activation.h"
#include "kernels/validate/reference/running_error.h"

namespace quantgate {

/// One row: h of F elements, or 2 F of a gated kind; out of F.
void ActivationReference(const ActivationOptions& options, std::span<const float> h,
                         std::span<RunningError> out);
/// One row: dy of F elements, out of h's.
void ActivationGradientReference(const ActivationOptions& options, std::span<const float> h,
                                 std::span<const float> dy, std::span<RunningError> out);

}  // namespace quantgate
