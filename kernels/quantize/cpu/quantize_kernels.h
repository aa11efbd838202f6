// The two loops of a per-tensor FP8 quantizer, one set per instruction set. Private to
// kernels/quantize. The scalar set is the definition; the vector sets restate it for the usual cast
// (nearest even, saturating) and are tested against it.
#pragma once

#include <cstdint>

#include "kernels/quantize/element_count.h"
#include "kernels/quantize/quantizer.h"

namespace quantgate {

/// Bits of max |x| over count elements, in the element type's own magnitude code; NaN counts as 0.
using AmaxFunction = uint32_t (*)(const void* source, int64_t count);

/// What the cast of one piece needs.
struct CastPiece {
  const void* source;
  int64_t count;
  float scale;
  uint8_t* codes;
};

/// Writes codes[i] = cast(f32(source[i]) * scale) and adds to counts.
using CastFunction = void (*)(const CastPiece& piece, QuantizationCounts& counts);

/// As CastFunction, for any rounding and overflow.
using CastAnyFunction = void (*)(const CastPiece& piece, ElementRounding rounding,
                                 Overflow overflow, QuantizationCounts& counts);

AmaxFunction ScalarAmax(DType source);
CastAnyFunction ScalarCast(DType source, DType element);

AmaxFunction Avx2Amax(DType source);
CastFunction Avx2Cast(DType source, DType element);

AmaxFunction Avx512Amax(DType source);
CastFunction Avx512Cast(DType source, DType element);

/// Counts of a run of codes that vector code finds from the codes and the sources' zeros alone.
struct CastTally {
  int64_t source_zero = 0;
  int64_t code_zero = 0;
  int64_t code_below_normal = 0;  ///< Zero included.
  int64_t saturated = 0;
  int64_t infinite = 0;
  int64_t nan = 0;
};
void AddTally(const CastTally& tally, int64_t count, QuantizationCounts& counts);

}  // namespace quantgate
