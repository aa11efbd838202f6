// What quantize_avx2.cc and quantize_avx512.cc share once they have their lanes: the rest of a
// cast, and which function is for which types. Included behind Amax32, Amax16, CastBody, CastTally,
// AddTally and a source for each type.
#pragma once

#include "kernels/quantize/cpu/quantize_kernels.h"

namespace quantgate {
namespace {

template <class Source, class F, DType kElement>
void Cast(const CastPiece& piece, QuantizationCounts& counts) {
  CastTally tally;
  const int64_t done = CastBody<Source, F>(piece, tally);
  AddTally(tally, done, counts);
  const CastPiece tail = {static_cast<const typename Source::Storage*>(piece.source) + done,
                          piece.count - done, piece.scale, piece.codes + done};
  ScalarCast(Source::kDType, kElement)(tail, ElementRounding::kNearestEven, Overflow::kSaturate,
                                       counts);
}

template <class Source>
CastFunction CastTo(DType element) {
  return element == DType::kF8E4M3 ? &Cast<Source, E4M3, DType::kF8E4M3>
                                   : &Cast<Source, E5M2, DType::kF8E5M2>;
}

AmaxFunction AmaxFrom(DType source) {
  switch (source) {
    case DType::kF32:
      return &Amax32;
    case DType::kBF16:
      return &Amax16<0x7F80, DType::kBF16>;
    case DType::kF16:
      return &Amax16<0x7C00, DType::kF16>;
    default:
      return nullptr;
  }
}

CastFunction CastFrom(DType source, DType element) {
  switch (source) {
    case DType::kF32:
      return CastTo<F32Source>(element);
    case DType::kBF16:
      return CastTo<Bf16Source>(element);
    case DType::kF16:
      return CastTo<F16Source>(element);
    default:
      return nullptr;
  }
}

}  // namespace
}  // namespace quantgate
