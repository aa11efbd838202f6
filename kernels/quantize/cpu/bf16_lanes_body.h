// bf16 in 16-bit lanes, two in each lane of 32 bits: the amaxes of blocks, and the cast to 8 bits
// or fewer under a scale that is a power of two, so that it changes only exponents. Included by
// block_kernels_*.cc after their lanes.
#pragma once

#include <type_traits>

#include "kernels/quantize/cpu/encode_lanes_body.h"

namespace quantgate {
namespace {

constexpr int kWords = 2 * kLanes;

/// Copies kRows rows of one block each and finds the amaxes of rows and columns, as magnitude bits
/// of fp32; returns the largest.
template <int kRows, int kColumns>
uint32_t ReadBf16Block(const uint16_t* source, int64_t source_stride, uint16_t* copy,
                       int64_t copy_stride, uint32_t* row_amax, uint32_t* column_amax) {
  constexpr int kVectors = kColumns / kWords;
  Ints column_max[kVectors], largest = AllInts(0);
  for (Ints& max : column_max) max = AllInts(0);
  for (int first = 0; first < kRows; first += kWords) {
    Ints eights[kWords / 8];
    for (int i = 0; i < kWords; i += 8) {
      Ints max[8];
#pragma GCC unroll 8
      for (int r = 0; r < 8; ++r) {
        const uint16_t* from = source + (first + i + r) * source_stride;
        max[r] = AllInts(0);
#pragma GCC unroll 8
        for (int j = 0; j < kVectors; ++j) {
          const Ints v = LoadWords(from + j * kWords);
          StoreWords(copy + (first + i + r) * copy_stride + j * kWords, v);
          const Ints magnitude = And(v, AllWords(0x7FFF));
          column_max[j] = MaxWords(column_max[j], magnitude);
          max[r] = MaxWords(max[r], magnitude);
        }
      }
      eights[i / 8] = LargestOfEightWords(max);
    }
    const Ints of_rows = JoinEights(eights);
    WidenWords(row_amax + first, of_rows);
    largest = MaxWords(largest, of_rows);
  }
  for (int j = 0; j < kVectors; ++j) WidenWords(column_amax + j * kWords, column_max[j]);
  return static_cast<uint32_t>(
      LargestLane(Max(ShiftLeft<16>(largest), And(largest, AllInts(0x7FFF0000)))));
}

inline int64_t CountZeroWords(const uint16_t* words, int count) {
  int64_t zeros = 0;
  for (int i = 0; i < count; i += kWords) zeros += CountZeroMagnitudes(LoadWords(words + i));
  return zeros;
}

/// How many binades further below than with EncodeWords a difference begins: with 1/4 of E2M1.
template <class F>
constexpr int kLowered = std::is_same_v<F, E2M1> ? 1 : 0;

/// Finds what EncodeWordLine subtracts from exponents, for `count` blocks under scales that are
/// powers of two: everything if the amax is 0. False for tiny amaxes, under which zeros and
/// subnormals, which have no implicit bit, would not get code 0 with the smallest exponent.
template <class F>
bool FindWordOffsets(const uint32_t* amax, const float* scales, int count, uint16_t* offsets) {
  const Ints all = AllInts(0x7F800000), largest = AllInts((254 - F::kBias - kLowered<F>) << 23);
  Ints least = all;
  for (int i = 0; i < count; i += kLanes) {
    const Ints amax_bits = BitsOf(Load(reinterpret_cast<const float*>(amax + i)));
    const Ints offset =
        IfLess(AllInts(0), amax_bits, Minus(largest, BitsOf(Load(scales + i))), all);
    StoreHighWords(offsets + i, offset);
    least = Min(least, offset);
  }
  return CountLess(least, AllInts((F::kMantissaBits + 1 - kLowered<F>) << 23)) == 0;
}

/// The magnitude codes, in the upper bytes, of bf16 magnitudes that round to nothing beyond the
/// largest code. The difference has the result's exponent field above the mantissa. Where that
/// field is not positive the result is subnormal: the significand, shifted down by what it lacks.
/// Both have 9 bits below the last place, enough for every bit of a significand that can matter.
template <class F>
Ints EncodeWords(Ints magnitude, Ints offset) {
  constexpr int kUp = F::kMantissaBits + 2;
  const Ints moved = MinusWords(magnitude, offset);
  const Ints lacking = MinusWords(AllWords(1), ShiftRightSignedWords<7>(moved));
  const Ints normal = ShiftLeftWords<kUp>(moved);
  const Ints significand = MaskedOr(normal, AllWords(0x7F << kUp), AllWords(0x80 << kUp));
  const Ints fixed = ShiftRightIfPositive(significand, lacking, normal);
  // To nearest even: (fixed + 0xFF + the last bit) >> 9.
  const Ints odd = MaskedOr(ShiftRightWords<9>(fixed), AllWords(1), AllWords(0xFE));
  return AverageWords(fixed, odd);
}

/// The magnitude codes of E2M1 by the quarter of a binade, from the one of 1/4 on: place 0 are
/// those that round to 0.
alignas(32) constexpr uint8_t kE2m1Quarters[32] = {0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 3,
                                                   3, 4, 4, 5, 5, 6, 6, 7, 7, 7};

/// 64 codes of a row of E2M1. Every tie begins a quarter of a binade: of a first half those that
/// nearest even rounds down (1/4, 1 1/4, 2 1/2, 5), of a second half those that it rounds up (3/4,
/// 1 3/4, 3 1/2). So the first number of a quarter in a first half counts to the quarter below;
/// 1/2, 1, 2 and 4 have the same codes there.
inline Line EncodeE2m1Line(const uint16_t* row, const Ints* offsets) {
  constexpr int kVectors = 64 / kWords;
  Ints words[kVectors], quarters[kVectors];
  for (int j = 0; j < kVectors; ++j) {
    words[j] = LoadWords(row + j * kWords);
    const Ints above = MinusWordsToZero(And(words[j], AllWords(0x7FFF)), offsets[j]);
    // The quarter is (above + 31 + (second half ? 1 : 0)) >> 5, here in the upper byte.
    const Ints up = MaskedOr(ShiftRightWords<6>(above), AllWords(1), AllWords(30));
    quarters[j] = ShiftLeftWords<4>(AverageWords(above, up));
  }
  const Line codes = LookUpThirtyTwoBytes(kE2m1Quarters, PackUpperBytes(quarters));
  return MaskedOrUpper(PackUpperBytes(words), 8, codes);
}

/// 64 codes of a row, with an offset in every word.
template <class F>
Line EncodeWordLine(const uint16_t* row, const Ints* offsets) {
  if constexpr (std::is_same_v<F, E2M1>) {
    return EncodeE2m1Line(row, offsets);
  } else {
    constexpr int kVectors = 64 / kWords;
    constexpr int kBits = FormatConstants<F>::kBits;
    Ints codes[kVectors];
    for (int j = 0; j < kVectors; ++j) {
      const Ints v = LoadWords(row + j * kWords);
      const Ints magnitude = EncodeWords<F>(And(v, AllWords(0x7FFF)), offsets[j]);
      codes[j] = MaskedOr(ShiftRightWords<8 - kBits>(v), AllWords(0x80 << kBits), magnitude);
    }
    return PackUpperBytes(codes);
  }
}

}  // namespace
}  // namespace quantgate
