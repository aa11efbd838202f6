// Parts of the fused dot step of tensor cores (docs/tensor-cores.md section 1): align every product
// and the accumulator to the largest exponent, truncate, sum exactly, normalise once, round toward
// zero. kernels/numerics/fused_rule.h has the step.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/base/host_device.h"
#include "kernels/numerics/float_format.h"

namespace quantgate {

/// F and outman of Hopper's 16-bit and tf32 instructions: products keep F fraction bits below the
/// largest exponent of the step, the fp32 result keeps `out_mantissa` fraction bits. Only
/// hadamard.h and tests read this struct; GEMMs take the parameters of every instruction from
/// kernels/gemm/arithmetic_table.cc.
struct Wgmma16Bit {  // bf16, fp16 and tf32 on Hopper.
  static constexpr int kAlignBits = 25, kOutMantissa = 23;
};

/// The largest exponent of a step counts as at least this. An H200 shows it where bf16 products lie
/// below 2^-133: of 512 such sums one to 201 differ from the hardware's under every other floor
/// from -126 down to none, and none under this (tests/data/golden_gemm_bf16, tiny operands). FP8
/// and fp16 products never reach it.
inline constexpr int kFusedExponentFloor = -133;

/// One term of a step: (-1)^negative * significand * 2^(exponent - fraction_bits). Significands are
/// not renormalised.
struct FusedTerm {
  FloatClass kind;
  bool negative;
  int exponent;
  uint64_t significand;
};

/// floor(significand * 2^shift), for any shift; the caller's significand fits 63 bits, after a left
/// shift too. Without branches: which way to shift is not predictable.
QG_HOST_DEVICE constexpr int64_t ShiftTruncating(uint64_t significand, int shift) {
  const int left = shift > 0 ? shift : 0;
  const int right = shift < -63 ? 63 : shift < 0 ? -shift : 0;
  return static_cast<int64_t>((significand << left) >> right);
}

/// Leading zeros of x > 0. Not std::countl_zero: libstdc++'s calls __builtin_clzl for 64 bits, and
/// nvcc 13.0 makes device code of that which gives 64 whatever x is.
QG_HOST_DEVICE constexpr int LeadingZeros(uint64_t x) { return __builtin_clzll(x); }

/// Bits of sum * 2^quantum_exponent in fp32, truncated toward zero to `out_mantissa` fraction bits,
/// with gradual underflow. Zero is +0, also where a negative sum underflows to it; a magnitude of
/// 2^128 or more is an infinity.
QG_HOST_DEVICE constexpr uint32_t TruncateToFloat32(int64_t sum, int quantum_exponent,
                                                    int out_mantissa) {
  if (sum == 0) return 0;
  const uint32_t sign = sum < 0 ? 0x80000000u : 0u;
  const uint64_t magnitude = sum < 0 ? uint64_t(0) - static_cast<uint64_t>(sum) : uint64_t(sum);
  // 1. The exponent of the leading one; that of subnormals is the smallest normal's.
  const int leading = 63 - LeadingZeros(magnitude) + quantum_exponent;
  if (leading > 127) return sign | 0x7F800000u;
  const int exponent = leading < -126 ? -126 : leading;
  // 2. The significand in units of 2^(exponent - out_mantissa), truncated: below 2^(out_mantissa +
  // 1).
  const uint64_t kept = static_cast<uint64_t>(
      ShiftTruncating(magnitude, quantum_exponent - (exponent - out_mantissa)));
  const uint32_t significand = static_cast<uint32_t>(kept << (23 - out_mantissa));
  if (kept == 0) return 0;  // Seen on an H200: 16 products of -2^-158 give 0x00000000.
  // 3. Pack: a significand without its leading one is a subnormal, whose exponent field is 0.
  const bool subnormal = significand < (1u << 23);
  const uint32_t field = subnormal ? 0u : static_cast<uint32_t>(exponent + 127) << 23;
  return sign | field | (significand & 0x7FFFFFu);
}

/// fp32 to tf32 as cuBLASLt does it before the tf32 tensor cores: round to nearest even to 10
/// mantissa bits, returned as fp32 bits with the low 13 bits zero. Infinities stay; NaN is
/// canonical; overflow gives infinity.
QG_HOST_DEVICE constexpr uint32_t RoundToTf32(uint32_t bits) {
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return Float32::kCanonicalNan;
  // The carry of the mantissa into the exponent field is the correct rounding up to the next
  // binade, or to infinity.
  return (bits + 0xFFFu + ((bits >> 13) & 1u)) & ~0x1FFFu;
}

}  // namespace quantgate
