// Sums over ranks: what one should be, and how far its additions may take it from there
// (docs/ranks.md section 5).
#pragma once

#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/comm/reduction_profile.h"
#include "kernels/gemm/bound/error_bound.h"
#include "kernels/validate/reference/exact_values.h"

namespace quantgate {

/// One tensor that ranks made together. Everything in host memory.
struct RankSum {
  std::span<const Tensor> parts;  ///< In rank order, of one shape: f32, bf16 or f16.
  Tensor bias;  ///< [columns], of the parts' dtype: added to every row after the sum. Absent: none.
  ReductionProfile profile;
};

/// What the sum of `exact` (f32, each part's own exact value rounded once) and the bias is, added
/// in fp64 and rounded once to f32 and to `dtype`. The note says so.
absl::StatusOr<ExactValues::Value> ExactRankSum(const RankSum& exact, DType dtype,
                                                const Cancellation* cancellation);

/// Whether `sum` lies within what the additions alone may do to the parts that were added:
///
///   in fp32        |s - sum p_r| <= u |s| + g_{N-1}(2^-24) sum |p_r|
///   in the dtype   |s - sum p_r| <= ((1 + u)^(N-1) - 1) sum |p_r|
///   the bias       + (u + 2^-24 (1 + u)) |s + b|
///
/// with u half an ulp of 1 of the parts' dtype. A profile without a known order (nccl) adds at most
/// N - 1 roundings in the dtype to any part. Sums of parts of one dtype are multiples of its least
/// subnormal, so that nothing is added for underflow. NaN passes where the parts make one, an
/// infinity where the sum of the magnitudes comes within the bound of overflow.
absl::StatusOr<BoundCheck> CheckRankSum(const RankSum& added, const Tensor& sum,
                                        const Cancellation* cancellation);

}  // namespace quantgate
