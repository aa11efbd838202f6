// Eight 32-bit lanes of AVX2 with FMA and F16C, under the names by which the kernel bodies know
// them. Included once, by block_kernels_avx2.cc; see lanes_avx512.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/numerics/float_format.h"

namespace quantgate {
namespace {

constexpr int kLanes = 8;
using Floats = __m256;
using Ints = __m256i;

inline Ints BitsOf(Floats v) { return _mm256_castps_si256(v); }
inline Floats FloatsOf(Ints v) { return _mm256_castsi256_ps(v); }
inline Floats All(float v) { return _mm256_set1_ps(v); }
inline Ints AllInts(int v) { return _mm256_set1_epi32(v); }
inline Ints Iota() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }

template <class Source>
Floats LoadSource(const typename Source::Storage* p);
template <>
inline Floats LoadSource<BFloat16>(const uint16_t* p) {
  const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
}
template <>
inline Floats LoadSource<Float16>(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
template <>
inline Floats LoadSource<Float32>(const uint32_t* p) {
  return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
}
/// Hints, to the first cache and to the second; the address need not be valid.
inline void Prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
inline void PrefetchFar(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
inline Floats Load(const float* p) { return _mm256_loadu_ps(p); }
inline void Store(float* p, Floats v) { _mm256_storeu_ps(p, v); }
inline void StoreInts(uint32_t* p, Ints v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v);
}
/// 8 bytes, each in a lane of its own.
inline Ints LoadBytes(const uint8_t* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}

inline Floats Times(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
inline Floats Over(Floats a, Floats b) { return _mm256_div_ps(a, b); }
inline Floats Plus(Floats a, Floats b) { return _mm256_add_ps(a, b); }
inline Floats Minus(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
inline Floats FusedTimesPlus(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
/// min(|a|, b) for b >= 0; no NaN.
inline Floats MinMagnitude(Floats a, Floats b) {
  return _mm256_min_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a), b);
}
/// max(|a|, b) for b >= 0; no NaN.
inline Floats MaxMagnitude(Floats a, Floats b) {
  return _mm256_max_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a), b);
}
inline Ints And(Ints a, Ints b) { return _mm256_and_si256(a, b); }
inline Ints Or(Ints a, Ints b) { return _mm256_or_si256(a, b); }
/// (a & mask) | b.
inline Ints MaskedOr(Ints a, Ints mask, Ints b) { return Or(And(a, mask), b); }
/// (mask & a) | (~mask & b).
inline Ints Select(Ints mask, Ints a, Ints b) {
  return Or(And(mask, a), _mm256_andnot_si256(mask, b));
}
inline Ints Xor3(Ints a, Ints b, Ints c) { return _mm256_xor_si256(_mm256_xor_si256(a, b), c); }
inline Ints Plus(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
inline Ints Minus(Ints a, Ints b) { return _mm256_sub_epi32(a, b); }
inline Ints Max(Ints a, Ints b) { return _mm256_max_epi32(a, b); }
inline Ints Min(Ints a, Ints b) { return _mm256_min_epi32(a, b); }
template <int kCount>
inline Ints ShiftRight(Ints a) {
  return _mm256_srli_epi32(a, kCount);
}
template <int kCount>
inline Ints ShiftLeft(Ints a) {
  return _mm256_slli_epi32(a, kCount);
}
inline Ints Magnitude(Ints a) { return _mm256_abs_epi32(a); }
inline Ints Truncate(Floats a) { return _mm256_cvttps_epi32(a); }
/// To nearest, ties to even, as rounding is set; of magnitudes below 2^31.
inline Ints Nearest(Floats a) { return _mm256_cvtps_epi32(a); }
inline Floats Convert(Ints a) { return _mm256_cvtepi32_ps(a); }
/// For |a| <= 2^30: one unit in the last place less where the nearest float lies beyond a.
inline Floats ConvertTowardZero(Ints a) {
  const Ints magnitude = _mm256_abs_epi32(a);
  const Ints nearest = BitsOf(_mm256_cvtepi32_ps(magnitude));
  const Ints is_beyond = _mm256_cmpgt_epi32(_mm256_cvttps_epi32(FloatsOf(nearest)), magnitude);
  return FloatsOf(MaskedOr(a, AllInts(INT32_MIN), Plus(nearest, is_beyond)));
}
/// a < b ? yes : no, signed.
inline Ints IfLess(Ints a, Ints b, Ints yes, Ints no) {
  return _mm256_blendv_epi8(no, yes, _mm256_cmpgt_epi32(b, a));
}
/// a < b ? yes : no; no if a or b is NaN.
inline Ints IfLess(Floats a, Floats b, Ints yes, Ints no) {
  return _mm256_blendv_epi8(no, yes, BitsOf(_mm256_cmp_ps(a, b, _CMP_LT_OQ)));
}
inline int CountOf(Ints mask) { return __builtin_popcount(_mm256_movemask_ps(FloatsOf(mask))); }
inline int CountLess(Ints a, Ints b) { return CountOf(_mm256_cmpgt_epi32(b, a)); }
inline int CountEqual(Ints a, Ints b) { return CountOf(_mm256_cmpeq_epi32(a, b)); }
/// sum + 1 where a < b, signed.
inline Ints AddIfLess(Ints sum, Ints a, Ints b) {
  return _mm256_sub_epi32(sum, _mm256_cmpgt_epi32(b, a));
}
inline Ints AddIfLess(Ints sum, Floats a, Floats b) {
  return _mm256_sub_epi32(sum, BitsOf(_mm256_cmp_ps(a, b, _CMP_LT_OQ)));
}
/// table[index] of eight floats; indices are below 8.
inline Floats LookUpEight(const float* table, Ints index) {
  return _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), index);
}
/// Whether a table of 32 is one instruction; there is none.
constexpr bool kLooksUpThirtyTwo = false;
template <class Number>
Ints LookUpThirtyTwo(const Number* table, Ints index);
inline int SumOfLanes(Ints a) {
  const __m128i half = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  const __m128i pair = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(pair, _mm_shuffle_epi32(pair, 0xB1)));
}
inline int LargestLane(Ints a) {
  const __m128i half = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  const __m128i pair = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4E));
  return _mm_cvtsi128_si32(_mm_max_epi32(pair, _mm_shuffle_epi32(pair, 0xB1)));
}

