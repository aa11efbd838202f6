// AVX2 loops of the FP8 quantizer; the steps are those of quantize_avx512.cc, eight floats at a
// time. Nothing here but intrinsics and constants is inlined from elsewhere.
#include <immintrin.h>

#include "kernels/quantize/cpu/quantize_kernels.h"

namespace quantgate {
namespace {

__m256i LoadBits(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

// ---- amax

template <uint16_t kInfinity, DType kSource>
uint32_t Amax16(const void* source, int64_t count) {
  const auto* codes = static_cast<const uint16_t*>(source);
  const __m256i mask = _mm256_set1_epi16(0x7FFF), infinity = _mm256_set1_epi16(kInfinity);
  // Magnitudes are below 2^15, so signed comparisons order them.
  const auto magnitude = [&](int64_t i) {
    const __m256i m = _mm256_and_si256(LoadBits(codes + i), mask);
    return _mm256_andnot_si256(_mm256_cmpgt_epi16(m, infinity), m);
  };
  __m256i max[4] = {};
  int64_t i = 0;
  for (; i + 64 <= count; i += 64) {
    for (int j = 0; j < 4; ++j) max[j] = _mm256_max_epi16(max[j], magnitude(i + 16 * j));
  }
  alignas(32) uint16_t lanes[16];
  _mm256_store_si256(
      reinterpret_cast<__m256i*>(lanes),
      _mm256_max_epi16(_mm256_max_epi16(max[0], max[1]), _mm256_max_epi16(max[2], max[3])));
  uint32_t amax = ScalarAmax(kSource)(codes + i, count - i);
  for (const uint16_t lane : lanes) amax = lane > amax ? lane : amax;
  return amax;
}

uint32_t Amax32(const void* source, int64_t count) {
  const auto* codes = static_cast<const uint32_t*>(source);
  const __m256i mask = _mm256_set1_epi32(0x7FFFFFFF), infinity = _mm256_set1_epi32(0x7F800000);
  const auto magnitude = [&](int64_t i) {
    const __m256i m = _mm256_and_si256(LoadBits(codes + i), mask);
    return _mm256_andnot_si256(_mm256_cmpgt_epi32(m, infinity), m);
  };
  __m256i max[4] = {};
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    for (int j = 0; j < 4; ++j) max[j] = _mm256_max_epi32(max[j], magnitude(i + 8 * j));
  }
  alignas(32) uint32_t lanes[8];
  _mm256_store_si256(
      reinterpret_cast<__m256i*>(lanes),
      _mm256_max_epi32(_mm256_max_epi32(max[0], max[1]), _mm256_max_epi32(max[2], max[3])));
  uint32_t amax = ScalarAmax(DType::kF32)(codes + i, count - i);
  for (const uint32_t lane : lanes) amax = lane > amax ? lane : amax;
  return amax;
}

// ---- sources: 32 elements as four registers of floats. Words and bytes are packed within 128-bit
// halves; FinishBytes puts them in order. Bit 7 of a byte of Signs is the sign of the element whose
// code Pack puts there.

struct Floats {
  __m256 v[4];
};

struct Codes {
  __m256i v[4];  // One in each dword, below 256.
};

int64_t BytesSet(__m256i mask) {
  return __builtin_popcount(static_cast<unsigned>(_mm256_movemask_epi8(mask)));
}
int64_t DwordsSet(__m256i mask) {
  return __builtin_popcount(static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(mask))));
}

/// What bf16 and f16 share.
template <uint16_t kInfinityBits>
struct WordSource {
  using Storage = uint16_t;
  static __m256i Magnitude(const Storage* p) {
    return _mm256_and_si256(LoadBits(p), _mm256_set1_epi16(0x7FFF));
  }
  /// Elements whose magnitude is `value`.
  static int64_t CountEqual(const Storage* p, uint16_t value) {
    const __m256i all = _mm256_set1_epi16(static_cast<short>(value));
    return (BytesSet(_mm256_cmpeq_epi16(Magnitude(p), all)) +
            BytesSet(_mm256_cmpeq_epi16(Magnitude(p + 16), all))) /
           2;
  }
  static int64_t Zeros(const Storage* p) { return CountEqual(p, 0); }
  static int64_t Infinities(const Storage* p) { return CountEqual(p, kInfinityBits); }
};

