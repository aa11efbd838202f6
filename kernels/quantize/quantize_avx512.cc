// AVX-512 loops of the FP8 quantizer. Nothing here but intrinsics and constants is inlined from
// elsewhere, so that no AVX-512 copy of a shared function can end up on a machine without it.
#include <immintrin.h>

#include "kernels/quantize/quantize_kernels.h"

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

// ---- sources: 64 elements as four registers of floats, in an order that Pack undoes

struct Floats {
  __m512 v[4];
};

/// Codes of registers 0 and 1, in the low bytes of dwords 0..15 each, then of 2 and 3: 64 codes in
/// order.
__m512i PackInOrder(const __m512i code[4]) {
  const __m128i a = _mm512_cvtepi32_epi8(code[0]), b = _mm512_cvtepi32_epi8(code[1]);
  const __m128i c = _mm512_cvtepi32_epi8(code[2]), d = _mm512_cvtepi32_epi8(code[3]);
  const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
  const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(c), d, 1);
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

uint64_t ZeroWords(__m512i words) {
  return static_cast<uint64_t>(
      __builtin_popcount(_mm512_testn_epi16_mask(words, _mm512_set1_epi16(0x7FFF))));
}

struct Bf16Source {
  using Storage = uint16_t;
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
  static __m512i Pack(const __m512i code[4]) {
    const __m512i a = _mm512_or_si512(code[0], _mm512_slli_epi32(code[1], 8));
    const __m512i b = _mm512_or_si512(code[2], _mm512_slli_epi32(code[3], 8));
    const __m256i low = _mm512_cvtepi32_epi16(a), high = _mm512_cvtepi32_epi16(b);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  }
  static uint64_t Zeros(const Storage* p) {
    return ZeroWords(_mm512_loadu_si512(p)) + ZeroWords(_mm512_loadu_si512(p + 32));
  }
};

struct F16Source {
  using Storage = uint16_t;
  static constexpr DType kDType = DType::kF16;
  static Floats Load(const Storage* p) {
    Floats floats;
    for (int j = 0; j < 4; ++j) {
      floats.v[j] =
          _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16 * j)));
    }
    return floats;
  }
  static __m512i Pack(const __m512i code[4]) { return PackInOrder(code); }
  static uint64_t Zeros(const Storage* p) {
    return ZeroWords(_mm512_loadu_si512(p)) + ZeroWords(_mm512_loadu_si512(p + 32));
  }
};

struct F32Source {
  using Storage = float;
  static constexpr DType kDType = DType::kF32;
  static Floats Load(const Storage* p) {
    Floats floats;
    for (int j = 0; j < 4; ++j) floats.v[j] = _mm512_loadu_ps(p + 16 * j);
    return floats;
  }
  static __m512i Pack(const __m512i code[4]) { return PackInOrder(code); }
  static uint64_t Zeros(const Storage* p) {
    uint64_t zeros = 0;
    for (int j = 0; j < 4; ++j) {
      zeros += static_cast<uint64_t>(__builtin_popcount(
          _mm512_testn_epi32_mask(_mm512_loadu_si512(p + 16 * j), _mm512_set1_epi32(0x7FFFFFFF))));
    }
    return zeros;
  }
};

// ---- cast

/// EncodeFloat<F>, nearest even and saturating, of 16 floats, in dwords. A float addition rounds:
/// beside c = 2^(23 - mantissa bits) times the element's power of two, the last bit of the sum is
/// the quantum of step 3, so the sum's low bits are `kept`. c is never below that of the smallest
/// normal, which makes subnormals the same case.
template <class F>
__m512i Encode(__m512 value) {
  using C = FormatConstants<F>;
  constexpr int kShift = 23 - F::kMantissaBits;
  constexpr int kMinField = C::kExponentMin + 127;
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7FFFFFFF));
  const __mmask16 is_nan = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7F800000));
  const __m512i clamped = _mm512_min_epi32(
      magnitude, _mm512_set1_epi32(static_cast<int>(std::bit_cast<uint32_t>(MaxFinite<F>()))));
  const __m512i power = _mm512_max_epi32(_mm512_and_si512(clamped, _mm512_set1_epi32(0x7F800000)),
                                         _mm512_set1_epi32(kMinField << 23));
  const __m512i c = _mm512_add_epi32(power, _mm512_set1_epi32(kShift << 23));
  const __m512i sum =
      _mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(clamped), _mm512_castsi512_ps(c)));
  const __m512i kept = _mm512_sub_epi32(sum, c);
  const __m512i field = _mm512_sub_epi32(_mm512_srli_epi32(power, kShift),
                                         _mm512_set1_epi32(kMinField << F::kMantissaBits));
  const __m512i code = _mm512_add_epi32(kept, field);
  // code | (bits >> 24 & 0x80)
  const __m512i with_sign =
      _mm512_ternarylogic_epi32(code, _mm512_srli_epi32(bits, 24), _mm512_set1_epi32(0x80), 0xF8);
  return _mm512_mask_mov_epi32(with_sign, is_nan, _mm512_set1_epi32(F::kCanonicalNan));
}