// ---- 64-bit lanes of Philox

/// The products of lower halves.
inline Ints WideTimes(Ints a, Ints b) { return _mm256_mul_epu32(a, b); }
inline Ints UpperHalf(Ints a) { return _mm256_srli_epi64(a, 32); }
inline Ints JoinHalves(Ints even, Ints odd) {
  return _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
}
/// Stores lane l of words 0 to 3 as 16 bytes at l % 4 * 32 + l / 4 * 16.
inline void StoreInterleaved(uint32_t* p, const Ints* words) {
  const Ints low01 = _mm256_unpacklo_epi32(words[0], words[1]);
  const Ints high01 = _mm256_unpackhi_epi32(words[0], words[1]);
  const Ints low23 = _mm256_unpacklo_epi32(words[2], words[3]);
  const Ints high23 = _mm256_unpackhi_epi32(words[2], words[3]);
  StoreInts(p, _mm256_unpacklo_epi64(low01, low23));
  StoreInts(p + kLanes, _mm256_unpackhi_epi64(low01, low23));
  StoreInts(p + 2 * kLanes, _mm256_unpacklo_epi64(high01, high23));
  StoreInts(p + 3 * kLanes, _mm256_unpackhi_epi64(high01, high23));
}

/// Lane i of the result is the largest lane of v[i].
inline Ints LargestOfEach(const Ints* v) {
  Ints a[4], b[2];
  for (int i = 0; i < 4; ++i) {
    a[i] = Max(_mm256_unpacklo_epi32(v[2 * i], v[2 * i + 1]),
               _mm256_unpackhi_epi32(v[2 * i], v[2 * i + 1]));
  }
  for (int i = 0; i < 2; ++i) {
    b[i] = Max(_mm256_unpacklo_epi64(a[2 * i], a[2 * i + 1]),
               _mm256_unpackhi_epi64(a[2 * i], a[2 * i + 1]));
  }
  return Max(_mm256_permute2x128_si256(b[0], b[1], 0x20),
             _mm256_permute2x128_si256(b[0], b[1], 0x31));
}

/// The lanes of a and b in turn: those of the lower halves, and those of the upper halves.
inline void Interleave(Floats a, Floats b, Floats* low, Floats* high) {
  const Floats even = _mm256_unpacklo_ps(a, b), odd = _mm256_unpackhi_ps(a, b);
  *low = _mm256_permute2f128_ps(even, odd, 0x20);
  *high = _mm256_permute2f128_ps(even, odd, 0x31);
}

// ---- 16-bit lanes

