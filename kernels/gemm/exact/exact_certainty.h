// What the certification of the exact GEMM's fp64 results rests on, and what its note says; the
// same for both engines.
#pragma once

#include <cstdint>
#include <string>

namespace quantgate {

/// Bits of an fp64 significand: sums below this many units of their lowest bit are exact.
inline constexpr int kExactFastBits = 53;

/// |fl(s) - s| <= this * ||a|| * ||b|| of a dot product of length k by MultiplyTile.
double ExactRelativeError(int64_t k);

/// Covers what a row's sum of k squares loses: the norm is the root of the sum times this.
double ExactNormInflation(int64_t k);

struct ExactWays {
  /// The largest norm / lowest bit of a row, one factor for each operand.
  double largest_ratio = 0;
  int64_t outputs = 0;
  int64_t wide_dots = 0;
  int64_t wide_epilogues = 0;
};
/// GemmResult::note.
std::string ExactNote(const ExactWays& ways);

}  // namespace quantgate
