// EncodeFloat to the 16-bit formats, to nearest even, without branches, so that compilers vectorise
// loops over it. Tests compare each with EncodeFloat and with the compiler's conversion.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/numerics/cast.h"

namespace quantgate {

/// EncodeFloat<F>(value) for F of 16 and 32 bits; under round to nearest with subnormals kept
/// (ScopedIeeeEnvironment).
template <class F>
inline typename F::Storage EncodeBranchFree(float value);

template <>
inline uint32_t EncodeBranchFree<Float32>(float value) {
  return std::bit_cast<uint32_t>(CanonicalFloat(value));
}

/// Adding just under half, or half when the kept part is odd, carries exactly when the dropped half
/// rounds up. A NaN would carry out of its all-ones mantissa and is replaced.
template <>
inline uint16_t EncodeBranchFree<BFloat16>(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  return static_cast<uint16_t>((bits & 0x7FFFFFFF) > 0x7F800000 ? BFloat16::kCanonicalNan
                                                                : rounded);
}

/// As for bf16 where the result is normal, the exponent field moved by the biases' difference; what
/// lies beyond the largest value is clamped to infinity. Below 2^-14 the addition of 0.5, whose
/// last bit is 2^-24, rounds at the quantum of subnormals and leaves the code in the low bits.
template <>
inline uint16_t EncodeBranchFree<Float16>(float value) {
  constexpr uint32_t kMoved = uint32_t{Float32::kBias - Float16::kBias} << 23;
  constexpr uint32_t kSmallestNormal = kMoved + (1u << 23), kInfinity = 0x7C00;
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  const uint32_t rounded = (magnitude - kMoved + 0xFFF + ((magnitude >> 13) & 1)) >> 13;
  const uint32_t normal = rounded < kInfinity ? rounded : kInfinity;
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) -
                             std::bit_cast<uint32_t>(0.5f);
  const uint32_t code = magnitude < kSmallestNormal ? subnormal : normal;
  return static_cast<uint16_t>(magnitude > 0x7F800000 ? Float16::kCanonicalNan
                                                      : code | (bits >> 31 << 15));
}

}  // namespace quantgate
