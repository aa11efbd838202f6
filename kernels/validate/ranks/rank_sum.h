// Sums over ranks: the exact value, and a bound on the errors of the additions (docs/ranks.md
// section 5).
#pragma once

#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/comm/reduction_profile.h"
#include "kernels/gemm/bound/error_bound.h"
#include "kernels/validate/reference/exact_values.h"

namespace quantgate {

/// The addends of one sum over ranks, in host memory.
struct RankSum {
  std::span<const Tensor> parts;  ///< In rank order, of one shape: f32, bf16 or f16.
  Tensor
      bias;  ///< [columns], of the parts' dtype, added to every row after the sum. May be absent.
  ReductionProfile profile;
};

/// The exact value of a sum: the parts of `exact` (f32, each part's own exact value rounded once)
/// and the bias are added in fp64 and rounded once to f32 and to `dtype`, as the note says.
absl::StatusOr<ExactValues::Value> ExactRankSum(const RankSum& exact, DType dtype,
                                                const Cancellation* cancellation);

/// Checks that `sum` differs from the exact sum of the parts by no more than the additions alone
/// permit:
///
///   in fp32        |s - sum p_r| <= u |s| + g_{N-1}(2^-24) sum |p_r|
///   in the dtype   |s - sum p_r| <= ((1 + u)^(N-1) - 1) sum |p_r|
///   the bias       + (u + 2^-24 (1 + u)) |s + b|
///
/// where u is half an ulp of 1 in the parts' dtype. A profile without a known order (nccl) adds at
/// most N - 1 roundings in the dtype to any part. Sums of parts of one dtype are multiples of its
/// least subnormal, so underflow adds nothing. NaN passes where the parts give NaN; an infinity
/// passes where the sum of the magnitudes comes within the bound of overflow.
absl::StatusOr<BoundCheck> CheckRankSum(const RankSum& added, const Tensor& sum,
                                        const Cancellation* cancellation);

}  // namespace quantgate
