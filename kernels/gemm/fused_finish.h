// The beginning and the end of a fused step whose sums are kept in double: device code that the
// fused and the grouped kernels share. An accumulator between steps is a double that is an fp32
// number (or an fp16 one, where the rule says so).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/numerics/fused_rule.h"

namespace quantgate {

/// 2^exponent, for exponents of normal doubles.
__device__ inline double PowerOfTwo(int exponent) {
  return __hiloint2double((exponent + 1023) << 20, 0);
}

/// The exponent of an accumulator as in Unpack (subnormals share the smallest normal's), very low
/// for zero.
__device__ inline int AccumulatorExponent(const FusedRule& rule, double c) {
  const int field = __double2hiint(c) >> 20 & 0x7FF;
  const int exponent_min = rule.f16_accumulator ? -14 : -126;
  const int exponent = field - 1023 > exponent_min ? field - 1023 : exponent_min;
  return field == 0 ? -10000 : exponent < 128 ? exponent : 128;
}

/// The start value of a step in double: a unit in its last place is 2^(E - F).
__device__ inline double StartOf(const FusedRule& rule, int product_exponent, double c) {
  const int c_exponent = AccumulatorExponent(rule, c);
  int exponent = product_exponent > c_exponent ? product_exponent : c_exponent;
  exponent = exponent > kFusedExponentFloor ? exponent : kFusedExponentFloor;
  return PowerOfTwo(exponent - rule.align_bits + 52);
}

/// Rounds an exact sum as the rule's accumulators are. Zero, also what rounds to it, is +0.
__device__ inline double RoundAccumulator(const FusedRule& rule, double sum) {
  if (rule.f16_accumulator) {
    uint16_t half;
    asm("cvt.rn.f16.f64 %0, %1;" : "=h"(half) : "d"(sum));
    return (half & 0x7FFF) == 0 ? 0.0 : static_cast<double>(DecodeFloat<Float16>(half));
  }
  const int field = __double2hiint(sum) >> 20 & 0x7FF;
  if (field >= 1023 - 126 && field <= 1023 + 127) {
    // Truncation toward zero clears the bits beyond out_mantissa.
    const int64_t kept = __double_as_longlong(sum) & (~int64_t{0} << (52 - rule.out_mantissa));
    return __longlong_as_double(kept);
  }
  const double sign = sum < 0 ? -1.0 : 1.0;
  if (field > 1023 + 127) return sign * __longlong_as_double(0x7FF0000000000000);
  const double start = PowerOfTwo(-126 - rule.out_mantissa + 52);
  const double magnitude = __dadd_rz(start, fabs(sum)) - start;
  return magnitude == 0 ? 0.0 : sign * magnitude;
}

/// The two accumulators of a step, of products without their scales of 2^shift, with the
/// accumulator c truncated onto them; c becomes the one of all magnitudes. An infinite c makes both
/// infinite.
__device__ inline void BeginWide(const FusedRule& rule, int product_exponent, int shift, double& c,
                                 double& positive) {
  const double scale = PowerOfTwo(-shift);
  const double start = StartOf(rule, product_exponent, c) * scale;
  const double scaled = c * scale;
  if (__double2hiint(c) << 1 == static_cast<int>(0xFFE00000u)) {
    // `positive` keeps the sign: what FinishWide gives back.
    positive = c;
    c = fabs(c);
    return;
  }
  positive = __dadd_rz(start, scaled > 0 ? scaled : 0.0);
  c = __dadd_rz(start, fabs(scaled));
}

__device__ inline double FinishWide(const FusedRule& rule, int shift, double positive, double all) {
  if (__double2hiint(all) == 0x7FF00000) return positive;
  const double start = __hiloint2double(__double2hiint(all) & 0x7FF00000, 0);
  const double sum = (positive - all) + (positive - start);
  return RoundAccumulator(rule, sum * PowerOfTwo(shift));
}

}  // namespace quantgate
