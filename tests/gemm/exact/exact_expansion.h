// Exact sums of fp64 numbers as expansions of non-overlapping parts (Shewchuk, "Adaptive Precision
// Floating-Point Arithmetic", 1997): a judge of correct rounding that shares nothing with wide
// integers.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/numerics/cast.h"

namespace quantgate {

class Expansion {
 public:
  /// Adds a number exactly (GROW-EXPANSION, zero parts left out).
  void Add(double x) {
    size_t kept = 0;
    for (const double part : parts_) {
      const double sum = x + part;
      const double virtual_part = sum - x;
      const double error = (x - (sum - virtual_part)) + (part - virtual_part);
      if (error != 0) parts_[kept++] = error;
      x = sum;
    }
    parts_.resize(kept);
    if (x != 0) parts_.push_back(x);
  }
  /// Sign of the sum: that of its largest part.
  int Sign() const { return parts_.empty() ? 0 : parts_.back() > 0 ? 1 : -1; }
  int SignMinus(double x) const {
    Expansion difference = *this;
    difference.Add(-x);
    return difference.Sign();
  }

 private:
  std::vector<double> parts_;
};

/// Whether `code` is `sum` rounded to nearest even in format F; FP8 saturates, the others overflow
/// to infinity.
template <class F>
bool IsCorrectlyRounded(const Expansion& sum, typename F::Storage code) {
  using C = FormatConstants<F>;
  const auto magnitude = static_cast<typename F::Storage>(code & ~C::kSignMask);
  const bool negative = (code & C::kSignMask) != 0;
  if (sum.Sign() == 0) return code == 0;
  if (negative != (sum.Sign() < 0)) return false;
  const auto value = [&](uint32_t m) {
    return static_cast<double>(DecodeFloat<F>(static_cast<typename F::Storage>(m)));
  };
  // The magnitudes that round to this code lie between the midpoints to its neighbours, which
  // belong to it when it is even. Past the largest finite value the next one would be an ulp
  // further.
  const auto next = [&](uint32_t m) {
    return m < C::kMaxFinite ? value(m + 1) : 2 * value(m) - value(m - 1);
  };
  if (magnitude > C::kMaxFinite + 1 || (C::kBits == 8 && magnitude > C::kMaxFinite)) return false;
  const bool even = magnitude % 2 == 0;
  const double sign = negative ? -1 : 1;
  if (magnitude > 0) {
    const double below = (value(magnitude - 1) + next(magnitude - 1)) / 2;
    const int side = sum.SignMinus(sign * below) * (negative ? -1 : 1);
    if (side < 0 || (side == 0 && !even)) return false;
  }
  const bool unbounded = magnitude > C::kMaxFinite || (C::kBits == 8 && magnitude == C::kMaxFinite);
  if (unbounded) return true;
  const double above = (value(magnitude) + next(magnitude)) / 2;
  const int side = sum.SignMinus(sign * above) * (negative ? -1 : 1);
  return side < 0 || (side == 0 && even);
}

}  // namespace quantgate
