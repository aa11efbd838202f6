// The steps of NVFP4 in few instructions: codes of eight elements at a time, the Hadamard transform
// on tensor cores. They restate cast.h, stochastic_rounding.h and hadamard.h for the usual rule;
// tests/quantize/nvfp4/nvfp4_steps_cuda_test.cc proves them equal. Device code only.
//
// Elements are scaled to an eighth of what the scalar functions see: then FADD and FMUL clamp, in
// no time of their own, to 8, above which every code is the largest.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/numerics/hadamard.h"
#include "kernels/numerics/philox.h"

namespace quantgate {
namespace nvfp4_steps {

inline constexpr uint32_t kSigns = 0x80008000;  ///< Of two bf16.
inline constexpr uint32_t kInfinityBF16 = 0x7F80;

// ---- instructions that C++ has no words for

__device__ inline float AddDownClamped(float a, float b) {
  float sum;
  asm("add.rm.sat.f32 %0, %1, %2;" : "=f"(sum) : "f"(a), "f"(b));
  return sum;
}

__device__ inline float TimesDown(float a, float b) {
  float product;
  asm("mul.rm.f32 %0, %1, %2;" : "=f"(product) : "f"(a), "f"(b));
  return product;
}

__device__ inline float TimesClamped(float a, float b) {
  float product;
  asm("mul.rn.sat.f32 %0, %1, %2;" : "=f"(product) : "f"(a), "f"(b));
  return product;
}

/// The larger magnitudes of two pairs of bf16, NaN (0x7FFF) where either is; signs are noise.
__device__ inline uint32_t LargerMagnitudes(uint32_t a, uint32_t b) {
  uint32_t larger;
  asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
}

/// Two fp32 rounded to nearest even bf16, `low` in the low half. NaN gives 0x7FFF.
__device__ inline uint32_t PackBF16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

/// EncodeFloat<E4M3> of a value that is neither negative nor NaN.
__device__ inline uint32_t EncodeE4M3(float value) {
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
  return pair;
}

/// The same in fp16.
__device__ inline uint32_t PackF16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

/// DecodeFloat<E4M3>.
__device__ inline float DecodeE4M3(uint32_t code) {
  float value;
  asm("{.reg .b16 l, h; .reg .b32 p; cvt.rn.f16x2.e4m3x2 p, %1; mov.b32 {l, h}, p; "
      "cvt.f32.f16 %0, l;}"
      : "=f"(value)
      : "h"(static_cast<uint16_t>(code)));
  return value;
}

/// (a & mask) | (b & ~mask).
template <uint32_t kMask>
__device__ uint32_t Select(uint32_t a, uint32_t b) {
  uint32_t selected;
  asm("lop3.b32 %0, %1, %2, %3, 0xB8;" : "=r"(selected) : "r"(b), "n"(kMask), "r"(a));
  return selected;
}

/// (a | b) & mask.
template <uint32_t kMask>
__device__ uint32_t EitherOf(uint32_t a, uint32_t b) {
  uint32_t either;
  asm("lop3.b32 %0, %1, %2, %3, 0xA8;" : "=r"(either) : "r"(a), "r"(b), "n"(kMask));
  return either;
}

/// Adds 1.0 (bf16) to each half of `sum` where a value is a zero; up to 256 are exact.
__device__ inline uint32_t CountZeros(uint32_t values, uint32_t sum) {
  uint32_t ones;
  asm("set.eq.bf16x2.bf16x2 %0, %1, %2;" : "=r"(ones) : "r"(values), "r"(0u));
  asm("add.rn.bf16x2 %0, %0, %1;" : "+r"(sum) : "r"(ones));
  return sum;
}

/// What CountZeros has counted.
__device__ inline int CountOf(uint32_t sum) {
  return static_cast<int>(__uint_as_float(sum << 16) + __uint_as_float(sum & 0xFFFF0000));
}

__device__ inline float LowFloat(uint32_t pair) { return __uint_as_float(pair << 16); }
/// Of a pair of finite ones: (low * 0 + 0, high * 1 + 0), since the units for logic have more to do
/// than those for products. The sign of a zero is lost.
__device__ inline float HighFloat(uint32_t pair) {
  uint32_t high;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(high) : "r"(pair), "r"(0x3F800000), "r"(0));
  return __uint_as_float(high);
}

// ---- random bytes

/// The keys of Philox4x32's rounds.
struct RoundKeys {
  uint32_t word[10][2];
};

inline RoundKeys MakeRoundKeys(uint64_t seed) {
  RoundKeys keys;
  uint32_t low = static_cast<uint32_t>(seed), high = static_cast<uint32_t>(seed >> 32);
  for (auto& round : keys.word) {
    round[0] = low, round[1] = high;
    low += 0x9E3779B9, high += 0xBB67AE85;
  }
  return keys;
}

template <uint32_t kFactor>
__device__ uint64_t TimesWide(uint32_t a) {
  uint64_t product;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "n"(kFactor));
  return product;
}