inline Ints AllWords(int v) { return _mm256_set1_epi16(static_cast<int16_t>(v)); }
inline Ints LoadWords(const uint16_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline void StoreWords(uint16_t* p, Ints v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v);
}
/// Stores each word as the upper half of a lane.
inline void WidenWords(uint32_t* p, Ints v) {
  StoreInts(p, ShiftLeft<16>(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(v))));
  StoreInts(p + kLanes, ShiftLeft<16>(_mm256_cvtepu16_epi32(_mm256_extracti128_si256(v, 1))));
}
inline Ints MinusWords(Ints a, Ints b) { return _mm256_sub_epi16(a, b); }
/// max(a - b, 0), unsigned.
inline Ints MinusWordsToZero(Ints a, Ints b) { return _mm256_subs_epu16(a, b); }
inline Ints MaxWords(Ints a, Ints b) { return _mm256_max_epi16(a, b); }
/// (a + b + 1) / 2, unsigned.
inline Ints AverageWords(Ints a, Ints b) { return _mm256_avg_epu16(a, b); }
template <int kCount>
inline Ints ShiftLeftWords(Ints a) {
  return _mm256_slli_epi16(a, kCount);
}
template <int kCount>
inline Ints ShiftRightWords(Ints a) {
  return _mm256_srli_epi16(a, kCount);
}
template <int kCount>
inline Ints ShiftRightSignedWords(Ints a) {
  return _mm256_srai_epi16(a, kCount);
}
/// count > 0 ? a >> count : no; a shift by 9 and more may leave 0. The upper half of a product by
/// 2^(16 - count), whose upper byte a table gives.
inline Ints ShiftRightIfPositive(Ints a, Ints count, Ints no) {
  const Ints powers = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, -128, 64, 32, 16, 8, 4, 2, 1, 0, 0, 0, 0, 0, 0, 0));
  const Ints index = ShiftLeftWords<8>(_mm256_min_epi16(count, AllWords(15)));
  const Ints power = _mm256_shuffle_epi8(powers, Or(index, AllWords(0x80)));
  return _mm256_blendv_epi8(no, _mm256_mulhi_epu16(a, power),
                            _mm256_cmpgt_epi16(count, _mm256_setzero_si256()));
}
/// In each 128 bits, word i of the result is the largest of v[i]'s.
inline Ints LargestOfEightWords(const Ints* v) {
  Ints a[4], b[2];
  for (int i = 0; i < 4; ++i) {
    a[i] = MaxWords(_mm256_unpacklo_epi16(v[2 * i], v[2 * i + 1]),
                    _mm256_unpackhi_epi16(v[2 * i], v[2 * i + 1]));
  }
  for (int i = 0; i < 2; ++i) {
    b[i] = MaxWords(_mm256_unpacklo_epi32(a[2 * i], a[2 * i + 1]),
                    _mm256_unpackhi_epi32(a[2 * i], a[2 * i + 1]));
  }
  return MaxWords(_mm256_unpacklo_epi64(b[0], b[1]), _mm256_unpackhi_epi64(b[0], b[1]));
}
/// The largest of the 128-bit parts of v[i] as part i of the result.
inline Ints JoinEights(const Ints* v) {
  return MaxWords(_mm256_permute2x128_si256(v[0], v[1], 0x20),
                  _mm256_permute2x128_si256(v[0], v[1], 0x31));
}
/// Stores the largest of every 16 of 256 words, widened.
inline void WidenLargestOfSixteens(uint32_t* p, const Ints* v) {
  for (int i = 0; i < 2; ++i) {
    const Ints parts = LargestOfEightWords(v + 8 * i);
    const __m128i words =
        _mm_max_epi16(_mm256_castsi256_si128(parts), _mm256_extracti128_si256(parts, 1));
    StoreInts(p + kLanes * i, ShiftLeft<16>(_mm256_cvtepu16_epi32(words)));
  }
}
inline int CountZeroMagnitudes(Ints words) {
  const Ints is_zero = _mm256_cmpeq_epi16(And(words, AllWords(0x7FFF)), _mm256_setzero_si256());
  return __builtin_popcount(static_cast<unsigned>(_mm256_movemask_epi8(is_zero))) / 2;
}

