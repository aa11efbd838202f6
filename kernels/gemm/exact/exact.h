// The exact oracle: every output is the correctly rounded value of the real-number GEMM
// (docs/tensor-cores.md section 5), so it does not depend on any order of operations.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/gemm/gemm.h"

namespace quantgate {

/// d = round(alpha * scale_a * scale_b * sum_k a*b + beta * c + bias), all in exact arithmetic
/// (block scales and the rational global scales of nv16 too) with one rounding: RNE directly to
/// out_dtype, never through fp32. FP8 outputs multiply by d_scale before the rounding and saturate.
/// An exact zero is +0. NaN, Inf * 0 and the difference of two infinities give the canonical NaN.
/// `result.note` states the bits needed, the bits that the fast path has, and how many outputs took
/// the wide path.
absl::StatusOr<GemmResult> ExactGemm(const GemmDesc& desc, const ExecutionContext& context);

/// The magnitude that error bounds multiply: sum_k (|a| + floor_a) * (|b| + floor_b) with scales
/// and
/// |alpha| applied, as fp64 [m][n] rounded upwards (within 1e-12 relative). floor_x is the smallest
/// normal number of the operand's format, which covers subnormals, since these keep their format's
/// minimum exponent in a fused step. Under block scales the factor of an element is
/// (|a| + floor_a) * (|scale| + floor of the scale's format), for arithmetic fp32 plus 2^-126. Zero
/// operands count as zero.
absl::StatusOr<Tensor> AbsoluteGemm(const GemmDesc& desc, const ExecutionContext& context);

// What both engines certify the fp64 results of ExactGemm by, and what its note says.

/// Bits of an fp64 significand: sums below 2^53 units of their lowest bit are exact.
inline constexpr int kExactFastBits = 53;

/// Bounds the error of a dot product of length k by MultiplyTile, relative to the norms of its
/// rows: |fl(s) - s| <= ExactRelativeError(k) * ||a|| * ||b||.
double ExactRelativeError(int64_t k);

/// A row's computed 2-norm, the root of its fp64 sum of k squares, times this is an upper bound of
/// the exact norm.
double ExactNormInflation(int64_t k);

/// How the outputs of one GEMM were computed.
struct ExactStatistics {
  /// The product, over the two operands, of the largest norm / lowest bit of a row.
  double largest_ratio = 0;
  int64_t outputs = 0;
  int64_t wide_dots = 0;       ///< Outputs whose dot product was taken in wide integers.
  int64_t wide_epilogues = 0;  ///< Outputs whose epilogue was taken in wide integers.
};

/// GemmResult::note.
std::string ExactNote(const ExactStatistics& statistics);

}  // namespace quantgate
