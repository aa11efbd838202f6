// What became of an element in quantization, by the definition of QuantizationCounts. Private to
// kernels/quantize.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/numerics/cast.h"
#include "kernels/numerics/scale_rule.h"
#include "kernels/tensor/quantized_tensor.h"

namespace quantgate {

/// Smallest fp32 magnitude that rounds beyond the largest finite code: to nearest even above the
/// midpoint, or at it when that code is odd; away from zero at it; stochastically (E2M1) whatever
/// lies above the largest value.
template <class F>
constexpr uint32_t FirstBeyondBits(ElementRounding rounding = ElementRounding::kNearestEven) {
  constexpr uint32_t kMax = std::bit_cast<uint32_t>(MaxFinite<F>());
  constexpr uint32_t kHalfUlp = 1u << (22 - F::kMantissaBits);
  if (rounding == ElementRounding::kStochastic) return kMax + 1;
  if (rounding == ElementRounding::kNearestAway) return kMax + kHalfUlp;
  return kMax + kHalfUlp + (FormatConstants<F>::kMaxFinite % 2 == 0 ? 1 : 0);
}
static_assert(FirstBeyondBits<E5M2>() == std::bit_cast<uint32_t>(61440.0f));
static_assert(FirstBeyondBits<E2M1>() == std::bit_cast<uint32_t>(7.0f));

/// `scaled` is what was cast to `code`.
template <class F>
constexpr void CountElement(FloatClass source, float scaled, uint8_t code, ElementRounding rounding,
                            QuantizationCounts& counts) {
  using C = FormatConstants<F>;
  const uint32_t magnitude = code & (C::kSignMask - 1u);
  if (source == FloatClass::kNan) {
    ++counts.nan;
  } else if (source == FloatClass::kInfinite) {
    ++counts.infinite;
  } else if (source == FloatClass::kZero) {
    ++counts.zero;
  } else if (magnitude == 0) {
    ++counts.flushed_to_zero;
  } else if (magnitude <= C::kMantissaMask) {
    ++counts.subnormal;
  } else if ((std::bit_cast<uint32_t>(scaled) & 0x7FFFFFFF) >= FirstBeyondBits<F>(rounding)) {
    ++counts.saturated;
  } else {
    ++counts.normal;
  }
}

inline void AddCounts(const QuantizationCounts& part, QuantizationCounts& sum) {
  sum.normal += part.normal;
  sum.zero += part.zero;
  sum.subnormal += part.subnormal;
  sum.flushed_to_zero += part.flushed_to_zero;
  sum.saturated += part.saturated;
  sum.infinite += part.infinite;
  sum.nan += part.nan;
}

}  // namespace quantgate