/// Of 64 elements some codes are the largest finite or NaN: tells why.
template <class Source, class F>
__attribute__((noinline)) void TallyTop(const typename Source::Storage* p, __m512 scale,
                                        CodeTally& tally) {
  const Floats floats = Source::Load(p);
  const __m512i mask = _mm512_set1_epi32(0x7FFFFFFF), infinity = _mm512_set1_epi32(0x7F800000);
  const __m512i beyond = _mm512_set1_epi32(static_cast<int>(FirstBeyondBits<F>()));
  for (int j = 0; j < 4; ++j) {
    const __m512i source = _mm512_and_si512(_mm512_castps_si512(floats.v[j]), mask);
    const __m512i scaled =
        _mm512_and_si512(_mm512_castps_si512(_mm512_mul_ps(floats.v[j], scale)), mask);
    const __mmask16 finite = _mm512_cmplt_epi32_mask(source, infinity);
    tally.nan += __builtin_popcount(_mm512_cmpgt_epi32_mask(source, infinity));
    tally.infinite += __builtin_popcount(_mm512_cmpeq_epi32_mask(source, infinity));
    tally.saturated += __builtin_popcount(_mm512_mask_cmpge_epi32_mask(finite, scaled, beyond));
  }
}

template <class Source, class F, bool kBypassCache>
int64_t CastBody(const typename Source::Storage* source, const CastPiece& piece, CodeTally& tally) {
  using C = FormatConstants<F>;
  const __m512 scale = _mm512_set1_ps(piece.scale);
  const __m512i magnitude_mask = _mm512_set1_epi8(0x7F);
  const __m512i first_normal = _mm512_set1_epi8(static_cast<char>(1 << F::kMantissaBits));
  const __m512i largest = _mm512_set1_epi8(static_cast<char>(C::kMaxFinite));
  int64_t i = 0;
  for (; i + 64 <= piece.count; i += 64) {
    const Floats floats = Source::Load(source + i);
    __m512i code[4];
    for (int j = 0; j < 4; ++j) code[j] = Encode<F>(_mm512_mul_ps(floats.v[j], scale));
    const __m512i codes = Source::Pack(code);
    if constexpr (kBypassCache) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(piece.codes + i), codes);
    } else {
      _mm512_storeu_si512(piece.codes + i, codes);
    }
    const __m512i magnitude = _mm512_and_si512(codes, magnitude_mask);
    tally.source_zero += Source::Zeros(source + i);
    tally.code_zero += __builtin_popcountll(_mm512_testn_epi8_mask(codes, magnitude_mask));
    tally.code_below_normal +=
        __builtin_popcountll(_mm512_cmplt_epu8_mask(magnitude, first_normal));
    if (_mm512_cmpge_epu8_mask(magnitude, largest) != 0) {
      TallyTop<Source, F>(source + i, scale, tally);
    }
  }
  return i;
}

template <class Source, class F, DType kElement>
void Cast(const CastPiece& piece, QuantizationCounts& counts) {
  const auto* source = static_cast<const typename Source::Storage*>(piece.source);
  const bool bypass_cache =
      piece.bypass_cache && reinterpret_cast<uintptr_t>(piece.codes) % 64 == 0;
  CodeTally tally;
  const int64_t done = bypass_cache ? CastBody<Source, F, true>(source, piece, tally)
                                    : CastBody<Source, F, false>(source, piece, tally);
  if (bypass_cache) _mm_sfence();
  AddTally(tally, done, counts);
  const CastPiece tail = {source + done, piece.count - done, piece.scale, piece.codes + done,
                          false};
  ScalarCast(Source::kDType, kElement)(tail, ElementRounding::kNearestEven, Overflow::kSaturate,
                                       counts);
}

template <class Source>
CastFunction CastFrom(DType element) {
  return element == DType::kF8E4M3 ? &Cast<Source, E4M3, DType::kF8E4M3>
                                   : &Cast<Source, E5M2, DType::kF8E5M2>;
}

}  // namespace

AmaxFunction Avx512Amax(DType source) {
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

CastFunction Avx512Cast(DType source, DType element) {
  switch (source) {
    case DType::kF32:
      return CastFrom<F32Source>(element);
    case DType::kBF16:
      return CastFrom<Bf16Source>(element);
    case DType::kF16:
      return CastFrom<F16Source>(element);
    default:
      return nullptr;
  }
}

}  // namespace quantgate
