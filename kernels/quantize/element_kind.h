// What became of an element in quantization, by the definition of QuantizationCounts: on the CPU
// and in kernels. Private to kernels/quantize.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/base/host_device.h"
#include "kernels/numerics/cast.h"
#include "kernels/numerics/scale_rule.h"

namespace quantgate {

/// Smallest fp32 magnitude that rounds beyond the largest finite code: to nearest even above the
/// midpoint, or at it when that code is odd; away from zero at it; stochastically (E2M1), of
/// AddRandomPart, at what would be the next code.
template <class F>
QG_HOST_DEVICE constexpr uint32_t FirstBeyondBits(
    ElementRounding rounding = ElementRounding::kNearestEven) {
  constexpr uint32_t kMax = std::bit_cast<uint32_t>(MaxFinite<F>());
  constexpr uint32_t kHalfUlp = 1u << (22 - F::kMantissaBits);
  if (rounding == ElementRounding::kStochastic) return kMax + 2 * kHalfUlp;
  if (rounding == ElementRounding::kNearestAway) return kMax + kHalfUlp;
  return kMax + kHalfUlp + (FormatConstants<F>::kMaxFinite % 2 == 0 ? 1 : 0);
}
static_assert(FirstBeyondBits<E5M2>() == std::bit_cast<uint32_t>(61440.0f));
static_assert(FirstBeyondBits<E2M1>() == std::bit_cast<uint32_t>(7.0f));
static_assert(FirstBeyondBits<E2M1>(ElementRounding::kStochastic) == std::bit_cast<uint32_t>(8.0f));

/// In the order of QuantizationCounts.
enum class ElementKind { kNormal, kZero, kSubnormal, kFlushedToZero, kSaturated, kInfinite, kNan };

/// `scaled` is what was cast to `code`; stochastically, AddRandomPart of it.
template <class F>
QG_HOST_DEVICE constexpr ElementKind KindOfElement(FloatClass source, float scaled, uint8_t code,
                                                   ElementRounding rounding) {
  using C = FormatConstants<F>;
  const uint32_t magnitude = code & (C::kSignMask - 1u);
  if (source == FloatClass::kNan) return ElementKind::kNan;
  if (source == FloatClass::kInfinite) return ElementKind::kInfinite;
  if (source == FloatClass::kZero) return ElementKind::kZero;
  if (magnitude == 0) return ElementKind::kFlushedToZero;
  if (magnitude <= C::kMantissaMask) return ElementKind::kSubnormal;
  const bool is_beyond =
      (std::bit_cast<uint32_t>(scaled) & 0x7FFFFFFF) >= FirstBeyondBits<F>(rounding);
  return is_beyond ? ElementKind::kSaturated : ElementKind::kNormal;
}

}  // namespace quantgate