/// The low bytes of 32 lanes in four registers, as 32 bytes.
inline void StoreLowBytes32(uint8_t* p, const Ints* v) {
  const Ints mask = AllInts(0xFF);
  const Ints a = _mm256_packus_epi32(And(v[0], mask), And(v[1], mask));
  const Ints b = _mm256_packus_epi32(And(v[2], mask), And(v[3], mask));
  const Ints order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm256_permutevar8x32_epi32(_mm256_packus_epi16(a, b), order));
}
inline void StoreLowBytes(uint8_t* p, Ints v) {
  const Ints words = _mm256_packus_epi32(And(v, AllInts(0xFF)), _mm256_setzero_si256());
  const Ints bytes = _mm256_packus_epi16(words, words);
  const int low = _mm256_extract_epi32(bytes, 0), high = _mm256_extract_epi32(bytes, 4);
  __builtin_memcpy(p, &low, 4);
  __builtin_memcpy(p + 4, &high, 4);
}
/// 32 bytes of one code each to 16 bytes of two, the even one in the low nibble.
inline void StoreNibbles32(uint8_t* p, const uint8_t* codes) {
  const Ints pairs = _mm256_maddubs_epi16(
      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)), _mm256_set1_epi16(0x1001));
  const Ints bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(pairs, pairs), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(bytes));
}
/// The upper halves of lanes.
inline void StoreHighWords(uint16_t* p, Ints v) {
  const Ints words = _mm256_packus_epi32(ShiftRight<16>(v), _mm256_setzero_si256());
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm256_castsi256_si128(_mm256_permute4x64_epi64(words, 0x08)));
}

struct ByteTally {
  int64_t zero = 0, below_normal = 0;
};
/// Adds how many of 32 codes have magnitude 0, and magnitude below `first_normal`.
inline void TallyBytes32(const uint8_t* p, uint8_t magnitude_mask, uint8_t first_normal,
                         ByteTally& tally) {
  const Ints magnitude = And(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
                             _mm256_set1_epi8(static_cast<char>(magnitude_mask)));
  const auto count = [](Ints mask) {
    return __builtin_popcount(static_cast<unsigned>(_mm256_movemask_epi8(mask)));
  };
  tally.below_normal +=
      count(_mm256_cmpgt_epi8(_mm256_set1_epi8(static_cast<char>(first_normal)), magnitude));
  tally.zero += count(_mm256_cmpeq_epi8(magnitude, _mm256_setzero_si256()));
}

