// Panel kernels for AVX2 and FMA. Built with those flags; called only where BestIsa() says so.
#include <immintrin.h>

#include "kernels/gemm/models/group_kernels_body.h"
#include "kernels/gemm/models/panel.h"
#include "kernels/gemm/models/panel_decode.h"
#include "kernels/gemm/models/panel_kernels_body.h"

namespace quantgate {
namespace {

struct Avx2 {
  using Floats = __m256;
  using Doubles = __m256d;
  using Integers = __m256i;
  using HalfFloats = __m128;  // As many floats as Doubles has doubles.
  using HalfIntegers = __m128i;
  static constexpr int kFloats = 8, kDoubles = 4;
  static constexpr int kRows = 1;  // 1 row x 4 registers x 2 signs: 8 of the 16 registers.

  static Integers LoadInteger(const void* p) {
    return _mm256_load_si256(static_cast<const __m256i*>(p));
  }
  static Integers SetInt8(int8_t x) { return _mm256_set1_epi8(x); }
  static Integers AddInt8(Integers x, Integers y) { return _mm256_add_epi8(x, y); }
  static Integers MaxInt8(Integers x, Integers y) { return _mm256_max_epi8(x, y); }
  static Integers SetInt16(int16_t x) { return _mm256_set1_epi16(x); }
  static Integers AddInt16(Integers x, Integers y) { return _mm256_add_epi16(x, y); }
  static Integers MaxInt16(Integers x, Integers y) { return _mm256_max_epi16(x, y); }
  static Integers SetInt32(int32_t x) { return _mm256_set1_epi32(x); }
  static Integers AddInt32(Integers x, Integers y) { return _mm256_add_epi32(x, y); }
  static Integers MaxInt32(Integers x, Integers y) { return _mm256_max_epi32(x, y); }
  static void StoreInteger(void* p, Integers x) { _mm256_store_si256(static_cast<__m256i*>(p), x); }
  static Integers LoadWidenedInt8(const int8_t* p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  static HalfIntegers LoadWidenedInt16(const int16_t* p) {
    return _mm_cvtepi16_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }

  static Floats LoadFloat(const float* p) { return _mm256_load_ps(p); }
  static void StoreFloat(float* p, Floats x) { _mm256_store_ps(p, x); }
  static Floats SetFloat(float x) { return _mm256_set1_ps(x); }
  static Floats ZeroFloat() { return _mm256_setzero_ps(); }
  static Floats Add(Floats x, Floats y) { return _mm256_add_ps(x, y); }
  static Floats Sub(Floats x, Floats y) { return _mm256_sub_ps(x, y); }
  static Floats Max(Floats x, Floats y) { return _mm256_max_ps(x, y); }
  static Floats Min(Floats x, Floats y) { return _mm256_min_ps(x, y); }
  static Floats MulAdd(Floats x, Floats y, Floats z) { return _mm256_fmadd_ps(x, y, z); }
  /// The exponent of a normal number; -127 for zero.
  static Integers ExponentOf(Floats x) {
    const Integers field = _mm256_srli_epi32(_mm256_slli_epi32(_mm256_castps_si256(x), 1), 24);
    return _mm256_sub_epi32(field, _mm256_set1_epi32(127));
  }
  static Floats PowerOfTwo(Integers exponent) {
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_add_epi32(exponent, _mm256_set1_epi32(127)), 23));
  }
  static Floats KeepThirteenBits(Floats x) {
    return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(~0x3FF)));
  }

  static HalfFloats LoadHalf(const float* p) { return _mm_load_ps(p); }
  static HalfIntegers SetHalfInt32(int32_t x) { return _mm_set1_epi32(x); }
  static HalfIntegers AddHalfInt32(HalfIntegers x, HalfIntegers y) { return _mm_add_epi32(x, y); }
  static HalfIntegers MaxHalfInt32(HalfIntegers x, HalfIntegers y) { return _mm_max_epi32(x, y); }
  /// The exponent as in Unpack (subnormals share the smallest normal's); very low for zero.
  static HalfIntegers ExponentOrNone(HalfFloats x) {
    const HalfIntegers magnitude = _mm_and_si128(_mm_castps_si128(x), _mm_set1_epi32(0x7FFFFFFF));
    const HalfIntegers field = _mm_max_epi32(_mm_srli_epi32(magnitude, 23), _mm_set1_epi32(1));
    const HalfIntegers exponent = _mm_sub_epi32(field, _mm_set1_epi32(127));
    const HalfIntegers zero = _mm_cmpeq_epi32(magnitude, _mm_setzero_si128());
    return _mm_blendv_epi8(exponent, _mm_set1_epi32(-10000), zero);
  }
  static Doubles PowerOfTwoWide(HalfIntegers exponent) {
    const Integers wide = _mm256_cvtepi32_epi64(_mm_add_epi32(exponent, _mm_set1_epi32(1023)));
    return _mm256_castsi256_pd(_mm256_slli_epi64(wide, 52));
  }
  static Doubles ToDouble(HalfFloats x) { return _mm256_cvtps_pd(x); }

  static Doubles LoadDouble(const double* p) { return _mm256_load_pd(p); }
  static Doubles SetDouble(double x) { return _mm256_set1_pd(x); }
  static Doubles ZeroDouble() { return _mm256_setzero_pd(); }
  static HalfIntegers LoadHalfInt32(const int32_t* p) {
    return _mm_load_si128(reinterpret_cast<const __m128i*>(p));
  }
  /// `exponent`, or very low where x is zero.
  static HalfIntegers NoneWhereZero(HalfIntegers exponent, HalfFloats x) {
    const __m128i zero = _mm_castps_si128(_mm_cmpeq_ps(x, _mm_setzero_ps()));
    return _mm_blendv_epi8(exponent, _mm_set1_epi32(-10000), zero);
  }
  static Floats Mul(Floats x, Floats y) { return _mm256_mul_ps(x, y); }
  static Doubles Mul(Doubles x, Doubles y) { return _mm256_mul_pd(x, y); }
  static Doubles Add(Doubles x, Doubles y) { return _mm256_add_pd(x, y); }
  static Doubles Sub(Doubles x, Doubles y) { return _mm256_sub_pd(x, y); }
  static Doubles Max(Doubles x, Doubles y) { return _mm256_max_pd(x, y); }
  static Doubles Min(Doubles x, Doubles y) { return _mm256_min_pd(x, y); }
  static Doubles MulAdd(Doubles x, Doubles y, Doubles z) { return _mm256_fmadd_pd(x, y, z); }
  static void StoreTruncated(float* p, Doubles x) {
    const Doubles magnitude = _mm256_andnot_pd(_mm256_set1_pd(-0.0), x);
    const Integers overflow =
        _mm256_castpd_si256(_mm256_cmp_pd(magnitude, _mm256_set1_pd(0x1p128), _CMP_GE_OQ));
    // The low halves of the four 64-bit masks.
    const __m128 mask = _mm_shuffle_ps(_mm_castsi128_ps(_mm256_castsi256_si128(overflow)),
                                       _mm_castsi128_ps(_mm256_extracti128_si256(overflow, 1)),
                                       _MM_SHUFFLE(2, 0, 2, 0));
    const HalfFloats truncated = _mm256_cvtpd_ps(x);
    // The sign survives truncation, so an infinity of that sign is the truncated value's sign over
    // 0x7F800000.
    const HalfFloats infinity = _mm_or_ps(_mm_and_ps(truncated, _mm_set1_ps(-0.0f)),
                                          _mm_castsi128_ps(_mm_set1_epi32(0x7F800000)));
    // What underflows to zero is +0.
    const HalfFloats kept = _mm_and_ps(truncated, _mm_cmpneq_ps(truncated, _mm_setzero_ps()));
    _mm_store_ps(p, _mm_blendv_ps(kept, infinity, mask));
  }

  /// Bit i: x[i] is negative, for i < kCount.
  template <int kCount>
  static uint32_t Signs(const float* x) {
    uint32_t signs = 0;
    for (int i = 0; i < kCount; i += kFloats) {
      signs |= static_cast<uint32_t>(_mm256_movemask_ps(_mm256_loadu_ps(x + i))) << i;
    }
    return signs;
  }
  template <int kCount>
  static uint32_t Signs(const double* x) {
    uint32_t signs = 0;
    for (int i = 0; i < kCount; i += kDoubles) {
      signs |= static_cast<uint32_t>(_mm256_movemask_pd(_mm256_loadu_pd(x + i))) << i;
    }
    return signs;
  }
};

using Body = PanelBody<Avx2>;
using Decode = PanelDecode<Avx2>;

}  // namespace

const KernelTable kKernelsAvx2 = {
    {Decode::NarrowRow, Decode::NarrowColumns, Body::NarrowMultiply},
    {Decode::WideRow, Decode::WideColumns, Body::WideMultiply},
    Body::Fp32Multiply,
    GroupSteps<Avx2>::Multiply,
    PromoteScaled<Avx2>,
};

}  // namespace quantgate