/// Registers 0 to 3 are elements 0 to 7, 8 to 15, 16 to 23, 24 to 31.
__m256i PackInOrder(const Codes& codes) {
  return _mm256_packus_epi16(_mm256_packus_epi32(codes.v[0], codes.v[1]),
                             _mm256_packus_epi32(codes.v[2], codes.v[3]));
}
__m256i OrderDwords(__m256i bytes) {
  return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
__m256i SignsInOrder(const Floats& floats) {
  Codes signs;
  for (int j = 0; j < 4; ++j) signs.v[j] = _mm256_srli_epi32(_mm256_castps_si256(floats.v[j]), 24);
  return PackInOrder(signs);
}

struct Bf16Source : WordSource<0x7F80> {
  static constexpr DType kDType = DType::kBF16;
  /// Even elements of 16 in register 0, odd ones in register 1.
  static Floats Load(const Storage* p) {
    const __m256i a = LoadBits(p), b = LoadBits(p + 16);
    const __m256i odd = _mm256_set1_epi32(static_cast<int>(0xFFFF0000));
    return {{_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)),
             _mm256_castsi256_ps(_mm256_and_si256(a, odd)),
             _mm256_castsi256_ps(_mm256_slli_epi32(b, 16)),
             _mm256_castsi256_ps(_mm256_and_si256(b, odd))}};
  }
  static __m256i Pack(const Codes& codes) {
    return _mm256_packus_epi32(_mm256_or_si256(codes.v[0], _mm256_slli_epi32(codes.v[1], 8)),
                               _mm256_or_si256(codes.v[2], _mm256_slli_epi32(codes.v[3], 8)));
  }
  static __m256i Signs(const Storage* p, const Floats&) {
    return _mm256_packus_epi16(_mm256_srli_epi16(LoadBits(p), 8),
                               _mm256_srli_epi16(LoadBits(p + 16), 8));
  }
  static __m256i FinishBytes(__m256i bytes) { return _mm256_permute4x64_epi64(bytes, 0xD8); }
};

struct F16Source : WordSource<0x7C00> {
  static constexpr DType kDType = DType::kF16;
  static Floats Load(const Storage* p) {
    Floats floats;
    for (int j = 0; j < 4; ++j) {
      floats.v[j] = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8 * j)));
    }
    return floats;
  }
  static __m256i Pack(const Codes& codes) { return PackInOrder(codes); }
  static __m256i Signs(const Storage*, const Floats& floats) { return SignsInOrder(floats); }
  static __m256i FinishBytes(__m256i bytes) { return OrderDwords(bytes); }
};

struct F32Source {
  using Storage = float;
  static constexpr DType kDType = DType::kF32;
  static Floats Load(const Storage* p) {
    Floats floats;
    for (int j = 0; j < 4; ++j) floats.v[j] = _mm256_loadu_ps(p + 8 * j);
    return floats;
  }
  static __m256i Pack(const Codes& codes) { return PackInOrder(codes); }
  static __m256i Signs(const Storage*, const Floats& floats) { return SignsInOrder(floats); }
  static __m256i FinishBytes(__m256i bytes) { return OrderDwords(bytes); }
  static int64_t CountEqual(const Storage* p, uint32_t value) {
    const __m256i mask = _mm256_set1_epi32(0x7FFFFFFF);
    const __m256i all = _mm256_set1_epi32(static_cast<int>(value));
    int64_t count = 0;
    for (int j = 0; j < 4; ++j) {
      count += DwordsSet(_mm256_cmpeq_epi32(_mm256_and_si256(LoadBits(p + 8 * j), mask), all));
    }
    return count;
  }
  static int64_t Zeros(const Storage* p) { return CountEqual(p, 0); }
  static int64_t Infinities(const Storage* p) { return CountEqual(p, 0x7F800000); }
};

// ---- cast

__m256i MagnitudeBits(__m256 value) {
  return _mm256_and_si256(_mm256_castps_si256(value), _mm256_set1_epi32(0x7FFFFFFF));
}

