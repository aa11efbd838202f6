// AVX2 loops of the FP8 quantizer; the steps are those of quantize_avx512.cc, eight floats at a
// time. Nothing here but intrinsics and constants is inlined from elsewhere.
#include <immintrin.h>

#include "kernels/quantize/quantize_kernels.h"

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

// ---- sources: 32 elements as four registers of floats, in an order that Pack undoes

struct Floats {
  __m256 v[4];
};

__m256i PackInOrder(const __m256i code[4]) {
  // The packs work within 128-bit halves; the last permutation puts the dwords in order.
  const __m256i words = _mm256_packus_epi32(code[0], code[1]);
  const __m256i more = _mm256_packus_epi32(code[2], code[3]);
  return _mm256_permutevar8x32_epi32(_mm256_packus_epi16(words, more),
                                     _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

int64_t ZeroWords(__m256i words) {
  const __m256i magnitude = _mm256_and_si256(words, _mm256_set1_epi16(0x7FFF));
  const int bytes = _mm256_movemask_epi8(_mm256_cmpeq_epi16(magnitude, _mm256_setzero_si256()));
  return __builtin_popcount(static_cast<unsigned>(bytes)) / 2;
}

struct Bf16Source {
  using Storage = uint16_t;
  static constexpr DType kDType = DType::kBF16;
  static Floats Load(const Storage* p) {
    const __m256i a = LoadBits(p), b = LoadBits(p + 16);
    const __m256i odd = _mm256_set1_epi32(static_cast<int>(0xFFFF0000));
    return {{_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)),
             _mm256_castsi256_ps(_mm256_and_si256(a, odd)),
             _mm256_castsi256_ps(_mm256_slli_epi32(b, 16)),
             _mm256_castsi256_ps(_mm256_and_si256(b, odd))}};
  }
  static __m256i Pack(const __m256i code[4]) {
    const __m256i a = _mm256_or_si256(code[0], _mm256_slli_epi32(code[1], 8));
    const __m256i b = _mm256_or_si256(code[2], _mm256_slli_epi32(code[3], 8));
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xD8);
  }
  static int64_t Zeros(const Storage* p) {
    return ZeroWords(LoadBits(p)) + ZeroWords(LoadBits(p + 16));
  }
};

struct F16Source {
  using Storage = uint16_t;
  static constexpr DType kDType = DType::kF16;
  static Floats Load(const Storage* p) {
    Floats floats;
    for (int j = 0; j < 4; ++j) {
      floats.v[j] = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8 * j)));
    }
    return floats;
  }
  static __m256i Pack(const __m256i code[4]) { return PackInOrder(code); }
  static int64_t Zeros(const Storage* p) {
    return ZeroWords(LoadBits(p)) + ZeroWords(LoadBits(p + 16));
  }
};

struct F32Source {
  using Storage = float;
  static constexpr DType kDType = DType::kF32;
  static Floats Load(const Storage* p) {
    Floats floats;
    for (int j = 0; j < 4; ++j) floats.v[j] = _mm256_loadu_ps(p + 8 * j);
    return floats;
  }
  static __m256i Pack(const __m256i code[4]) { return PackInOrder(code); }
  static int64_t Zeros(const Storage* p) {
    int64_t zeros = 0;
    for (int j = 0; j < 4; ++j) {
      const __m256 is_zero =
          _mm256_cmp_ps(_mm256_loadu_ps(p + 8 * j), _mm256_setzero_ps(), _CMP_EQ_OQ);
      zeros += __builtin_popcount(static_cast<unsigned>(_mm256_movemask_ps(is_zero)));
    }
    return zeros;
  }
};

// ---- cast

/// As in quantize_avx512.cc.
template <class F>
__m256i Encode(__m256 value) {
  using C = FormatConstants<F>;
  constexpr int kShift = 23 - F::kMantissaBits;
  constexpr int kMinField = C::kExponentMin + 127;
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFFFF));
  const __m256i is_nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7F800000));
  const __m256i clamped = _mm256_min_epi32(
      magnitude, _mm256_set1_epi32(static_cast<int>(std::bit_cast<uint32_t>(MaxFinite<F>()))));
  const __m256i power = _mm256_max_epi32(_mm256_and_si256(clamped, _mm256_set1_epi32(0x7F800000)),
                                         _mm256_set1_epi32(kMinField << 23));
  const __m256i c = _mm256_add_epi32(power, _mm256_set1_epi32(kShift << 23));
  const __m256i sum =
      _mm256_castps_si256(_mm256_add_ps(_mm256_castsi256_ps(clamped), _mm256_castsi256_ps(c)));
  const __m256i kept = _mm256_sub_epi32(sum, c);
  const __m256i field = _mm256_sub_epi32(_mm256_srli_epi32(power, kShift),
                                         _mm256_set1_epi32(kMinField << F::kMantissaBits));
  const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80));
  const __m256i code = _mm256_or_si256(_mm256_add_epi32(kept, field), sign);
  return _mm256_blendv_epi8(code, _mm256_set1_epi32(F::kCanonicalNan), is_nan);
}