/// 64 codes.
struct Line {
  Ints half[2];
};
/// The low bytes of 64 lanes.
inline Line PackLine(const Ints* v) {
  const Ints mask = AllInts(0xFF), order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  Line line;
  for (int i = 0; i < 2; ++i) {
    const Ints* w = v + 4 * i;
    const Ints a = _mm256_packus_epi32(And(w[0], mask), And(w[1], mask));
    const Ints b = _mm256_packus_epi32(And(w[2], mask), And(w[3], mask));
    line.half[i] = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(a, b), order);
  }
  return line;
}
/// The numbers of 64 lanes, at most 2^15 in magnitude, within [low, high] as bytes; adds how many
/// are beyond.
inline Line PackClamped(const Ints* v, int low, int high, int64_t& beyond) {
  const Ints order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  Line line;
  for (int half = 0; half < 2; ++half) {
    Ints words[2], is_within[2];
    for (int i = 0; i < 2; ++i) {
      const Ints* w = v + 4 * half + 2 * i;
      const Ints numbers = _mm256_packs_epi32(w[0], w[1]);
      words[i] = _mm256_min_epi16(MaxWords(numbers, AllWords(low)), AllWords(high));
      is_within[i] = _mm256_cmpeq_epi16(words[i], numbers);
    }
    const Ints within = _mm256_packs_epi16(is_within[0], is_within[1]);
    beyond += __builtin_popcount(~static_cast<unsigned>(_mm256_movemask_epi8(within)));
    line.half[half] = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(words[0], words[1]), order);
  }
  return line;
}
/// The upper bytes of 64 words.
inline Line PackUpperBytes(const Ints* v) {
  Line line;
  for (int i = 0; i < 2; ++i) {
    const Ints bytes =
        _mm256_packus_epi16(ShiftRightWords<8>(v[2 * i]), ShiftRightWords<8>(v[2 * i + 1]));
    line.half[i] = _mm256_permute4x64_epi64(bytes, 0xD8);
  }
  return line;
}
/// (a >> 4 & mask) | b of each byte; mask has no bit above the fourth.
inline Line MaskedOrUpper(const Line& a, int mask, const Line& b) {
  const Ints masks = _mm256_set1_epi8(static_cast<char>(mask));
  return {{MaskedOr(ShiftRightWords<4>(a.half[0]), masks, b.half[0]),
           MaskedOr(ShiftRightWords<4>(a.half[1]), masks, b.half[1])}};
}
inline Line LoadLine(const uint8_t* p) {
  return {{_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
           _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))}};
}
inline Line MaskAndFlip(const Line& line, int mask, int flip) {
  const Ints masks = _mm256_set1_epi8(static_cast<char>(mask));
  const Ints flips = _mm256_set1_epi8(static_cast<char>(flip));
  return {{Xor3(And(line.half[0], masks), flips, _mm256_setzero_si256()),
           Xor3(And(line.half[1], masks), flips, _mm256_setzero_si256())}};
}
/// table[code] of 16 bytes; codes are below 16.
inline Line LookUpBytes(const uint8_t* table, const Line& codes) {
  const Ints bytes =
      _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  return {{_mm256_shuffle_epi8(bytes, codes.half[0]), _mm256_shuffle_epi8(bytes, codes.half[1])}};
}
/// table[code] of 32 bytes; codes are below 32.
inline Line LookUpThirtyTwoBytes(const uint8_t* table, const Line& codes) {
  const Line low = LookUpBytes(table, codes), high = LookUpBytes(table + 16, codes);
  Line line;
  for (int i = 0; i < 2; ++i) {
    const Ints is_high = ShiftLeftWords<3>(codes.half[i]);  // Its fifth bit on top.
    line.half[i] = _mm256_blendv_epi8(low.half[i], high.half[i], is_high);
  }
  return line;
}
inline int CountBytes(const Line& line, int byte) {
  const Ints bytes = _mm256_set1_epi8(static_cast<char>(byte));
  int count = 0;
  for (const Ints& half : line.half) {
    const int mask = _mm256_movemask_epi8(_mm256_cmpeq_epi8(half, bytes));
    count += __builtin_popcount(static_cast<unsigned>(mask));
  }
  return count;
}
/// 64 codes to 32 bytes of two, the even one in the low nibble.
inline Ints Nibbles(const Line& codes) {
  const Ints weights = _mm256_set1_epi16(0x1001);
  const Ints bytes = _mm256_packus_epi16(_mm256_maddubs_epi16(codes.half[0], weights),
                                         _mm256_maddubs_epi16(codes.half[1], weights));
  return _mm256_permute4x64_epi64(bytes, 0xD8);
}
inline void StoreNibbles(uint8_t* p, const Line& codes) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), Nibbles(codes));
}
/// 32 bytes, and behind them 64 codes as StoreNibbles has them.
inline Line JoinNibbles(const uint8_t* first, const Line& codes) {
  Line line;
  line.half[0] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(first));
  line.half[1] = Nibbles(codes);
  return line;
}
/// `streams`: past the caches, to an aligned address.
inline void StoreLine(uint8_t* p, const Line& line, bool streams) {
  for (int i = 0; i < 2; ++i) {
    auto* to = reinterpret_cast<__m256i*>(p + 32 * i);
    if (streams) {
      _mm256_stream_si256(to, line.half[i]);
    } else {
      _mm256_storeu_si256(to, line.half[i]);
    }
  }
}
inline void TallyLine(const Line& line, uint8_t magnitude_mask, uint8_t first_normal,
                      ByteTally& tally) {
  const auto count = [](Ints mask) {
    return __builtin_popcount(static_cast<unsigned>(_mm256_movemask_epi8(mask)));
  };
  for (int i = 0; i < 2; ++i) {
    const Ints magnitude = And(line.half[i], _mm256_set1_epi8(static_cast<char>(magnitude_mask)));
    tally.below_normal +=
        count(_mm256_cmpgt_epi8(_mm256_set1_epi8(static_cast<char>(first_normal)), magnitude));
    tally.zero += count(_mm256_cmpeq_epi8(magnitude, _mm256_setzero_si256()));
  }
}

/// 64 rows of 16 bytes, `stride` apart, to 16 lines of 64: in each register two rows 16 apart, then
/// as in kernels/tensor/transpose.cc four rounds of interleaving registers eight apart.
inline void TransposeBytes64x16(const uint8_t* in, int64_t stride, Line* lines) {
  const auto round = [](const Ints* from, Ints* to) {
    for (int i = 0; i < 8; ++i) {
      to[2 * i] = _mm256_unpacklo_epi8(from[i], from[i + 8]);
      to[2 * i + 1] = _mm256_unpackhi_epi8(from[i], from[i + 8]);
    }
  };
  for (int half = 0; half < 2; ++half) {
    Ints v[16], w[16];
    for (int i = 0; i < 16; ++i) {
      const auto* from = in + (32 * half + i) * stride;
      v[i] = _mm256_loadu2_m128i(reinterpret_cast<const __m128i*>(from + 16 * stride),
                                 reinterpret_cast<const __m128i*>(from));
    }
    round(v, w);
    round(w, v);
    round(v, w);
    round(w, v);
    for (int i = 0; i < 16; ++i) lines[i].half[half] = v[i];
  }
}

}  // namespace
}  // namespace quantgate
