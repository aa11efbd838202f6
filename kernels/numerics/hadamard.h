// The random Hadamard transform of 16 bf16 values as tensor cores compute it (docs/quantizers.md
// section 6.4): y = g diag(d) H / 4, every y one fused step of F = 25, rounded to bf16.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/base/host_device.h"
#include "kernels/numerics/cast.h"
#include "kernels/numerics/fused_step.h"

namespace quantgate {

inline constexpr int kHadamardLength = 16;

/// Bit i is set where d[i] = -1.
inline constexpr uint32_t kHadamardSigns = 0xD7E8;

/// True where entry (i, j) of diag(d) H is -1.
QG_HOST_DEVICE constexpr bool IsHadamardNegative(int i, int j) {
  return (((kHadamardSigns >> i) & 1) ^ (std::popcount(static_cast<uint32_t>(i & j)) & 1)) != 0;
}

namespace hadamard_steps {

/// The outputs of a group that has infinities or NaN.
QG_HOST_DEVICE constexpr void TransformSpecials(const uint16_t* g, uint16_t* y) {
  for (int j = 0; j < kHadamardLength; ++j) {
    bool nan = false, positive = false, negative = false;
    for (int i = 0; i < kHadamardLength; ++i) {
      const Unpacked u = Unpack<BFloat16>(g[i]);
      nan |= u.kind == FloatClass::kNan;
      if (u.kind != FloatClass::kInfinite) continue;
      (u.negative != IsHadamardNegative(i, j) ? negative : positive) = true;
    }
    y[j] = nan || (positive && negative) ? BFloat16::kCanonicalNan : negative ? 0xFF80 : 0x7F80;
  }
}

}  // namespace hadamard_steps

/// All 16 fused steps at once. Every product of a group has the exponent of its input less 2
/// whatever j, so that inputs can be aligned and truncated once; the sums are those of a
/// Walsh-Hadamard transform of integers below 2^26, each below 2^30.
QG_HOST_DEVICE constexpr void HadamardTransform(const uint16_t* g, uint16_t* y) {
  constexpr int kFraction = 2 * BFloat16::kMantissaBits;  // Fraction bits of a product.
  int exponent_max = FormatConstants<BFloat16>::kExponentMin;
  for (int i = 0; i < kHadamardLength; ++i) {
    const Unpacked u = Unpack<BFloat16>(g[i]);
    if (u.kind == FloatClass::kInfinite || u.kind == FloatClass::kNan) {
      hadamard_steps::TransformSpecials(g, y);
      return;
    }
    if (u.kind == FloatClass::kFinite && u.exponent > exponent_max) exponent_max = u.exponent;
  }
  int32_t sums[kHadamardLength] = {};
  for (int i = 0; i < kHadamardLength; ++i) {
    const Unpacked u = Unpack<BFloat16>(g[i]);
    if (u.kind == FloatClass::kZero) continue;
    const int shift = Wgmma16Bit::kAlignBits - kFraction - (exponent_max - u.exponent);
    const auto q = static_cast<int32_t>(
        ShiftTruncating(uint64_t(u.significand) << BFloat16::kMantissaBits, shift));
    sums[i] = u.negative != IsHadamardNegative(i, 0) ? -q : q;
  }
  for (int distance = 1; distance < kHadamardLength; distance *= 2) {
    for (int i = 0; i < kHadamardLength; ++i) {
      if (i & distance) continue;
      const int32_t low = sums[i], high = sums[i + distance];
      sums[i] = low + high;
      sums[i + distance] = low - high;
    }
  }
  for (int j = 0; j < kHadamardLength; ++j) {
    const uint32_t bits = TruncateToFloat32(sums[j], exponent_max - 2 - Wgmma16Bit::kAlignBits,
                                            Wgmma16Bit::kOutMantissa);
    y[j] = EncodeFloat<BFloat16>(std::bit_cast<float>(bits));
  }
}

}  // namespace quantgate
