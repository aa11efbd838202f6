// Several elements at a time: bf16 and f16 pairs, and the casts to FP8 that the hardware has. Each
// restates a function of kernels/numerics; tests/quantize/packed_casts_cuda_test.cc compares them
// over every input. Included by .cu files only.
#pragma once

#include <cstdint>

#include "kernels/numerics/e8m0.h"

namespace quantgate {

inline constexpr uint32_t kPairMagnitude = 0x7FFF7FFF, kPairSigns = 0x80008000;

/// max of magnitudes, each half by itself; a NaN gives way to a number.
__device__ inline uint32_t MaxMagnitudesBf16(uint32_t max, uint32_t pair) {
  uint32_t result;
  asm("{.reg .b32 m; abs.bf16x2 m, %2; max.bf16x2 %0, %1, m;}"
      : "=r"(result)
      : "r"(max), "r"(pair));
  return result;
}
__device__ inline uint32_t MaxMagnitudesF16(uint32_t max, uint32_t pair) {
  uint32_t result;
  asm("{.reg .b32 m; abs.f16x2 m, %2; max.f16x2 %0, %1, m;}" : "=r"(result) : "r"(max), "r"(pair));
  return result;
}
/// The same, but a NaN in either makes the result NaN, 0x7FFF.
__device__ inline uint32_t MaxOrNanMagnitudesBf16(uint32_t max, uint32_t pair) {
  uint32_t result;
  asm("{.reg .b32 m; abs.bf16x2 m, %2; max.NaN.bf16x2 %0, %1, m;}"
      : "=r"(result)
      : "r"(max), "r"(pair));
  return result;
}

/// Of both pairs' magnitudes.
__device__ inline uint32_t MaxOrNanOfBf16(uint32_t a, uint32_t b) {
  uint32_t result;
  asm("{.reg .b32 m, n; abs.bf16x2 m, %1; abs.bf16x2 n, %2; max.NaN.bf16x2 %0, m, n;}"
      : "=r"(result)
      : "r"(a), "r"(b));
  return result;
}
__device__ inline uint32_t MaxOrNanOfBf16(const uint4& four) {
  return MaxOrNanMagnitudesBf16(MaxOrNanMagnitudesBf16(MaxOrNanOfBf16(four.x, four.y), four.z),
                                four.w);
}

__device__ inline uint32_t LowerHalves(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x5410); }
__device__ inline uint32_t UpperHalves(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x7632); }
/// The larger half: magnitudes are ordered as integers, NaN above all.
__device__ inline uint32_t LargerHalf(uint32_t pair) { return max(pair & 0xFFFF, pair >> 16); }

__device__ inline float LowerBf16(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float UpperBf16(uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000); }

/// EncodeFloat<F>, nearest even, saturating, of four values from the lowest byte up.
template <class F>
__device__ inline uint32_t EncodeFour(float a, float b, float c, float d) {
  uint32_t codes;
  if constexpr (F::kExponentBits == 4) {
    asm("{.reg .b16 l, h; cvt.rn.satfinite.e4m3x2.f32 l, %2, %1;"
        " cvt.rn.satfinite.e4m3x2.f32 h, %4, %3; mov.b32 %0, {l, h};}"
        : "=r"(codes)
        : "f"(a), "f"(b), "f"(c), "f"(d));
  } else {
    asm("{.reg .b16 l, h; cvt.rn.satfinite.e5m2x2.f32 l, %2, %1;"
        " cvt.rn.satfinite.e5m2x2.f32 h, %4, %3; mov.b32 %0, {l, h};}"
        : "=r"(codes)
        : "f"(a), "f"(b), "f"(c), "f"(d));
  }
  return codes;
}

/// The same of eight bf16 under one factor.
template <class F>
__device__ inline uint2 EncodeEight(const uint4& values, float factor) {
  return make_uint2(EncodeFour<F>(LowerBf16(values.x) * factor, UpperBf16(values.x) * factor,
                                  LowerBf16(values.y) * factor, UpperBf16(values.y) * factor),
                    EncodeFour<F>(LowerBf16(values.z) * factor, UpperBf16(values.z) * factor,
                                  LowerBf16(values.w) * factor, UpperBf16(values.w) * factor));
}

/// EncodeFloat<BFloat16> and EncodeFloat<Float16>, nearest even, beyond the largest to infinity.
__device__ inline uint16_t RoundToBf16(float value) {
  uint16_t code;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(code) : "f"(value));
  return code;
}
__device__ inline uint16_t RoundToF16(float value) {
  uint16_t code;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(code) : "f"(value));
  return code;
}

/// Byte i of word j becomes byte j of word i.
__device__ inline void TransposeBytes(uint32_t (&words)[4]) {
  const uint32_t lower01 = __byte_perm(words[0], words[1], 0x5140);
  const uint32_t lower23 = __byte_perm(words[2], words[3], 0x5140);
  const uint32_t upper01 = __byte_perm(words[0], words[1], 0x7362);
  const uint32_t upper23 = __byte_perm(words[2], words[3], 0x7362);
  words[0] = LowerHalves(lower01, lower23);
  words[1] = UpperHalves(lower01, lower23);
  words[2] = LowerHalves(upper01, upper23);
  words[3] = UpperHalves(upper01, upper23);
}

/// E8m0Scale<F> under kRoundUp of a finite bf16 magnitude. The largest value of both FP8 formats is
/// 1.75 times a power of two: what has more than 0.75 of its mantissa needs the next exponent.
template <class F>
__device__ inline uint32_t RoundUpScale(uint32_t magnitude) {
  constexpr uint32_t kToCarry = 127 - 96;
  const int exponent = static_cast<int>((magnitude + kToCarry) >> 7);
  return static_cast<uint32_t>(max(exponent - kMaxFiniteExponent<F>, 0));
}
/// E8m0Multiplier of what RoundUpScale gives: never 254 or more.
__device__ inline float RoundUpMultiplier(uint32_t code) {
  return __uint_as_float((254 - code) << 23);
}

/// 16 bytes into shared memory, past the L1.
__device__ inline void CopyOnce(uint4* shared, const void* global) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}
/// For the thread's own.
__device__ inline void WaitForCopies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace quantgate