/// Philox4x32, from keys that are made once, in the instructions that it needs.
__device__ inline PhiloxCounter Draw(PhiloxCounter counter, const RoundKeys& keys) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = TimesWide<0xD2511F53>(counter.word[0]);
    const uint64_t product1 = TimesWide<0xCD9E8D57>(counter.word[2]);
    counter = {
        {uint32_t(product1 >> 32) ^ counter.word[1] ^ keys.word[round][0], uint32_t(product1),
         uint32_t(product0 >> 32) ^ counter.word[3] ^ keys.word[round][1], uint32_t(product0)}};
  }
  return counter;
}

// ---- one element

/// The code of EncodeE2m1Stochastic in bits 24 to 27, without sign, 8 standing for 7, of an eighth
/// of a value. `placed` is 2^16 * random, perhaps with other bits at 28 and above.
///
/// Below 8 the sum t of section 1.4 of docs/quantizers.md reaches a code c just when, counted in
/// units of ulps at 1 below 1 and as the bits of a float above,
///     floor(|value| + 2^-26) + 2^14 * random >= 2^22 * c.
/// Above 1 the sum of bits is that of values, and going on at half the pace beyond a power of two
/// cannot reach the next code. Below 1/4 the sum's rounding carries it up to 1/2 from 2^-26 below;
/// above, |value| is a multiple of 2^-25 and 2^-26 changes nothing. Multiplied to where 1 is the
/// smallest normal number, the bits of all floats are such units.
__device__ inline uint32_t StochasticSum(float eighth, uint32_t placed) {
  const float floored = AddDownClamped(fabsf(eighth), 0x1p-29f);
  return 4 * __float_as_uint(TimesDown(floored, 0x1p-123f)) + placed;
}

/// The code of EncodeFloat<E2M1> plus kNearestBias in the low byte, without sign, 8 standing for 7,
/// of an eighth of a value, at most 1.
///
/// The sum with 1.5 * 2^23 steps of the value's binade rounds to steps: its lowest bits are the
/// value in steps, at most 4, and two more for every binade above 1 stand in the exponent.
inline constexpr uint32_t kNearestBias = 0x25;
__device__ inline uint32_t NearestSum(float eighth) {
  const float power = fmaxf(__uint_as_float(__float_as_uint(eighth) & 0x7F800000), 0.125f);
  const uint32_t sum = __float_as_uint(fmaf(power, 0x1.8p22f, eighth));
  return (sum >> 22) + sum;
}

// ---- eight elements

/// Counts over codes, eight nibbles wide, up to 15 additions: not 0; 2 and more; 8.
struct CodeCounts {
  uint32_t nonzero = 0, normal = 0, saturated = 0;
};

/// The bytes `even` and `odd` (elements 0, 2, 4, 6 and 1, 3, 5, 7 from the lowest) hold a code up
/// to 8 and a sign at bit 7: the eight codes of the elements in a word.
template <bool kCounts>
__device__ uint32_t CombineCodes(uint32_t even, uint32_t odd, CodeCounts& counts) {
  constexpr uint32_t kHigh = 0xF0F0F0F0, kOnes = 0x11111111;
  uint32_t codes = Select<kHigh>(odd << 4, even);
  const uint32_t saturated = codes >> 3 & kOnes;
  codes -= saturated;  // 8 becomes 7.
  if constexpr (kCounts) {
    counts.saturated += saturated;
    const uint32_t normal = EitherOf<kOnes>(codes >> 1, codes >> 2);
    counts.normal += normal;
    counts.nonzero += Select<kOnes>(codes, 0) | normal;
  }
  return codes + Select<kHigh>(odd, even >> 4);
}

/// The bytes `kByte` of four words.
template <int kByte>
__device__ uint32_t GatherBytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  constexpr uint32_t kPick = kByte | (kByte + 4) << 4;
  return __byte_perm(__byte_perm(a, b, kPick), __byte_perm(c, d, kPick), 0x5410);
}

