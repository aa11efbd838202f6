// AVX-512 loops of the FP8 quantizer. Nothing here but intrinsics and constants is inlined from
// elsewhere, so that no AVX-512 copy of a shared function can end up on a machine without it.
#include <immintrin.h>

#include "kernels/quantize/cpu/quantize_kernels.h"

namespace quantgate {
namespace {

// ---- amax

uint32_t MaxOfWords(__m512i words) {
  const __m512i low = _mm512_and_si512(words, _mm512_set1_epi32(0xFFFF));
  const __m512i high = _mm512_srli_epi32(words, 16);
  return _mm512_reduce_max_epu32(_mm512_max_epu32(low, high));
}

/// bf16 and f16: 16-bit magnitudes, those above `infinity` (NaN) taken as 0.
template <uint16_t kInfinity, DType kSource>
uint32_t Amax16(const void* source, int64_t count) {
  const auto* codes = static_cast<const uint16_t*>(source);
  const __m512i mask = _mm512_set1_epi16(0x7FFF), infinity = _mm512_set1_epi16(kInfinity);
  const auto magnitude = [&](int64_t i) {
    const __m512i m = _mm512_and_si512(_mm512_loadu_si512(codes + i), mask);
    return _mm512_maskz_mov_epi16(_mm512_cmple_epu16_mask(m, infinity), m);
  };
  // Four maxima in flight: one alone waits for itself.
  __m512i max[4] = {};
  int64_t i = 0;
  for (; i + 128 <= count; i += 128) {
    for (int j = 0; j < 4; ++j) max[j] = _mm512_max_epu16(max[j], magnitude(i + 32 * j));
  }
  const __m512i all =
      _mm512_max_epu16(_mm512_max_epu16(max[0], max[1]), _mm512_max_epu16(max[2], max[3]));
  const uint32_t body = MaxOfWords(all), tail = ScalarAmax(kSource)(codes + i, count - i);
  return body > tail ? body : tail;
}

uint32_t Amax32(const void* source, int64_t count) {
  const auto* codes = static_cast<const uint32_t*>(source);
  const __m512i mask = _mm512_set1_epi32(0x7FFFFFFF), infinity = _mm512_set1_epi32(0x7F800000);
  const auto magnitude = [&](int64_t i) {
    const __m512i m = _mm512_and_si512(_mm512_loadu_si512(codes + i), mask);
    return _mm512_maskz_mov_epi32(_mm512_cmple_epu32_mask(m, infinity), m);
  };
  __m512i max[4] = {};
  int64_t i = 0;
  for (; i + 64 <= count; i += 64) {
    for (int j = 0; j < 4; ++j) max[j] = _mm512_max_epu32(max[j], magnitude(i + 16 * j));
  }
  const __m512i all =
      _mm512_max_epu32(_mm512_max_epu32(max[0], max[1]), _mm512_max_epu32(max[2], max[3]));
  const uint32_t body = _mm512_reduce_max_epu32(all);
  const uint32_t tail = ScalarAmax(DType::kF32)(codes + i, count - i);
  return body > tail ? body : tail;
}

// ---- sources: 64 elements as four registers of floats, in an order that Pack undoes; masks have
// bit i for element i

struct Floats {
  __m512 v[4];
};

struct LowBytes {
  __m512i v[4];  // A code in the low byte of each dword; the rest is ignored.
};

uint64_t Join(__mmask32 low, __mmask32 high) { return _mm512_kunpackd(high, low); }
uint64_t Join(__mmask16 a, __mmask16 b, __mmask16 c, __mmask16 d) {
  return Join(_mm512_kunpackw(b, a), _mm512_kunpackw(d, c));
}

/// Registers 0 to 3 are elements 0 to 15, 16 to 31, 32 to 47, 48 to 63.
__m512i PackInOrder(const LowBytes& codes) {
  const __m128i a = _mm512_cvtepi32_epi8(codes.v[0]), b = _mm512_cvtepi32_epi8(codes.v[1]);
  const __m128i c = _mm512_cvtepi32_epi8(codes.v[2]), d = _mm512_cvtepi32_epi8(codes.v[3]);
  const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
  const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(c), d, 1);
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

/// What bf16 and f16 share.
template <uint16_t kInfinity>
struct WordSource {
  using Storage = uint16_t;
  static __m512i Magnitude(const Storage* p) {
    return _mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi16(0x7FFF));
  }
  static uint64_t Signs(const Storage* p) {
    return Join(_mm512_movepi16_mask(_mm512_loadu_si512(p)),
                _mm512_movepi16_mask(_mm512_loadu_si512(p + 32)));
  }
  static uint64_t Zeros(const Storage* p) {
    const __m512i mask = _mm512_set1_epi16(0x7FFF);
    return Join(_mm512_testn_epi16_mask(_mm512_loadu_si512(p), mask),
                _mm512_testn_epi16_mask(_mm512_loadu_si512(p + 32), mask));
  }
  static uint64_t Infinities(const Storage* p) {
    const __m512i infinity = _mm512_set1_epi16(kInfinity);
    return Join(_mm512_cmpeq_epi16_mask(Magnitude(p), infinity),
                _mm512_cmpeq_epi16_mask(Magnitude(p + 32), infinity));
  }
  static uint64_t Nans(const Storage* p) {
    const __m512i infinity = _mm512_set1_epi16(kInfinity);
    return Join(_mm512_cmpgt_epi16_mask(Magnitude(p), infinity),
                _mm512_cmpgt_epi16_mask(Magnitude(p + 32), infinity));
  }
};

struct Bf16Source : WordSource<0x7F80> {
  static constexpr DType kDType = DType::kBF16;
  /// Even elements of 32 in register 0, odd ones in register 1: widening is a shift and a mask.
  static Floats Load(const Storage* p) {
    const __m512i a = _mm512_loadu_si512(p), b = _mm512_loadu_si512(p + 32);
    const __m512i odd = _mm512_set1_epi32(static_cast<int>(0xFFFF0000));
    return {{_mm512_castsi512_ps(_mm512_slli_epi32(a, 16)),
             _mm512_castsi512_ps(_mm512_and_si512(a, odd)),
             _mm512_castsi512_ps(_mm512_slli_epi32(b, 16)),
             _mm512_castsi512_ps(_mm512_and_si512(b, odd))}};
  }
  static __m512i Pack(const LowBytes& codes) {
    // Byte 2i of the result is byte 4i of the even register, byte 2i + 1 is byte 4i of the odd one
    // (index bit 6).
    alignas(64) static constexpr uint8_t kIndex[64] = {
        0,  64, 4,  68,  8,  72,  12, 76,  16, 80,  20, 84,  24, 88,  28, 92,
        32, 96, 36, 100, 40, 104, 44, 108, 48, 112, 52, 116, 56, 120, 60, 124,
        0,  64, 4,  68,  8,  72,  12, 76,  16, 80,  20, 84,  24, 88,  28, 92,
        32, 96, 36, 100, 40, 104, 44, 108, 48, 112, 52, 116, 56, 120, 60, 124};
    const __m512i index = _mm512_load_si512(kIndex);
    const __m512i low = _mm512_permutex2var_epi8(codes.v[0], index, codes.v[1]);
    const __m512i high = _mm512_permutex2var_epi8(codes.v[2], index, codes.v[3]);
    return _mm512_mask_blend_epi64(0xF0, low, high);
  }
};

struct F16Source : WordSource<0x7C00> {
  static constexpr DType kDType = DType::kF16;
  static Floats Load(const Storage* p) {
    Floats floats;
    for (int j = 0; j < 4; ++j) {
      floats.v[j] =
          _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16 * j)));
    }
    return floats;
  }
  static __m512i Pack(const LowBytes& codes) { return PackInOrder(codes); }
};

