// The cast to nearest even, saturating, on lanes. Included by block_kernels_*.cc after their lanes.
#pragma once

#include "kernels/quantize/element_count.h"

namespace quantgate {
namespace {

template <class F>
constexpr float kLargest = MaxFinite<F>();
template <class F>
constexpr uint32_t kFirstBeyond = FirstBeyondBits<F>();

/// The magnitude code of |value| in the low byte of each lane; the upper bytes are undefined. A
/// float addition rounds: beside c = 2^(23 - mantissa bits) times the element's power of two, the
/// last bit of the sum is the quantum of step 3 of RoundAndPack, so that its low bits are `kept`. c
/// is never below that of the smallest normal, which makes subnormals the same case. The low bits
/// of c subtract the excess of the exponent field, which is added last; they are even, so that ties
/// stay ties to even.
template <class F>
Ints EncodeMagnitude(Floats value) {
  constexpr int kShift = 23 - F::kMantissaBits;
  constexpr int kMinField = FormatConstants<F>::kExponentMin + 127;
  constexpr int kExcess = (kMinField << F::kMantissaBits) & 0xFF;
  constexpr int kOffset = (kShift << 23) + (256 - kExcess) % 256;
  static_assert(kExcess % 2 == 0);
  const Floats clamped = MinMagnitude(value, All(kLargest<F>));
  const Ints power = Max(And(BitsOf(clamped), AllInts(0x7F800000)), AllInts(kMinField << 23));
  const Ints c = Plus(power, AllInts(kOffset));
  const Ints sum = BitsOf(Plus(clamped, FloatsOf(c)));
  return Plus(sum, ShiftRight<kShift>(power));
}

/// The value of EncodeMagnitude's code: adding c rounds |value| to the format's step there, and
/// subtracting it again leaves the rounded value.
template <class F>
Floats RoundMagnitude(Floats value) {
  constexpr int kMinField = FormatConstants<F>::kExponentMin + 127;
  const Floats clamped = MinMagnitude(value, All(kLargest<F>));
  const Ints power = Max(And(BitsOf(clamped), AllInts(0x7F800000)), AllInts(kMinField << 23));
  const Floats c = FloatsOf(Plus(power, AllInts((23 - F::kMantissaBits) << 23)));
  return Minus(Plus(clamped, c), c);
}

/// The code with the sign, in the low byte of each lane.
template <class F>
Ints EncodeLanes(Floats value) {
  constexpr int kBits = FormatConstants<F>::kBits;
  constexpr int kMagnitude = (1 << (kBits - 1)) - 1;
  const Ints sign = ShiftRight<32 - kBits>(BitsOf(value));
  const Ints magnitude = EncodeMagnitude<F>(value);
  if constexpr (kBits == 8) return MaskedOr(sign, AllInts(0x80), magnitude);
  return MaskedOr(sign, AllInts(1 << (kBits - 1)), And(magnitude, AllInts(kMagnitude)));
}

}  // namespace
}  // namespace quantgate