/// As in quantize_avx512.cc, without its bias.
template <class F>
__m256i EncodeMagnitude(__m256 value) {
  constexpr int kShift = 23 - F::kMantissaBits;
  constexpr int kMinField = FormatConstants<F>::kExponentMin + 127;
  const __m256i clamped = _mm256_min_epi32(
      MagnitudeBits(value),
      _mm256_set1_epi32(static_cast<int>(std::bit_cast<uint32_t>(MaxFinite<F>()))));
  const __m256i power = _mm256_max_epi32(_mm256_and_si256(clamped, _mm256_set1_epi32(0x7F800000)),
                                         _mm256_set1_epi32(kMinField << 23));
  const __m256i c = _mm256_add_epi32(power, _mm256_set1_epi32(kShift << 23));
  const __m256i sum =
      _mm256_castps_si256(_mm256_add_ps(_mm256_castsi256_ps(clamped), _mm256_castsi256_ps(c)));
  const __m256i field = _mm256_sub_epi32(_mm256_srli_epi32(power, kShift),
                                         _mm256_set1_epi32(kMinField << F::kMantissaBits));
  return _mm256_add_epi32(_mm256_sub_epi32(sum, c), field);
}

/// Some of 32 magnitude codes are the largest finite: counts why, and returns which are NaN, as
/// bytes before FinishBytes.
template <class Source, class F>
__attribute__((noinline)) __m256i TallyTop(const typename Source::Storage* p, __m256 scale,
                                           CastTally& tally) {
  const Floats floats = Source::Load(p);
  const __m256i last_within = _mm256_set1_epi32(static_cast<int>(FirstBeyondBits<F>() - 1));
  const __m256i infinity = _mm256_set1_epi32(0x7F800000);
  Codes is_nan;
  int64_t above = 0, nan = 0;  // Infinities and NaN are above: their bits are the largest.
  for (int j = 0; j < 4; ++j) {
    const __m256i scaled = MagnitudeBits(_mm256_mul_ps(floats.v[j], scale));
    const __m256i nan_lanes = _mm256_cmpgt_epi32(scaled, infinity);
    above += DwordsSet(_mm256_cmpgt_epi32(scaled, last_within));
    nan += DwordsSet(nan_lanes);
    is_nan.v[j] = _mm256_srli_epi32(nan_lanes, 24);
  }
  const int64_t infinite = Source::Infinities(p);
  tally.infinite += infinite;
  tally.nan += nan;
  tally.saturated += above - infinite - nan;
  return Source::Pack(is_nan);
}

template <class Source, class F>
int64_t CastBody(const CastPiece& piece, CastTally& tally) {
  using C = FormatConstants<F>;
  const auto* source = static_cast<const typename Source::Storage*>(piece.source);
  const __m256 scale = _mm256_set1_ps(piece.scale);
  const __m256i sign = _mm256_set1_epi8(static_cast<char>(0x80));
  const __m256i first_normal = _mm256_set1_epi8(1 << F::kMantissaBits);
  const __m256i largest = _mm256_set1_epi8(C::kMaxFinite);
  const __m256i nan = _mm256_set1_epi8(F::kCanonicalNan);
  int64_t i = 0;
  for (; i + 32 <= piece.count; i += 32) {
    const Floats floats = Source::Load(source + i);
    Codes encoded;
    for (int j = 0; j < 4; ++j) {
      encoded.v[j] = EncodeMagnitude<F>(_mm256_mul_ps(floats.v[j], scale));
    }
    const __m256i magnitude = Source::Pack(encoded);
    const __m256i signs = _mm256_and_si256(Source::Signs(source + i, floats), sign);
    __m256i codes = _mm256_or_si256(magnitude, signs);
    // Magnitudes are below 128, so signed comparisons order them.
    tally.source_zero += Source::Zeros(source + i);
    tally.code_zero += BytesSet(_mm256_cmpeq_epi8(magnitude, _mm256_setzero_si256()));
    tally.code_below_normal += BytesSet(_mm256_cmpgt_epi8(first_normal, magnitude));
    if (_mm256_movemask_epi8(_mm256_cmpeq_epi8(magnitude, largest)) != 0) {
      codes = _mm256_blendv_epi8(codes, nan, TallyTop<Source, F>(source + i, scale, tally));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(piece.codes + i), Source::FinishBytes(codes));
  }
  return i;
}

}  // namespace
}  // namespace quantgate

#include "kernels/quantize/cpu/fp8_cast_body.h"

namespace quantgate {

AmaxFunction Avx2Amax(DType source) { return AmaxFrom(source); }
CastFunction Avx2Cast(DType source, DType element) { return CastFrom(source, element); }

}  // namespace quantgate
