// Sixteen 32-bit lanes of AVX-512, under the names by which the kernel bodies know them. Included
// once, by block_kernels_avx512.cc. Nothing but intrinsics and constants is inlined from elsewhere,
// so that no AVX-512 copy of a shared function can end up on a machine without it.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/numerics/float_format.h"

namespace quantgate {
namespace {

constexpr int kLanes = 16;
using Floats = __m512;
using Ints = __m512i;

inline Ints BitsOf(Floats v) { return _mm512_castps_si512(v); }
inline Floats FloatsOf(Ints v) { return _mm512_castsi512_ps(v); }
inline Floats All(float v) { return _mm512_set1_ps(v); }
inline Ints AllInts(int v) { return _mm512_set1_epi32(v); }
inline Ints Iota() {
  return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

template <class Source>
Floats LoadSource(const typename Source::Storage* p);
template <>
inline Floats LoadSource<BFloat16>(const uint16_t* p) {
  const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}
template <>
inline Floats LoadSource<Float16>(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
template <>
inline Floats LoadSource<Float32>(const uint32_t* p) {
  return _mm512_loadu_ps(p);
}
/// Hints, to the first cache and to the second; the address need not be valid.
inline void Prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
inline void PrefetchFar(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
inline Floats Load(const float* p) { return _mm512_loadu_ps(p); }
inline void Store(float* p, Floats v) { _mm512_storeu_ps(p, v); }
inline void StoreInts(uint32_t* p, Ints v) { _mm512_storeu_si512(p, v); }
/// 16 bytes, each in a lane of its own.
inline Ints LoadBytes(const uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

inline Floats Times(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats Over(Floats a, Floats b) { return _mm512_div_ps(a, b); }
inline Floats Plus(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats Minus(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
inline Floats FusedTimesPlus(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
/// min(|a|, b) for b >= 0; no NaN.
inline Floats MinMagnitude(Floats a, Floats b) { return _mm512_range_ps(a, b, 0x0A); }
/// max(|a|, b) for b >= 0; no NaN.
inline Floats MaxMagnitude(Floats a, Floats b) { return _mm512_range_ps(a, b, 0x0B); }
inline Ints And(Ints a, Ints b) { return _mm512_and_si512(a, b); }
inline Ints Or(Ints a, Ints b) { return _mm512_or_si512(a, b); }
/// (a & mask) | b.
inline Ints MaskedOr(Ints a, Ints mask, Ints b) {
  return _mm512_ternarylogic_epi32(a, mask, b, 0xEA);
}
/// (mask & a) | (~mask & b).
inline Ints Select(Ints mask, Ints a, Ints b) {
  return _mm512_ternarylogic_epi32(mask, a, b, 0xCA);
}
inline Ints Xor3(Ints a, Ints b, Ints c) { return _mm512_ternarylogic_epi32(a, b, c, 0x96); }
inline Ints Plus(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
inline Ints Minus(Ints a, Ints b) { return _mm512_sub_epi32(a, b); }
inline Ints Max(Ints a, Ints b) { return _mm512_max_epi32(a, b); }
inline Ints Min(Ints a, Ints b) { return _mm512_min_epi32(a, b); }
template <int kCount>
inline Ints ShiftRight(Ints a) {
  return _mm512_srli_epi32(a, kCount);
}
template <int kCount>
inline Ints ShiftLeft(Ints a) {
  return _mm512_slli_epi32(a, kCount);
}
inline Ints Magnitude(Ints a) { return _mm512_abs_epi32(a); }
inline Ints Truncate(Floats a) { return _mm512_cvttps_epi32(a); }
/// To nearest, ties to even; of magnitudes below 2^31.
inline Ints Nearest(Floats a) {
  return _mm512_cvt_roundps_epi32(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline Floats Convert(Ints a) { return _mm512_cvtepi32_ps(a); }
inline Floats ConvertTowardZero(Ints a) {
  return _mm512_cvt_roundepi32_ps(a, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
}
/// a < b ? yes : no, signed.
inline Ints IfLess(Ints a, Ints b, Ints yes, Ints no) {
  return _mm512_mask_blend_epi32(_mm512_cmplt_epi32_mask(a, b), no, yes);
}
/// a < b ? yes : no; no if a or b is NaN.
inline Ints IfLess(Floats a, Floats b, Ints yes, Ints no) {
  return _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
}
inline int CountLess(Ints a, Ints b) { return __builtin_popcount(_mm512_cmplt_epi32_mask(a, b)); }
inline int CountEqual(Ints a, Ints b) { return __builtin_popcount(_mm512_cmpeq_epi32_mask(a, b)); }
/// sum + 1 where a < b, signed.
inline Ints AddIfLess(Ints sum, Ints a, Ints b) {
  return _mm512_mask_add_epi32(sum, _mm512_cmplt_epi32_mask(a, b), sum, AllInts(1));
}
inline Ints AddIfLess(Ints sum, Floats a, Floats b) {
  return _mm512_mask_add_epi32(sum, _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), sum, AllInts(1));
}
/// table[index] of eight floats; indices are below 8.
inline Floats LookUpEight(const float* table, Ints index) {
  return _mm512_permutexvar_ps(index, _mm512_castps256_ps512(_mm256_loadu_ps(table)));
}
/// Whether a table of 32 is one instruction, as below.
constexpr bool kLooksUpThirtyTwo = true;
/// table[index mod 32].
inline Floats LookUpThirtyTwo(const float* table, Ints index) {
  return _mm512_permutex2var_ps(Load(table), index, Load(table + kLanes));
}
inline Ints LookUpThirtyTwo(const int* table, Ints index) {
  return _mm512_permutex2var_epi32(_mm512_loadu_si512(table), index,
                                   _mm512_loadu_si512(table + kLanes));
}
inline int SumOfLanes(Ints a) { return _mm512_reduce_add_epi32(a); }
inline int LargestLane(Ints a) { return _mm512_reduce_max_epi32(a); }

// ---- 64-bit lanes of Philox

/// The products of lower halves.
inline Ints WideTimes(Ints a, Ints b) { return _mm512_mul_epu32(a, b); }
inline Ints UpperHalf(Ints a) { return _mm512_srli_epi64(a, 32); }
inline Ints JoinHalves(Ints even, Ints odd) {
  return _mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32));
}
/// Stores lane l of words 0 to 3 as 16 bytes at l % 4 * 64 + l / 4 * 16.
inline void StoreInterleaved(uint32_t* p, const Ints* words) {
  const Ints low01 = _mm512_unpacklo_epi32(words[0], words[1]);
  const Ints high01 = _mm512_unpackhi_epi32(words[0], words[1]);
  const Ints low23 = _mm512_unpacklo_epi32(words[2], words[3]);
  const Ints high23 = _mm512_unpackhi_epi32(words[2], words[3]);
  StoreInts(p, _mm512_unpacklo_epi64(low01, low23));
  StoreInts(p + kLanes, _mm512_unpackhi_epi64(low01, low23));
  StoreInts(p + 2 * kLanes, _mm512_unpacklo_epi64(high01, high23));
  StoreInts(p + 3 * kLanes, _mm512_unpackhi_epi64(high01, high23));
}

/// Lane i of the result is the largest lane of v[i].
inline Ints LargestOfEach(const Ints* v) {
  Ints a[8], b[4];
  for (int i = 0; i < 8; ++i) {
    a[i] = Max(_mm512_unpacklo_epi32(v[2 * i], v[2 * i + 1]),
               _mm512_unpackhi_epi32(v[2 * i], v[2 * i + 1]));
  }
  for (int i = 0; i < 4; ++i) {
    b[i] = Max(_mm512_unpacklo_epi64(a[2 * i], a[2 * i + 1]),
               _mm512_unpackhi_epi64(a[2 * i], a[2 * i + 1]));
  }
  const auto join = [](Ints x, Ints y) {
    return Max(_mm512_shuffle_i32x4(x, y, 0x88), _mm512_shuffle_i32x4(x, y, 0xDD));
  };
  return join(join(b[0], b[1]), join(b[2], b[3]));
}

/// The lanes of a and b in turn: those of the lower halves, and those of the upper halves.
inline void Interleave(Floats a, Floats b, Floats* low, Floats* high) {
  const Ints order = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  *low = _mm512_permutex2var_ps(a, order, b);
  *high = _mm512_permutex2var_ps(a, Plus(order, AllInts(8)), b);
}

// ---- 16-bit lanes

inline Ints AllWords(int v) { return _mm512_set1_epi16(static_cast<int16_t>(v)); }
inline Ints LoadWords(const uint16_t* p) { return _mm512_loadu_si512(p); }
inline void StoreWords(uint16_t* p, Ints v) { _mm512_storeu_si512(p, v); }
/// Stores each word as the upper half of a lane.
inline void WidenWords(uint32_t* p, Ints v) {
  StoreInts(p, ShiftLeft<16>(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(v))));
  StoreInts(p + kLanes, ShiftLeft<16>(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(v, 1))));
}
inline Ints MinusWords(Ints a, Ints b) { return _mm512_sub_epi16(a, b); }
/// max(a - b, 0), unsigned.
inline Ints MinusWordsToZero(Ints a, Ints b) { return _mm512_subs_epu16(a, b); }
inline Ints MaxWords(Ints a, Ints b) { return _mm512_max_epi16(a, b); }
/// (a + b + 1) / 2, unsigned.
inline Ints AverageWords(Ints a, Ints b) { return _mm512_avg_epu16(a, b); }
template <int kCount>
inline Ints ShiftLeftWords(Ints a) {
  return _mm512_slli_epi16(a, kCount);
}
template <int kCount>
inline Ints ShiftRightWords(Ints a) {
  return _mm512_srli_epi16(a, kCount);
}
template <int kCount>
inline Ints ShiftRightSignedWords(Ints a) {
  return _mm512_srai_epi16(a, kCount);
}
/// count > 0 ? a >> count : no; a shift by 9 and more may leave 0.
inline Ints ShiftRightIfPositive(Ints a, Ints count, Ints no) {
  return _mm512_mask_srlv_epi16(no, _mm512_cmpgt_epi16_mask(count, _mm512_setzero_si512()), a,
                                count);
}
/// In each 128 bits, word i of the result is the largest of v[i]'s.
inline Ints LargestOfEightWords(const Ints* v) {
  Ints a[4], b[2];
  for (int i = 0; i < 4; ++i) {
    a[i] = MaxWords(_mm512_unpacklo_epi16(v[2 * i], v[2 * i + 1]),
                    _mm512_unpackhi_epi16(v[2 * i], v[2 * i + 1]));
  }
  for (int i = 0; i < 2; ++i) {
    b[i] = MaxWords(_mm512_unpacklo_epi32(a[2 * i], a[2 * i + 1]),
                    _mm512_unpackhi_epi32(a[2 * i], a[2 * i + 1]));
  }
  return MaxWords(_mm512_unpacklo_epi64(b[0], b[1]), _mm512_unpackhi_epi64(b[0], b[1]));
}
/// The largest of the 128-bit parts of v[i] as part i of the result.
inline Ints JoinEights(const Ints* v) {
  const auto join = [](Ints x, Ints y) {
    return MaxWords(_mm512_shuffle_i32x4(x, y, 0x88), _mm512_shuffle_i32x4(x, y, 0xDD));
  };
  return join(join(v[0], v[1]), join(v[2], v[3]));
}
/// Stores the largest of every 16 of 256 words, widened.
inline void WidenLargestOfSixteens(uint32_t* p, const Ints* v) {
  const Ints parts = LargestOfEightWords(v);
  const Ints both = MaxWords(parts, _mm512_shuffle_i32x4(parts, parts, 0xB1));
  const __m128i even = _mm512_castsi512_si128(both), odd = _mm512_extracti32x4_epi32(both, 2);
  const __m256i words =
      _mm256_set_m128i(_mm_unpackhi_epi16(even, odd), _mm_unpacklo_epi16(even, odd));
  StoreInts(p, ShiftLeft<16>(_mm512_cvtepu16_epi32(words)));
}
inline int CountZeroMagnitudes(Ints words) {
  return __builtin_popcount(_mm512_testn_epi16_mask(words, AllWords(0x7FFF)));
}

/// The low bytes of 32 lanes in two registers, as 32 bytes.
inline void StoreLowBytes32(uint8_t* p, const Ints* v) {
  alignas(64) static constexpr uint8_t kIndex[64] = {
      0,  4,  8,  12, 16, 20, 24, 28, 32, 36,  40,  44,  48,  52,  56,  60,
      64, 68, 72, 76, 80, 84, 88, 92, 96, 100, 104, 108, 112, 116, 120, 124};
  const __m512i bytes = _mm512_permutex2var_epi8(v[0], _mm512_load_si512(kIndex), v[1]);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_castsi512_si256(bytes));
}
inline void StoreLowBytes(uint8_t* p, Ints v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(v));
}
/// 32 bytes of one code each to 16 bytes of two, the even one in the low nibble.
inline void StoreNibbles32(uint8_t* p, const uint8_t* codes) {
  const __m256i pairs = _mm256_maddubs_epi16(
      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)), _mm256_set1_epi16(0x1001));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtepi16_epi8(pairs));
}
/// The upper halves of lanes.
inline void StoreHighWords(uint16_t* p, Ints v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(ShiftRight<16>(v)));
}

struct ByteTally {
  int64_t zero = 0, below_normal = 0;
};
/// Adds how many of 32 codes have magnitude 0, and magnitude below `first_normal`.
inline void TallyBytes32(const uint8_t* p, uint8_t magnitude_mask, uint8_t first_normal,
                         ByteTally& tally) {
  const __m256i magnitude =
      _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
                       _mm256_set1_epi8(static_cast<char>(magnitude_mask)));
  const __mmask32 below =
      _mm256_cmplt_epu8_mask(magnitude, _mm256_set1_epi8(static_cast<char>(first_normal)));
  if (below == 0) return;
  tally.below_normal += __builtin_popcount(below);
  tally.zero += __builtin_popcount(_mm256_testn_epi8_mask(magnitude, magnitude));
}

/// 64 codes.
using Line = __m512i;
/// The low bytes of 64 lanes.
inline Line PackLine(const Ints* v) {
  alignas(64) static constexpr uint8_t kIndex[64] = {
      0,  4,  8,  12, 16, 20, 24, 28, 32, 36,  40,  44,  48,  52,  56,  60,
      64, 68, 72, 76, 80, 84, 88, 92, 96, 100, 104, 108, 112, 116, 120, 124};
  const __m512i index = _mm512_load_si512(kIndex);
  const __m512i low = _mm512_permutex2var_epi8(v[0], index, v[1]);
  const __m512i high = _mm512_permutex2var_epi8(v[2], index, v[3]);
  return _mm512_inserti64x4(low, _mm512_castsi512_si256(high), 1);
}
/// The numbers of 64 lanes, at most 2^15 in magnitude, within [low, high] as bytes; adds how many
/// are beyond.
inline Line PackClamped(const Ints* v, int low, int high, int64_t& beyond) {
  Ints words[2];
  for (int i = 0; i < 2; ++i) {
    const Ints numbers = _mm512_packs_epi32(v[2 * i], v[2 * i + 1]);
    words[i] = _mm512_min_epi16(MaxWords(numbers, AllWords(low)), AllWords(high));
    beyond += __builtin_popcount(_mm512_cmpneq_epi16_mask(words[i], numbers));
  }
  const Ints order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_epi32(order, _mm512_packs_epi16(words[0], words[1]));
}
/// The upper bytes of 64 words.
inline Line PackUpperBytes(const Ints* v) {
  alignas(64) static constexpr uint8_t kIndex[64] = {
      1,  3,  5,   7,   9,   11,  13,  15,  17,  19,  21,  23,  25,  27,  29,  31,
      33, 35, 37,  39,  41,  43,  45,  47,  49,  51,  53,  55,  57,  59,  61,  63,
      65, 67, 69,  71,  73,  75,  77,  79,  81,  83,  85,  87,  89,  91,  93,  95,
      97, 99, 101, 103, 105, 107, 109, 111, 113, 115, 117, 119, 121, 123, 125, 127};
  return _mm512_permutex2var_epi8(v[0], _mm512_load_si512(kIndex), v[1]);
}
/// (a >> 4 & mask) | b of each byte; mask has no bit above the fourth.
inline Line MaskedOrUpper(Line a, int mask, Line b) {
  return MaskedOr(_mm512_srli_epi16(a, 4), _mm512_set1_epi8(static_cast<char>(mask)), b);
}
inline Line LoadLine(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline Line MaskAndFlip(Line line, int mask, int flip) {
  return _mm512_ternarylogic_epi32(line, _mm512_set1_epi8(static_cast<char>(mask)),
                                   _mm512_set1_epi8(static_cast<char>(flip)), 0x6A);
}
/// table[code] of 16 bytes; codes are below 16.
inline Line LookUpBytes(const uint8_t* table, Line codes) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(bytes), codes);
}
/// table[code] of 32 bytes; codes are below 32.
inline Line LookUpThirtyTwoBytes(const uint8_t* table, Line codes) {
  const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(table));
  return _mm512_permutexvar_epi8(codes, _mm512_castsi256_si512(bytes));
}
inline int CountBytes(Line line, int byte) {
  return __builtin_popcountll(
      _mm512_cmpeq_epi8_mask(line, _mm512_set1_epi8(static_cast<char>(byte))));
}
/// 64 codes to 32 bytes of two, the even one in the low nibble.
inline __m256i Nibbles(Line codes) {
  alignas(64) static constexpr uint8_t kEven[64] = {0,  2,  4,  6,  8,  10, 12, 14, 16, 18, 20,
                                                    22, 24, 26, 28, 30, 32, 34, 36, 38, 40, 42,
                                                    44, 46, 48, 50, 52, 54, 56, 58, 60, 62};
  const __m512i pairs = _mm512_maddubs_epi16(codes, _mm512_set1_epi16(0x1001));
  const __m512i bytes = _mm512_permutexvar_epi8(_mm512_load_si512(kEven), pairs);
  return _mm512_castsi512_si256(bytes);
}
inline void StoreNibbles(uint8_t* p, Line codes) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), Nibbles(codes));
}
/// 32 bytes, and behind them 64 codes as StoreNibbles has them.
inline Line JoinNibbles(const uint8_t* first, Line codes) {
  const __m256i before = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(first));
  return _mm512_inserti64x4(_mm512_castsi256_si512(before), Nibbles(codes), 1);
}
/// `streams`: past the caches, to an aligned address.
inline void StoreLine(uint8_t* p, Line line, bool streams) {
  if (streams) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(p), line);
  } else {
    _mm512_storeu_si512(p, line);
  }
}
inline void TallyLine(Line line, uint8_t magnitude_mask, uint8_t first_normal, ByteTally& tally) {
  const __m512i magnitude =
      _mm512_and_si512(line, _mm512_set1_epi8(static_cast<char>(magnitude_mask)));
  const __mmask64 below =
      _mm512_cmplt_epu8_mask(magnitude, _mm512_set1_epi8(static_cast<char>(first_normal)));
  tally.below_normal += __builtin_popcountll(below);
  tally.zero += __builtin_popcountll(_mm512_testn_epi8_mask(magnitude, magnitude));
}

/// 64 rows of 16 bytes, `stride` apart, to 16 lines of 64: in each register four rows 16 apart,
/// then as in kernels/tensor/transpose.cc four rounds of interleaving registers eight apart.
inline void TransposeBytes64x16(const uint8_t* in, int64_t stride, Line* lines) {
  __m512i v[16], w[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    const auto part = [&](int row) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + (i + row) * stride));
    };
    v[i] = _mm512_castsi128_si512(part(0));
    v[i] = _mm512_inserti32x4(v[i], part(16), 1);
    v[i] = _mm512_inserti32x4(v[i], part(32), 2);
    v[i] = _mm512_inserti32x4(v[i], part(48), 3);
  }
  const auto round = [](const __m512i* from, __m512i* to) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      to[2 * i] = _mm512_unpacklo_epi8(from[i], from[i + 8]);
      to[2 * i + 1] = _mm512_unpackhi_epi8(from[i], from[i + 8]);
    }
  };
  round(v, w);
  round(w, v);
  round(v, w);
  round(w, lines);
}

}  // namespace
}  // namespace quantgate
