// The Hadamard transform of columns in lanes, as HadamardTransform does it: a group of 16 rows lies
// in 16 registers, so that nothing moves between lanes. Included by block_kernels_*.cc after their
// lanes.
#pragma once

#include "kernels/quantize/cpu/block_kernels.h"

namespace quantgate {
namespace {

constexpr int kNvSide = 16;
constexpr int kNvVectors = kNvSide / kLanes;  // Of a block.

/// kLanes columns of 16 rows.
template <class Source>
Ints ReadNvColumns(const typename Source::Storage* source, int64_t stride, Floats* v) {
  Ints max = AllInts(0);
#pragma GCC unroll 16
  for (int r = 0; r < kNvSide; ++r) {
    v[r] = LoadSource<Source>(source + r * stride);
    max = Max(max, And(BitsOf(v[r]), AllInts(0x7FFFFFFF)));
  }
  return max;
}

/// Exponent fields below which results could be subnormal.
constexpr int kSmallestField = 28;

/// False where scalar code must do it: infinities, NaN, tiny exponents. `max` is that of v's
/// magnitudes in each lane.
inline bool CanTransform(Ints max) {
  const Ints not_tiny = IfLess(AllInts(0), max, max, AllInts(kSmallestField << 23));
  return CountLess(AllInts(0x7F7FFFFF), max) + CountLess(not_tiny, AllInts(kSmallestField << 23)) ==
         0;
}

/// One round of the Walsh-Hadamard transform. A loop that is not unrolled keeps s in memory.
template <int kDistance>
void AddAndSubtract(Ints* s) {
#pragma GCC unroll 8
  for (int i = 0; i < kNvSide / 2; ++i) {
    const int j = i / kDistance * 2 * kDistance + i % kDistance;
    const Ints low = s[j], high = s[j + kDistance];
    s[j] = Plus(low, high);
    s[j + kDistance] = Minus(low, high);
  }
}

/// The sums of 16 rows of bf16 values in integers, and what one of them is worth.
inline Floats TransformNv(const Floats* v, Ints max, Ints* s) {
  // Multiplying by 2^(25 - exponent) and truncating aligns to the largest exponent.
  const Ints field = Max(And(max, AllInts(0x7F800000)), AllInts(kSmallestField << 23));
  const Floats align = FloatsOf(Minus(AllInts(static_cast<int>(279u << 23)), field));
  const Floats negative = FloatsOf(Or(BitsOf(align), AllInts(INT32_MIN)));
#pragma GCC unroll 16
  for (int i = 0; i < kNvSide; ++i) {
    s[i] = Truncate(Times(v[i], (0xD7E8 >> i & 1) != 0 ? negative : align));
  }
  AddAndSubtract<1>(s);
  AddAndSubtract<2>(s);
  AddAndSubtract<4>(s);
  AddAndSubtract<8>(s);
  return FloatsOf(Minus(field, AllInts(27 << 23)));
}

/// A sum as fp32, toward zero, and that to nearest even in the upper half; the lower half is not
/// defined.
inline Ints RoundToBf16(Ints sum, Floats unit) {
  const Ints bits = BitsOf(Times(ConvertTowardZero(sum), unit));
  const Ints odd = And(ShiftRight<16>(bits), AllInts(1));
  return Plus(Plus(bits, AllInts(0x7FFF)), odd);
}

/// In place, and the new maximum; see CanTransform.
inline void TransformColumnsInLanes(Floats* v, Ints& max) {
  Ints s[kNvSide];
  const Floats unit = TransformNv(v, max, s);
  Floats largest = All(0.0f);
#pragma GCC unroll 16
  for (int j = 0; j < kNvSide; ++j) {
    v[j] = FloatsOf(And(RoundToBf16(s[j], unit), AllInts(static_cast<int>(0xFFFF0000))));
    largest = MaxMagnitude(v[j], largest);
  }
  max = BitsOf(largest);
}

/// 16 columns of 16 rows; see Nvfp4Functions.
inline bool TransformNvTile(const uint16_t* in, uint16_t* out, int64_t stride, uint32_t* amax) {
  Ints largest = AllInts(0);
  for (int h = 0; h < kNvVectors; ++h) {
    Floats v[kNvSide];
    Ints max = ReadNvColumns<BFloat16>(in + h * kLanes, stride, v);
    if (!CanTransform(max)) return false;
    TransformColumnsInLanes(v, max);
    for (int j = 0; j < kNvSide; ++j) {
      StoreHighWords(out + j * stride + h * kLanes, BitsOf(v[j]));
    }
    largest = Max(largest, max);
  }
  *amax = static_cast<uint32_t>(LargestLane(largest));
  return true;
}

/// 16 rows of `columns`, 32 at a time: a cache line each; see Nvfp4Functions. Rounding keeps order,
/// so that the largest sum of each column is rounded alone.
inline bool FindTransformedAmax(const uint16_t* in, int64_t stride, int64_t columns,
                                uint32_t* amaxes) {
  Ints source_largest = AllInts(static_cast<int>(amaxes[0]));
  Ints largest = AllInts(static_cast<int>(amaxes[1]));
  for (int64_t column = 0; column < columns; column += kLanes) {
    Floats v[kNvSide];
    Ints s[kNvSide], sum_max = AllInts(0);
    if (column % 32 == 0) {
#pragma GCC unroll 16
      for (int i = 0; i < kNvSide; ++i) Prefetch(in + i * stride + column + 64);
    }
    const Ints max = ReadNvColumns<BFloat16>(in + column, stride, v);
    if (!CanTransform(max)) return false;
    source_largest = Max(source_largest, max);
    const Floats unit = TransformNv(v, max, s);
#pragma GCC unroll 16
    for (int j = 0; j < kNvSide; ++j) sum_max = Max(sum_max, Magnitude(s[j]));
    largest = Max(largest, And(RoundToBf16(sum_max, unit), AllInts(0x7FFF0000)));
  }
  amaxes[0] = static_cast<uint32_t>(LargestLane(source_largest));
  amaxes[1] = static_cast<uint32_t>(LargestLane(largest));
  return amaxes[1] < 0x7F800000;
}

}  // namespace
}  // namespace quantgate
