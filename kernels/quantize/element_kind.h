// The kind of a quantized element, by the definition of QuantizationCounts, on the CPU and in
// kernels. Private to kernels/quantize.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/base/host_device.h"
#include "kernels/numerics/cast.h"
#include "kernels/numerics/level_rule.h"
#include "kernels/numerics/scale_rule.h"

namespace quantgate {

/// The bits of the smallest fp32 magnitude that rounds beyond the largest finite code. To nearest
/// even it lies just above the midpoint to the next code, or at the midpoint when the largest code
/// is odd; ties away from zero put it at the midpoint, ties toward zero above it; under stochastic
/// rounding (E2M1), where AddRandomPart is compared, it is the value that the next code would have.
template <class F>
QG_HOST_DEVICE constexpr uint32_t FirstBeyondBits(
    ElementRounding rounding = ElementRounding::kNearestEven) {
  constexpr uint32_t kMax = std::bit_cast<uint32_t>(MaxFinite<F>());
  constexpr uint32_t kHalfUlp = 1u << (22 - F::kMantissaBits);
  if (rounding == ElementRounding::kStochastic) return kMax + 2 * kHalfUlp;
  if (rounding == ElementRounding::kNearestAway) return kMax + kHalfUlp;
  if (rounding == ElementRounding::kNearestZero) return kMax + kHalfUlp + 1;
  return kMax + kHalfUlp + (FormatConstants<F>::kMaxFinite % 2 == 0 ? 1 : 0);
}
static_assert(FirstBeyondBits<E5M2>() == std::bit_cast<uint32_t>(61440.0f));
static_assert(FirstBeyondBits<E2M1>() == std::bit_cast<uint32_t>(7.0f));
static_assert(FirstBeyondBits<E2M1>(ElementRounding::kStochastic) == std::bit_cast<uint32_t>(8.0f));

/// The kinds in the order of QuantizationCounts.
enum class ElementKind { kNormal, kZero, kSubnormal, kFlushedToZero, kSaturated, kInfinite, kNan };

/// `scaled` is the value that was cast to `code`; under stochastic rounding, AddRandomPart of it.
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

/// The same of a code of a level, which is never a subnormal.
QG_HOST_DEVICE inline ElementKind KindOfLevel(const LevelRule& rule, const LevelScale& scale,
                                              FloatClass source, LevelCode code) {
  if (source == FloatClass::kNan) return ElementKind::kNan;
  if (source == FloatClass::kInfinite) return ElementKind::kInfinite;
  if (source == FloatClass::kZero) return ElementKind::kZero;
  if (code.is_beyond) return ElementKind::kSaturated;
  const float value =
      LevelValue(rule.levels, rule.zero_point, code.code, scale.scale_inv, scale.zero);
  return value == 0.0f ? ElementKind::kFlushedToZero : ElementKind::kNormal;
}

/// The same for an element that identity keeps as it is, or cast to another format.
template <class Source, class Kept>
QG_HOST_DEVICE constexpr ElementKind KindOfKept(typename Source::Storage source,
                                                typename Kept::Storage kept) {
  const uint32_t from = source & (FormatConstants<Source>::kSignMask - 1u);
  const uint32_t to = kept & (FormatConstants<Kept>::kSignMask - 1u);
  if (from > kBeyondMaxFinite<Source>) return ElementKind::kNan;
  if (from == kBeyondMaxFinite<Source>) return ElementKind::kInfinite;
  if (from == 0) return ElementKind::kZero;
  if (to == 0) return ElementKind::kFlushedToZero;
  if (to <= FormatConstants<Kept>::kMantissaMask) return ElementKind::kSubnormal;
  return to == kBeyondMaxFinite<Kept> ? ElementKind::kSaturated : ElementKind::kNormal;
}

}  // namespace quantgate
