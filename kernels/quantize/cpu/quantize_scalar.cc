#include "kernels/quantize/cpu/quantize_kernels.h"
#include "kernels/quantize/quantizer_formats.h"
#include "kernels/tensor/visit_format.h"

namespace quantgate {
namespace {

template <class Source>
uint32_t Amax(const void* source, int64_t count) {
  using C = FormatConstants<Source>;
  constexpr uint32_t kInfinity = kBeyondMaxFinite<Source>;
  const auto* codes = static_cast<const typename Source::Storage*>(source);
  uint32_t amax = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t magnitude = codes[i] & (C::kSignMask - 1u);
    if (magnitude <= kInfinity && magnitude > amax) amax = magnitude;
  }
  return amax;
}

template <class Source, class Element>
void Cast(const CastPiece& piece, ElementRounding rounding, Overflow overflow,
          QuantizationCounts& counts) {
  const auto* source = static_cast<const typename Source::Storage*>(piece.source);
  for (int64_t i = 0; i < piece.count; ++i) {
    const float scaled = DecodeFloat<Source>(source[i]) * piece.scale;
    piece.codes[i] = EncodeFloat<Element>(scaled, rounding, overflow);
    CountElement<Element>(FloatClassOf<Source>(source[i]), scaled, piece.codes[i], rounding,
                          counts);
  }
}

}  // namespace

AmaxFunction ScalarAmax(DType source) {
  AmaxFunction amax = nullptr;
  VisitFormat<SourceFormats>(source, [&]<class Source>() { amax = &Amax<Source>; });
  return amax;
}

CastAnyFunction ScalarCast(DType source, DType element) {
  CastAnyFunction cast = nullptr;
  VisitFormat<SourceFormats>(source, [&]<class Source>() {
    VisitFormat<Fp8Formats>(element, [&]<class Element>() { cast = &Cast<Source, Element>; });
  });
  return cast;
}

void AddTally(const CastTally& tally, int64_t count, QuantizationCounts& counts) {
  counts.zero += tally.source_zero;
  counts.flushed_to_zero += tally.code_zero - tally.source_zero;
  counts.subnormal += tally.code_below_normal - tally.code_zero;
  counts.saturated += tally.saturated;
  counts.infinite += tally.infinite;
  counts.nan += tally.nan;
  counts.normal += count - tally.code_below_normal - tally.saturated - tally.infinite - tally.nan;
}

}  // namespace quantgate