int64_t LanesSet(__m256i mask) {
  return __builtin_popcount(static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(mask))));
}

template <class Source, class F>
__attribute__((noinline)) void TallyTop(const typename Source::Storage* p, __m256 scale,
                                        CodeTally& tally) {
  const Floats floats = Source::Load(p);
  const __m256i mask = _mm256_set1_epi32(0x7FFFFFFF), infinity = _mm256_set1_epi32(0x7F800000);
  const __m256i last_within = _mm256_set1_epi32(static_cast<int>(FirstBeyondBits<F>() - 1));
  for (int j = 0; j < 4; ++j) {
    const __m256i source = _mm256_and_si256(_mm256_castps_si256(floats.v[j]), mask);
    const __m256i scaled =
        _mm256_and_si256(_mm256_castps_si256(_mm256_mul_ps(floats.v[j], scale)), mask);
    const __m256i finite = _mm256_cmpgt_epi32(infinity, source);
    tally.nan += LanesSet(_mm256_cmpgt_epi32(source, infinity));
    tally.infinite += LanesSet(_mm256_cmpeq_epi32(source, infinity));
    tally.saturated += LanesSet(_mm256_and_si256(finite, _mm256_cmpgt_epi32(scaled, last_within)));
  }
}

int64_t BytesSet(__m256i mask) {
  return __builtin_popcount(static_cast<unsigned>(_mm256_movemask_epi8(mask)));
}

template <class Source, class F, bool kBypassCache>
int64_t CastBody(const typename Source::Storage* source, const CastPiece& piece, CodeTally& tally) {
  using C = FormatConstants<F>;
  const __m256 scale = _mm256_set1_ps(piece.scale);
  const __m256i magnitude_mask = _mm256_set1_epi8(0x7F);
  const __m256i first_normal = _mm256_set1_epi8(static_cast<char>(1 << F::kMantissaBits));
  const __m256i below_largest = _mm256_set1_epi8(static_cast<char>(C::kMaxFinite - 1));
  int64_t i = 0;
  for (; i + 32 <= piece.count; i += 32) {
    const Floats floats = Source::Load(source + i);
    __m256i code[4];
    for (int j = 0; j < 4; ++j) code[j] = Encode<F>(_mm256_mul_ps(floats.v[j], scale));
    const __m256i codes = Source::Pack(code);
    auto* to = reinterpret_cast<__m256i*>(piece.codes + i);
    if constexpr (kBypassCache) {
      _mm256_stream_si256(to, codes);
    } else {
      _mm256_storeu_si256(to, codes);
    }
    // Magnitudes are below 128, so signed comparisons order them.
    const __m256i magnitude = _mm256_and_si256(codes, magnitude_mask);
    tally.source_zero += Source::Zeros(source + i);
    tally.code_zero += BytesSet(_mm256_cmpeq_epi8(magnitude, _mm256_setzero_si256()));
    tally.code_below_normal += BytesSet(_mm256_cmpgt_epi8(first_normal, magnitude));
    if (_mm256_movemask_epi8(_mm256_cmpgt_epi8(magnitude, below_largest)) != 0) {
      TallyTop<Source, F>(source + i, scale, tally);
    }
  }
  return i;
}

template <class Source, class F, DType kElement>
void Cast(const CastPiece& piece, QuantizationCounts& counts) {
  const auto* source = static_cast<const typename Source::Storage*>(piece.source);
  const bool bypass_cache =
      piece.bypass_cache && reinterpret_cast<uintptr_t>(piece.codes) % 32 == 0;
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

AmaxFunction Avx2Amax(DType source) {
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

CastFunction Avx2Cast(DType source, DType element) {
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