struct F32Source {
  using Storage = float;
  static constexpr DType kDType = DType::kF32;
  static Floats Load(const Storage* p) {
    Floats floats;
    for (int j = 0; j < 4; ++j) floats.v[j] = _mm512_loadu_ps(p + 16 * j);
    return floats;
  }
  static __m512i Pack(const LowBytes& codes) { return PackInOrder(codes); }

  /// fpclass categories, one bit each.
  static constexpr int kNan = 0x81, kZero = 0x06, kInfinity = 0x18;
  template <int kCategories>
  static uint64_t Classified(const Storage* p) {
    return Join(_mm512_fpclass_ps_mask(_mm512_loadu_ps(p), kCategories),
                _mm512_fpclass_ps_mask(_mm512_loadu_ps(p + 16), kCategories),
                _mm512_fpclass_ps_mask(_mm512_loadu_ps(p + 32), kCategories),
                _mm512_fpclass_ps_mask(_mm512_loadu_ps(p + 48), kCategories));
  }
  static uint64_t Signs(const Storage* p) {
    return Join(_mm512_movepi32_mask(_mm512_loadu_si512(p)),
                _mm512_movepi32_mask(_mm512_loadu_si512(p + 16)),
                _mm512_movepi32_mask(_mm512_loadu_si512(p + 32)),
                _mm512_movepi32_mask(_mm512_loadu_si512(p + 48)));
  }
  static uint64_t Zeros(const Storage* p) { return Classified<kZero>(p); }
  static uint64_t Infinities(const Storage* p) { return Classified<kInfinity>(p); }
  static uint64_t Nans(const Storage* p) { return Classified<kNan>(p); }
};

// ---- cast

__m512i MagnitudeBits(__m512 value) {
  return _mm512_and_si512(_mm512_castps_si512(value), _mm512_set1_epi32(0x7FFFFFFF));
}

