// The exact oracle: every output is the correctly rounded value of the real-number GEMM
// (docs/tensor-cores.md section 5), so it does not depend on the order of anything.
#pragma once

#include "absl/status/statusor.h"
#include "kernels/gemm/gemm.h"

namespace quantgate {

/// d = round(alpha * scale_a * scale_b * sum_k a*b + beta * c + bias) with all of it in exact
/// arithmetic (block scales and the rational global scales of nv16 too) and one rounding (RNE, to
/// out_dtype directly, never through fp32; FP8 outputs multiply by d_scale before the rounding and
/// saturate). An exact zero is +0. NaN, Inf * 0 and Inf
/// - Inf give the canonical NaN. `result.note` states the bits needed, the bits that the fast path
/// has, and how many outputs took the wide path.
absl::StatusOr<GemmResult> ExactGemm(const GemmDesc& desc, const ExecutionContext& context);

/// sum_k (|a| + floor_a) * (|b| + floor_b) with scales and |alpha| applied, as fp64 [m][n] rounded
/// upwards (within 1e-12 relative): the magnitude that error bounds multiply. floor_x is the
/// smallest normal of the operand's format, which covers subnormals that keep their format's
/// minimum exponent in a fused step; under block scales (|a| + floor_a) * (|scale| + floor of the
/// scale's format), and for fp32 + 2^-126. Zero operands count as zero.
absl::StatusOr<Tensor> AbsoluteGemm(const GemmDesc& desc, const ExecutionContext& context);

}  // namespace quantgate
