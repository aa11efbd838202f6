// Stochastic rounding to E2M1 with eight random bits per element, and the source of the bits
// (docs/quantizers.md sections 1.4 and 6.5).
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/base/host_device.h"
#include "kernels/numerics/cast.h"
#include "kernels/numerics/philox.h"

namespace quantgate {

/// The distance between neighbouring E2M1 values at magnitude a.
QG_HOST_DEVICE constexpr float E2m1Step(float a) {
  return a >= 4.0f ? 2.0f : a >= 2.0f ? 1.0f : 0.5f;
}

/// t of docs/quantizers.md section 1.4: |value| and the random part of a step. Not below a NaN.
QG_HOST_DEVICE constexpr float AddRandomPart(float value, uint8_t random) {
  const float a = std::bit_cast<float>(std::bit_cast<uint32_t>(value) & 0x7FFFFFFF);
  // random / 256 * step is exact, so that this addition is the one rounding.
  return a + static_cast<float>(random) * 0x1p-8f * E2m1Step(a);
}

/// The E2M1 code of `value` rounded up in magnitude where the random byte is large enough.
QG_HOST_DEVICE constexpr uint8_t EncodeE2m1Stochastic(float value, uint8_t random) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return E2M1::kCanonicalNan;
  const uint8_t sign = bits >> 31 ? FormatConstants<E2M1>::kSignMask : 0;
  const float t = AddRandomPart(value, random);
  if (t >= 6.0f) return FormatConstants<E2M1>::kMaxFinite | sign;
  // Below 6 the conversion to an integer is the floor.
  const float step = E2m1Step(t);
  const float q = static_cast<float>(static_cast<int>(t / step)) * step;
  return EncodeFloat<E2M1>(q) | sign;
}

/// Which random bytes one copy of a tensor draws.
struct StochasticStream {
  uint64_t seed = 0;
  uint32_t call_id = 0;
  uint32_t usage = 0;  ///< 0 rowwise, 1 columnwise.
};

/// The 16 bytes of one block of 16: element i takes byte i % 4, from the lowest, of word i / 4.
QG_HOST_DEVICE constexpr PhiloxCounter StochasticBits(const StochasticStream& stream, uint64_t line,
                                                      uint64_t block) {
  return Philox4x32({{uint32_t(block), uint32_t(line), stream.call_id, stream.usage}},
                    {{uint32_t(stream.seed), uint32_t(stream.seed >> 32)}});
}

QG_HOST_DEVICE constexpr uint8_t StochasticByte(const PhiloxCounter& bits, int element) {
  return static_cast<uint8_t>(bits.word[element / 4] >> (8 * (element % 4)));
}

}  // namespace quantgate
