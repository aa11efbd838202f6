// The epilogue of one output, step by step (the table of docs/tensor-cores.md section 3.3): what
// the rows of the CPU engine and the kernels of the CUDA engine do to each element.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/base/host_device.h"
#include "kernels/numerics/float_format.h"

namespace quantgate {

/// How alpha, beta and c meet, with s the scaled accumulator, k the coefficient and rnd the
/// rounding to the output type. Measured on an H200 (tests/data/golden_gemm_epilogue_*,
/// golden_gemm_splitk).
enum class Combination : uint8_t {
  kFused,  ///< fma(s, k, f32(beta * c)) + bias; without c the addend is +0, so that a zero product
           ///< is +0 (but see KeepsNegativeZero).
  kInPlace,  ///< beta = 1 and c is the memory of d: rnd(s * k + bias) + c, rounded again.
  kSplitK,  ///< After split-K, in place or not: fma(beta, c, s * k) + bias, or s * k + bias without
            ///< c.
};

namespace epilogue_steps {

/// alpha under the scales (or the amaxes of nv16) of both sides: that of N joins first.
QG_HOST_DEVICE constexpr float Coefficient(float alpha, float scale_n, float scale_m) {
  const float with_n = alpha * scale_n;
  return with_n * scale_m;
}

/// An accumulator under outer-vector scales.
QG_HOST_DEVICE constexpr float ScaleByVectors(float value, float column_scale, float row_scale) {
  const float by_column = value * column_scale;
  return by_column * row_scale;
}

/// fma(value, coefficient, +0): the rounded product, but +0 where the product is exactly zero. An
/// addition either way, elsewhere of the zero that changes nothing, so that compilers vectorise it.
QG_HOST_DEVICE constexpr float ProductPlusZero(float value, float coefficient) {
  const float of_nonzero = coefficient == 0 ? 0.0f : -0.0f;
  return value * coefficient + (value == 0 ? 0.0f : of_nonzero);
}

/// What becomes of a value without c.
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

/// |value| as bits, for a running maximum of unsigned numbers: NaN is above all others.
QG_HOST_DEVICE constexpr uint32_t MagnitudeBits(float value) {
  const uint32_t magnitude = std::bit_cast<uint32_t>(value) & 0x7FFFFFFFu;
  return magnitude > 0x7F800000u ? uint32_t(Float32::kCanonicalNan) : magnitude;
}

/// What a value counts in the reported amax of an FP8 output: NaN is above all numbers, but after
/// split-K nothing.
QG_HOST_DEVICE constexpr uint32_t AmaxBits(float value, Combination combination) {
  const uint32_t magnitude = MagnitudeBits(value);
  return combination == Combination::kSplitK && magnitude > 0x7F800000u ? 0 : magnitude;
}

/// EncodeFloat<BFloat16>, restated so that compilers vectorise it: round to nearest even by adding
/// 0x7FFF plus the lowest kept bit; NaN is replaced afterwards, since the addition may carry its
/// mantissa away.
QG_HOST_DEVICE constexpr uint16_t EncodeBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const bool nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
  return static_cast<uint16_t>(nan ? BFloat16::kCanonicalNan : rounded);
}

}  // namespace epilogue_steps
}  // namespace quantgate