/// The codes of eight elements in four words of two bf16, `random` holding their eight bytes.
template <bool kCounts>
__device__ uint32_t EncodeStochastic8(const uint32_t* words, float factor_eighth,
                                      const uint32_t* random, CodeCounts& counts) {
  uint32_t sums[8];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t signs = words[i] & kSigns;
    // The random byte at bits 16 to 23, the sign at bit 31.
    const int byte = i % 2 * 2;
    const uint32_t low = __byte_perm(random[i / 2], signs, 0x5044 | byte << 8);
    const uint32_t high = __byte_perm(random[i / 2], signs, 0x7044 | (byte + 1) << 8);
    sums[2 * i] = StochasticSum(LowFloat(words[i]) * factor_eighth, low);
    sums[2 * i + 1] = StochasticSum(HighFloat(words[i]) * factor_eighth, high);
  }
  return CombineCodes<kCounts>(GatherBytes<3>(sums[0], sums[2], sums[4], sums[6]),
                               GatherBytes<3>(sums[1], sums[3], sums[5], sums[7]), counts);
}

template <bool kCounts>
__device__ uint32_t EncodeNearest8(const uint32_t* words, float factor_eighth, CodeCounts& counts) {
  uint32_t sums[8];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sums[2 * i] = NearestSum(TimesClamped(fabsf(LowFloat(words[i])), factor_eighth));
    sums[2 * i + 1] = NearestSum(TimesClamped(fabsf(HighFloat(words[i])), factor_eighth));
  }
  constexpr uint32_t kBias = kNearestBias * 0x01010101, kSignBits = 0x80808080;
  const uint32_t first = __byte_perm(words[0], words[1], 0x7351);
  const uint32_t second = __byte_perm(words[2], words[3], 0x7351);
  const uint32_t even = GatherBytes<0>(sums[0], sums[2], sums[4], sums[6]) - kBias;
  const uint32_t odd = GatherBytes<0>(sums[1], sums[3], sums[5], sums[7]) - kBias;
  return CombineCodes<kCounts>(even | (__byte_perm(first, second, 0x5410) & kSignBits),
                               odd | (__byte_perm(first, second, 0x7632) & kSignBits), counts);
}

// ---- sixteen elements

/// The largest magnitude of sixteen bf16 in eight words, as bits of bf16; NaN is 0x7FFF.
__device__ inline uint32_t LargestOfBlock(const uint32_t* words) {
  const uint32_t a =
      LargerMagnitudes(LargerMagnitudes(words[0], words[1]), LargerMagnitudes(words[2], words[3]));
  const uint32_t b =
      LargerMagnitudes(LargerMagnitudes(words[4], words[5]), LargerMagnitudes(words[6], words[7]));
  const uint32_t c = LargerMagnitudes(a, b);
  return LargerMagnitudes(c, c >> 16) & 0x7FFF;
}

/// R[i][j] and R[i + 1][j] of the transform y = g R. The product of one warp, D[16][8] =
/// A[16][16] B[16][8], is a fused step for each output (docs/tensor-cores.md section 1), whether R
/// is B or, transposed, A.
__device__ inline uint32_t HadamardPair(int i, int j) {
  constexpr uint32_t kQuarter = 0x3E80, kSign = 0x8000;
  const uint32_t low = kQuarter | (IsHadamardNegative(i, j) ? kSign : 0);
  const uint32_t high = kQuarter | (IsHadamardNegative(i + 1, j) ? kSign : 0);
  return low | high << 16;
}

__device__ inline void MultiplyTile(const uint32_t* a, const uint32_t* b, float* d) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
      "{%10,%10,%10,%10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.0f));
}

/// The transform of a lane as operand B, for TileTransform. Column n of the halves is output
/// 4 (n / 2) + 2 half + n % 2, so that each lane's are neighbours.
__device__ inline uint4 MakeTransform(int lane) {
  const int n = lane / 4, i = lane % 4 * 2, j = n / 2 * 4 + n % 2;
  return make_uint4(HadamardPair(i, j), HadamardPair(i + 8, j), HadamardPair(i, j + 2),
                    HadamardPair(i + 8, j + 2));
}

/// Sixteen groups in the A fragment of a warp (row = group), to their transforms: this lane's are
/// elements 4 (lane % 4) to + 3 of groups lane / 4 (words 0, 1) and lane / 4 + 8 (words 2, 3).
class TileTransform {
 public:
  /// MakeTransform of this lane.
  __device__ explicit TileTransform(const uint4* transform) : transform_(*transform) {}

  __device__ void Apply(const uint32_t* groups, uint32_t* transformed) const {
    const uint32_t halves[2][2] = {{transform_.x, transform_.y}, {transform_.z, transform_.w}};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float d[4];
      MultiplyTile(groups, halves[half], d);
      transformed[half] = PackBF16(d[0], d[1]);
      transformed[half + 2] = PackBF16(d[2], d[3]);
    }
  }

 private:
  uint4 transform_;
};

}  // namespace nvfp4_steps
}  // namespace quantgate