/// kEncodeBias<F> more than the magnitude code of |value|, modulo 256, in the low byte of each
/// dword: EncodeFloat<F>, nearest even and saturating, but for NaN, which becomes the largest
/// finite code. A float addition rounds: beside c = 2^(23 - mantissa bits) times the element's
/// power of two, the last bit of the sum is the quantum of step 3, so the sum's low bits are
/// `kept`. c is never below that of the smallest normal, which makes subnormals the same case. The
/// exponent field of the code is that of c, less a constant: c >> (23 - mantissa bits) lies where
/// it belongs.
template <class F>
__m512i EncodeMagnitude(__m512 value) {
  constexpr int kShift = 23 - F::kMantissaBits;
  constexpr int kMinPower = (FormatConstants<F>::kExponentMin + 127) << 23;
  const __m512i clamped = _mm512_min_epi32(
      MagnitudeBits(value),
      _mm512_set1_epi32(static_cast<int>(std::bit_cast<uint32_t>(MaxFinite<F>()))));
  const __m512i power = _mm512_max_epi32(_mm512_and_si512(clamped, _mm512_set1_epi32(0x7F800000)),
                                         _mm512_set1_epi32(kMinPower));
  const __m512i c = _mm512_add_epi32(power, _mm512_set1_epi32(kShift << 23));
  const __m512i sum =
      _mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(clamped), _mm512_castsi512_ps(c)));
  return _mm512_add_epi32(_mm512_sub_epi32(sum, c), _mm512_srli_epi32(c, kShift));
}

template <class F>
constexpr int kEncodeBias = (FormatConstants<F>::kExponentMin + 127 + 23 - F::kMantissaBits)
                            << F::kMantissaBits;

/// Some of 64 magnitude codes are the largest finite: counts why, and returns which are NaN.
template <class Source, class F>
__attribute__((noinline)) uint64_t TallyTop(const typename Source::Storage* p, __m512 scale,
                                            CastTally& tally) {
  const Floats floats = Source::Load(p);
  const __m512i beyond = _mm512_set1_epi32(static_cast<int>(FirstBeyondBits<F>()));
  int64_t above = 0;  // Infinities and NaN included: their bits are the largest.
  for (int j = 0; j < 4; ++j) {
    above += __builtin_popcount(
        _mm512_cmpge_epi32_mask(MagnitudeBits(_mm512_mul_ps(floats.v[j], scale)), beyond));
  }
  const uint64_t nans = Source::Nans(p);
  const int64_t infinite = __builtin_popcountll(Source::Infinities(p));
  const int64_t nan = __builtin_popcountll(nans);
  tally.infinite += infinite;
  tally.nan += nan;
  tally.saturated += above - infinite - nan;
  return nans;
}

template <class Source, class F>
int64_t CastBody(const CastPiece& piece, CastTally& tally) {
  using C = FormatConstants<F>;
  const auto* source = static_cast<const typename Source::Storage*>(piece.source);
  const __m512 scale = _mm512_set1_ps(piece.scale);
  const __m512i bias = _mm512_set1_epi8(static_cast<char>(kEncodeBias<F>));
  const __m512i first_normal = _mm512_set1_epi8(1 << F::kMantissaBits);
  const __m512i largest = _mm512_set1_epi8(C::kMaxFinite);
  const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
  const __m512i nan = _mm512_set1_epi8(F::kCanonicalNan);
  int64_t i = 0;
  for (; i + 64 <= piece.count; i += 64) {
    const Floats floats = Source::Load(source + i);
    LowBytes encoded;
    for (int j = 0; j < 4; ++j) {
      encoded.v[j] = EncodeMagnitude<F>(_mm512_mul_ps(floats.v[j], scale));
    }
    const __m512i magnitude = _mm512_sub_epi8(Source::Pack(encoded), bias);
    __m512i codes = _mm512_mask_add_epi8(magnitude, Source::Signs(source + i), magnitude, sign);
    tally.source_zero += __builtin_popcountll(Source::Zeros(source + i));
    tally.code_zero += __builtin_popcountll(_mm512_testn_epi8_mask(magnitude, magnitude));
    tally.code_below_normal +=
        __builtin_popcountll(_mm512_cmplt_epu8_mask(magnitude, first_normal));
    if (_mm512_cmpeq_epi8_mask(magnitude, largest) != 0) {
      codes = _mm512_mask_mov_epi8(codes, TallyTop<Source, F>(source + i, scale, tally), nan);
    }
    _mm512_storeu_si512(piece.codes + i, codes);
  }
  return i;
}

}  // namespace
}  // namespace quantgate

#include "kernels/quantize/cpu/fp8_cast_body.h"

namespace quantgate {

AmaxFunction Avx512Amax(DType source) { return AmaxFrom(source); }
CastFunction Avx512Cast(DType source, DType element) { return CastFrom(source, element); }

}  // namespace quantgate
