// Counts elements into QuantizationCounts. Private to kernels/quantize.
#pragma once

#include <cstdint>

#include "kernels/numerics/float_format.h"
#include "kernels/quantize/element_kind.h"
#include "kernels/tensor/quantized_tensor.h"

namespace quantgate {

/// Counts one element of a kind.
constexpr void AddKind(ElementKind kind, QuantizationCounts& counts) {
  switch (kind) {
    case ElementKind::kNormal:
      ++counts.normal;
      return;
    case ElementKind::kZero:
      ++counts.zero;
      return;
    case ElementKind::kSubnormal:
      ++counts.subnormal;
      return;
    case ElementKind::kFlushedToZero:
      ++counts.flushed_to_zero;
      return;
    case ElementKind::kSaturated:
      ++counts.saturated;
      return;
    case ElementKind::kInfinite:
      ++counts.infinite;
      return;
    case ElementKind::kNan:
      ++counts.nan;
      return;
  }
}

/// Counts one element. `scaled` is the value that was cast to `code`; under stochastic rounding,
/// AddRandomPart of it.
template <class F>
constexpr void CountElement(FloatClass source, float scaled, uint8_t code, ElementRounding rounding,
                            QuantizationCounts& counts) {
  AddKind(KindOfElement<F>(source, scaled, code, rounding), counts);
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
