// Activation functions of MLPs, forward and backward (docs/quantizers.md section 10.6): f32, bf16
// and f16 tensors, computed in fp32 as kernels/numerics/activation.h has it, rounded once to
// nearest even in `out`. With f32 as `out` the values are unrounded, for a quantizer that follows
// at once.
//
// h is [..., F], or [..., 2 F] for a gated kind: the first half of the last dim is activated, the
// second half is the gate.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/numerics/activation.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

/// "gelu", "swiglu".
std::string_view ActivationKindName(ActivationKind kind);
/// INVALID_ARGUMENT naming the value and the known names.
absl::StatusOr<ActivationKind> ParseActivationKind(std::string_view name);
/// "canonical", "fp32_sigmoid", "jit_gelu".
std::string_view ActivationVariantName(ActivationVariant variant);
absl::StatusOr<ActivationVariant> ParseActivationVariant(std::string_view name);

/// The shape of the output for an h of this shape: [..., F].
Shape ActivationOutputShape(const Shape& h, ActivationKind kind);

/// What the functions below and their device versions refuse: INVALID_ARGUMENT naming field, value
/// and rule.
absl::Status CheckActivationForward(const Tensor& h, const ActivationOptions& options, DType out);
absl::Status CheckActivationBackward(const Tensor& dy, const Tensor& h,
                                     const ActivationOptions& options, DType out);

/// [..., F] of `out`.
absl::StatusOr<Tensor> ActivationForwardCpu(const Tensor& h, const ActivationOptions& options,
                                            DType out, const ExecutionContext& context);
/// dh of h's shape, of `out`; dy is [..., F].
absl::StatusOr<Tensor> ActivationBackwardCpu(const Tensor& dy, const Tensor& h,
                                             const ActivationOptions& options, DType out,
                                             const ExecutionContext& context);

}  // namespace quantgate
