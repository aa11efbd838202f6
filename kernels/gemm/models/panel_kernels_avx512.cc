// Panel kernels for AVX-512 F, BW, DQ, VL. Built with those flags; called only where BestIsa() says
// so.
#include <immintrin.h>

#include "kernels/gemm/models/group_kernels_body.h"
#include "kernels/gemm/models/panel.h"
#include "kernels/gemm/models/panel_decode.h"
#include "kernels/gemm/models/panel_kernels_body.h"

namespace quantgate {
namespace {

struct Avx512 {
  using Floats = __m512;
  using Doubles = __m512d;
  using Integers = __m512i;
  using HalfFloats = __m256;  // As many floats as Doubles has doubles.
  using HalfIntegers = __m256i;
  static constexpr int kFloats = 16, kDoubles = 8;
  // 2 rows x 4 registers x 2 signs: 16 accumulators hide the latency of FMA.
  static constexpr int kRows = 2;

  static Integers LoadInteger(const void* p) { return _mm512_load_si512(p); }
  static Integers SetInt8(int8_t x) { return _mm512_set1_epi8(x); }
  static Integers AddInt8(Integers x, Integers y) { return _mm512_add_epi8(x, y); }
  static Integers MaxInt8(Integers x, Integers y) { return _mm512_max_epi8(x, y); }
  static Integers SetInt16(int16_t x) { return _mm512_set1_epi16(x); }
  static Integers AddInt16(Integers x, Integers y) { return _mm512_add_epi16(x, y); }
  static Integers MaxInt16(Integers x, Integers y) { return _mm512_max_epi16(x, y); }
  static Integers SetInt32(int32_t x) { return _mm512_set1_epi32(x); }
  static Integers AddInt32(Integers x, Integers y) { return _mm512_add_epi32(x, y); }
  static Integers MaxInt32(Integers x, Integers y) { return _mm512_max_epi32(x, y); }
  static void StoreInteger(void* p, Integers x) { _mm512_store_si512(p, x); }
  static Integers LoadWidenedInt8(const int8_t* p) {
    return _mm512_cvtepi8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static HalfIntegers LoadWidenedInt16(const int16_t* p) {
    return _mm256_cvtepi16_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(p)));
  }

