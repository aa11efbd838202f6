// A block scale as a factor of a fused step, by the significand and exponent of the scale's format.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/base/host_device.h"
#include "kernels/numerics/cast.h"
#include "kernels/numerics/e8m0.h"
#include "kernels/numerics/fused_rule.h"

namespace quantgate {

QG_HOST_DEVICE constexpr FusedElement E8m0ScaleElement(uint8_t code) {
  if (code == kE8m0Nan) return {0, 0, FloatClass::kNan, false};
  return {1, static_cast<int16_t>(code - 127), FloatClass::kFinite, false};
}

/// The factor of an E4M3 scale code, whose sign is ignored.
QG_HOST_DEVICE constexpr FusedElement E4m3ScaleElement(uint8_t code) {
  return UnpackElement<E4M3>(code & 0x7F);
}
QG_HOST_DEVICE constexpr float E4m3ScaleValue(uint8_t code) {
  return DecodeFloat<E4M3>(code & 0x7F);
}

/// Whether an fp32 scale is a number of E8M0: a power of two from 2^-127 to 2^127.
QG_HOST_DEVICE constexpr bool IsE8m0Number(float scale) {
  uint8_t code = 0;
  return ExactE8m0(std::bit_cast<uint32_t>(scale), code) && code != kE8m0Nan;
}

/// The factor of an fp32 scale by its bits. The scale must be a power of two of at least 2^-127,
/// which CheckGemm ensures.
QG_HOST_DEVICE constexpr FusedElement PowerOfTwoScaleElement(uint32_t bits) {
  return {1, static_cast<int16_t>(static_cast<int>(bits >> 23) - 127), FloatClass::kFinite, false};
}

}  // namespace quantgate
