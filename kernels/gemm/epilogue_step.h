// The steps of the epilogue for one output (the table of docs/tensor-cores.md section 3.3), which
// the CPU engine's loops over rows and the CUDA engine's kernels share.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/base/host_device.h"
#include "kernels/numerics/float_format.h"

namespace quantgate {

/// How alpha, beta and c are combined, with s the scaled accumulator, k the coefficient and rnd the
/// rounding to the output type. Measured on an H200 (tests/data/golden_gemm_epilogue_*,
/// golden_gemm_splitk).
enum class Combination : uint8_t {
  /// fma(s, k, f32(beta * c)) + bias; without c the addend is +0, so that a zero product is +0 (but
  /// see KeepsNegativeZero).
  kFused,
  /// beta = 1 and c is the memory of d: rnd(s * k + bias) + c, rounded again.
  kInPlace,
  /// After split-K, in place or not: fma(beta, c, s * k) + bias, or s * k + bias without c.
  kSplitK,
};

namespace epilogue_steps {

/// alpha times the scales (or the amaxes of nv16) of both sides, that of the N side first.
QG_HOST_DEVICE constexpr float Coefficient(float alpha, float scale_n, float scale_m) {
  const float with_n = alpha * scale_n;
  return with_n * scale_m;
}

/// An accumulator times its outer-vector scales, that of the column first.
QG_HOST_DEVICE constexpr float ScaleByVectors(float value, float column_scale, float row_scale) {
  const float by_column = value * column_scale;
  return by_column * row_scale;
}

/// fma(value, coefficient, +0): the rounded product, but +0 where the product is exactly zero.
/// Always adds a zero, of the sign that changes nothing where the product is not zero, so that
/// compilers vectorise it.
QG_HOST_DEVICE constexpr float ProductPlusZero(float value, float coefficient) {
  const float of_nonzero = coefficient == 0 ? 0.0f : -0.0f;
  return value * coefficient + (value == 0 ? 0.0f : of_nonzero);
}

/// The combination of a value without c.
QG_HOST_DEVICE constexpr float Product(float value, float coefficient, bool keeps_negative_zero) {
  return keeps_negative_zero ? value * coefficient : ProductPlusZero(value, coefficient);
}

QG_HOST_DEVICE inline float CombineFused(float value, float coefficient, float beta, float c) {
  const float addend = beta * c;
  return std::fma(value, coefficient, addend);
}

QG_HOST_DEVICE inline float CombineSplitK(float value, float coefficient, float beta, float c) {
  const float product = value * coefficient;
  return std::fma(beta, c, product);
}

/// The bits of |value|, whose maximum as unsigned numbers is that of the values; NaN is above all
/// others.
QG_HOST_DEVICE constexpr uint32_t MagnitudeBits(float value) {
  const uint32_t magnitude = std::bit_cast<uint32_t>(value) & 0x7FFFFFFFu;
  return magnitude > 0x7F800000u ? uint32_t(Float32::kCanonicalNan) : magnitude;
}

/// What a value contributes to the reported amax of an FP8 output: NaN is above all numbers, except
/// after split-K, where it counts as 0.
QG_HOST_DEVICE constexpr uint32_t AmaxBits(float value, Combination combination) {
  const uint32_t magnitude = MagnitudeBits(value);
  return combination == Combination::kSplitK && magnitude > 0x7F800000u ? 0 : magnitude;
}

/// EncodeFloat<BFloat16>, restated so that compilers vectorise it: rounds to nearest even by adding
/// 0x7FFF plus the lowest kept bit. NaN is replaced afterwards, since the addition may carry its
/// mantissa away.
QG_HOST_DEVICE constexpr uint16_t EncodeBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const bool nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
  return static_cast<uint16_t>(nan ? BFloat16::kCanonicalNan : rounded);
}

}  // namespace epilogue_steps
}  // namespace quantgate