  static Floats LoadFloat(const float* p) { return _mm512_load_ps(p); }
  static void StoreFloat(float* p, Floats x) { _mm512_store_ps(p, x); }
  static Floats SetFloat(float x) { return _mm512_set1_ps(x); }
  static Floats ZeroFloat() { return _mm512_setzero_ps(); }
  static Floats Add(Floats x, Floats y) { return _mm512_add_ps(x, y); }
  static Floats Sub(Floats x, Floats y) { return _mm512_sub_ps(x, y); }
  static Floats Max(Floats x, Floats y) { return _mm512_max_ps(x, y); }
  static Floats Min(Floats x, Floats y) { return _mm512_min_ps(x, y); }
  static Floats MulAdd(Floats x, Floats y, Floats z) { return _mm512_fmadd_ps(x, y, z); }
  /// The exponent of a normal number; -127 for zero.
  static Integers ExponentOf(Floats x) {
    const Integers field = _mm512_srli_epi32(_mm512_slli_epi32(_mm512_castps_si512(x), 1), 24);
    return _mm512_sub_epi32(field, _mm512_set1_epi32(127));
  }
  static Floats PowerOfTwo(Integers exponent) {
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_add_epi32(exponent, _mm512_set1_epi32(127)), 23));
  }
  static Floats KeepThirteenBits(Floats x) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(~0x3FF)));
  }

  static HalfFloats LoadHalf(const float* p) { return _mm256_load_ps(p); }
  static HalfIntegers SetHalfInt32(int32_t x) { return _mm256_set1_epi32(x); }
  static HalfIntegers AddHalfInt32(HalfIntegers x, HalfIntegers y) {
    return _mm256_add_epi32(x, y);
  }
  static HalfIntegers MaxHalfInt32(HalfIntegers x, HalfIntegers y) {
    return _mm256_max_epi32(x, y);
  }
  /// The exponent as in Unpack (subnormals share the smallest normal's); very low for zero.
  static HalfIntegers ExponentOrNone(HalfFloats x) {
    const HalfIntegers magnitude =
        _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7FFFFFFF));
    const HalfIntegers field =
        _mm256_max_epi32(_mm256_srli_epi32(magnitude, 23), _mm256_set1_epi32(1));
    const HalfIntegers exponent = _mm256_sub_epi32(field, _mm256_set1_epi32(127));
    const __mmask8 zero = _mm256_testn_epi32_mask(magnitude, magnitude);
    return _mm256_mask_mov_epi32(exponent, zero, _mm256_set1_epi32(-10000));
  }
  static Doubles PowerOfTwoWide(HalfIntegers exponent) {
    const Integers wide =
        _mm512_cvtepi32_epi64(_mm256_add_epi32(exponent, _mm256_set1_epi32(1023)));
    return _mm512_castsi512_pd(_mm512_slli_epi64(wide, 52));
  }
  static Doubles ToDouble(HalfFloats x) { return _mm512_cvtps_pd(x); }

  static Doubles LoadDouble(const double* p) { return _mm512_load_pd(p); }
  static Doubles SetDouble(double x) { return _mm512_set1_pd(x); }
  static Doubles ZeroDouble() { return _mm512_setzero_pd(); }
  static HalfIntegers LoadHalfInt32(const int32_t* p) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
  }
  /// `exponent`, or very low where x is zero.
  static HalfIntegers NoneWhereZero(HalfIntegers exponent, HalfFloats x) {
    const __mmask8 zero = _mm256_cmp_ps_mask(x, _mm256_setzero_ps(), _CMP_EQ_OQ);
    return _mm256_mask_mov_epi32(exponent, zero, _mm256_set1_epi32(-10000));
  }
  static Floats Mul(Floats x, Floats y) { return _mm512_mul_ps(x, y); }
  static Doubles Mul(Doubles x, Doubles y) { return _mm512_mul_pd(x, y); }
  static Doubles Add(Doubles x, Doubles y) { return _mm512_add_pd(x, y); }
  static Doubles Sub(Doubles x, Doubles y) { return _mm512_sub_pd(x, y); }
  static Doubles Max(Doubles x, Doubles y) { return _mm512_max_pd(x, y); }
  static Doubles Min(Doubles x, Doubles y) { return _mm512_min_pd(x, y); }
  static Doubles MulAdd(Doubles x, Doubles y, Doubles z) { return _mm512_fmadd_pd(x, y, z); }
  static void StoreTruncated(float* p, Doubles x) {
    const __mmask8 overflow =
        _mm512_cmp_pd_mask(_mm512_abs_pd(x), _mm512_set1_pd(0x1p128), _CMP_GE_OQ);
    const HalfFloats truncated = _mm512_cvtpd_ps(x);
    // The sign survives truncation, so an infinity of that sign is the truncated value's sign over
    // 0x7F800000.
    const HalfFloats infinity = _mm256_or_ps(_mm256_and_ps(truncated, _mm256_set1_ps(-0.0f)),
                                             _mm256_castsi256_ps(_mm256_set1_epi32(0x7F800000)));
    // What underflows to zero is +0.
    const __mmask8 nonzero = _mm256_cmp_ps_mask(truncated, _mm256_setzero_ps(), _CMP_NEQ_OQ);
    const HalfFloats kept = _mm256_maskz_mov_ps(nonzero, truncated);
    _mm256_store_ps(p, _mm256_mask_mov_ps(kept, overflow, infinity));
  }

  /// Bit i: x[i] is negative, for i < kCount.
  template <int kCount>
  static uint32_t Signs(const float* x) {
    uint32_t signs = 0;
    for (int i = 0; i < kCount; i += kFloats) {
      signs |= static_cast<uint32_t>(_mm512_movepi32_mask(_mm512_loadu_si512(x + i))) << i;
    }
    return signs;
  }
  template <int kCount>
  static uint32_t Signs(const double* x) {
    uint32_t signs = 0;
    for (int i = 0; i < kCount; i += kDoubles) {
      signs |= static_cast<uint32_t>(_mm512_movepi64_mask(_mm512_loadu_si512(x + i))) << i;
    }
    return signs;
  }
};

using Body = PanelBody<Avx512>;
using Decode = PanelDecode<Avx512>;

}  // namespace

const KernelTable kKernelsAvx512 = {
    {Decode::NarrowRow, Decode::NarrowColumns, Body::NarrowMultiply},
    {Decode::WideRow, Decode::WideColumns, Body::WideMultiply},
    Body::Fp32Multiply,
    GroupSteps<Avx512>::Multiply,
    PromoteScaled<Avx512>,
};

}  // namespace quantgate
