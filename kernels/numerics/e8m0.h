// E8M0 scales: the codes of 2^(code - 127), how each rule gets a code from the amax of a block, and
// the factor of the elements (docs/quantizers.md sections 1.3 and 5).
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/base/host_device.h"
#include "kernels/numerics/scale_rule.h"

namespace quantgate {

inline constexpr uint8_t kE8m0Nan = 0xFF;

/// The code of value >= 0, rounded up. Infinity and values above 2^127 saturate at 0xFE; NaN is
/// 0xFF.
QG_HOST_DEVICE constexpr uint8_t EncodeE8m0Up(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value) & 0x7FFFFFFF;
  if (bits > 0x7F800000) return kE8m0Nan;
  const uint32_t exponent = bits >> 23, mantissa = bits & 0x7FFFFF;
  if (exponent >= 0xFE) return 0xFE;
  // A subnormal up to 2^-127 is code 0, above that code 1.
  const bool up = exponent == 0 ? mantissa > 0x400000 : mantissa > 0;
  return static_cast<uint8_t>(exponent + (up ? 1 : 0));
}

/// 2^(code - 127); 0xFF is NaN.
QG_HOST_DEVICE constexpr float DecodeE8m0(uint8_t code) {
  if (code == kE8m0Nan) return std::bit_cast<float>(uint32_t(Float32::kCanonicalNan));
  return std::bit_cast<float>(code == 0 ? 0x00400000u : uint32_t(code) << 23);
}

/// The code of the fp32 number with these bits; false where it is none of E8M0's: 2^-127 to 2^127,
/// and NaN of either sign.
QG_HOST_DEVICE constexpr bool ExactE8m0(uint32_t bits, uint8_t& code) {
  if ((bits & 0x7FFFFFFF) > 0x7F800000) {
    code = kE8m0Nan;
    return true;
  }
  code = static_cast<uint8_t>(bits >> 23);
  const bool is_normal = bits >= 0x00800000 && bits < 0x7F800000;
  return (is_normal && (bits & 0x7FFFFF) == 0) || bits == 0x00400000;
}

/// 2^(127 - code), the factor of the elements on quantization; 0xFF is NaN.
QG_HOST_DEVICE constexpr float E8m0Multiplier(uint8_t code) {
  return DecodeE8m0(code == kE8m0Nan ? kE8m0Nan : static_cast<uint8_t>(254 - code));
}

/// floor(log2(largest finite value)) of an element format.
template <class F>
inline constexpr int kMaxFiniteExponent = Unpack<F>(FormatConstants<F>::kMaxFinite).exponent;

/// Whether a NaN element makes the amax of the block NaN under `rule`; other rules ignore NaN.
QG_HOST_DEVICE constexpr bool PropagatesNan(ScaleRule rule) {
  return rule == ScaleRule::kFloor || rule == ScaleRule::kCeil || rule == ScaleRule::kEven ||
         rule == ScaleRule::kNearest || rule == ScaleRule::kTorchaoRceil ||
         rule == ScaleRule::kTorchaoFloor || rule == ScaleRule::kTorchaoCeil ||
         rule == ScaleRule::kTorchaoEven;
}

/// The scale of a block of elements of format F. Subnormals matter to kRoundUp alone: by the other
/// rules the code of a subnormal amax is 0.
template <class F>
QG_HOST_DEVICE constexpr uint8_t E8m0Scale(float amax, ScaleRule rule,
                                           Subnormals subnormals = Subnormals::kKept) {
  if (!PropagatesNan(rule)) {
    const float scaled = Flushed(amax, subnormals) * (1.0f / MaxFinite<F>());
    return EncodeE8m0Up(Flushed(scaled, subnormals));
  }
  uint32_t bits = std::bit_cast<uint32_t>(amax) & 0x7FFFFFFF;
  if (bits >= 0x7F800000) return kE8m0Nan;
  // Adds half a unit of the last mantissa bit of the elements; a carry out of the mantissa raises
  // the exponent.
  if (rule == ScaleRule::kEven) bits += 1u << (22 - F::kMantissaBits);
  const uint32_t mantissa = bits & 0x7FFFFF;
  int exponent = static_cast<int>(bits >> 23);
  if (exponent == 0xFF) return kE8m0Nan;
  if (rule == ScaleRule::kCeil && mantissa > 0) ++exponent;
  // sqrt(2) lies between mantissas 0x3504F3 and 0x3504F4.
  if (rule == ScaleRule::kNearest && mantissa > 0x3504F3) ++exponent;
  const int code = exponent - kMaxFiniteExponent<F>;
  return static_cast<uint8_t>(code < 0 ? 0 : code);
}

}  // namespace quantgate
