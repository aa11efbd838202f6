// The beginning and the end of a fused step whose sums are kept in double: device code that the
// kernels of fused steps and of groups share. Between steps an accumulator is a double whose value
// is an fp32 number, or an fp16 one where the rule says so.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/numerics/fused_rule.h"

namespace quantgate {

/// 2^exponent, for exponents of normal doubles.
__device__ inline double PowerOfTwo(int exponent) {
  return __hiloint2double((exponent + 1023) << 20, 0);
}

/// The exponent of an accumulator as in Unpack (subnormals have the smallest normal's); very low
/// for zero.
__device__ inline int AccumulatorExponent(const FusedRule& rule, double c) {
  const int field = __double2hiint(c) >> 20 & 0x7FF;
  const int exponent_min = rule.f16_accumulator ? -14 : -126;
  const int exponent = field - 1023 > exponent_min ? field - 1023 : exponent_min;
  return field == 0 ? -10000 : exponent < 128 ? exponent : 128;
}

/// The start value of a step in double, whose unit in the last place is 2^(E - F).
__device__ inline double StartOf(const FusedRule& rule, int product_exponent, double c) {
  const int c_exponent = AccumulatorExponent(rule, c);
  int exponent = product_exponent > c_exponent ? product_exponent : c_exponent;
  exponent = exponent > kFusedExponentFloor ? exponent : kFusedExponentFloor;
  return PowerOfTwo(exponent - rule.align_bits + 52);
}

/// The outputs of a thread that have overflowed to an infinity, which finite products do not change
/// any more. The accumulators of such outputs go on from zero and are ignored.
struct Overflows {
  uint32_t infinite = 0, negative = 0;

  __device__ void Add(int output, bool is_negative) {
    const uint32_t bit = 1u << output;
    if ((infinite & bit) == 0 && is_negative) negative |= bit;
    infinite |= bit;
  }
  __device__ float Apply(int output, float value) const {
    const uint32_t sign = (negative >> output & 1) << 31;
    return (infinite >> output & 1) != 0 ? __uint_as_float(sign | 0x7F800000u) : value;
  }
};

/// Rounds an exact sum to the type of the rule's accumulators; out_mantissa is 23. Zero, and what
/// rounds to zero, is +0.
__device__ inline void RoundAccumulator(const FusedRule& rule, int output, double& sum,
                                        Overflows& overflows) {
  const bool is_negative = sum < 0;
  double magnitude = fabs(sum);
  if (rule.f16_accumulator) {
    uint16_t half;
    asm("cvt.rn.f16.f64 %0, %1;" : "=h"(half) : "d"(magnitude));
    asm("{.reg .f32 single; cvt.f32.f16 single, %1; cvt.f64.f32 %0, single;}"
        : "=d"(magnitude)
        : "h"(half));
  } else if (magnitude < 0x1p-126) {
    const double start = PowerOfTwo(-149 + 52);
    magnitude = __dadd_rz(start, magnitude) - start;
  } else {
    // Truncation toward zero clears the bits beyond 23.
    magnitude = __longlong_as_double(__double_as_longlong(magnitude) & ~((int64_t{1} << 29) - 1));
  }
  if (magnitude >= 0x1p128) {
    overflows.Add(output, is_negative);
    magnitude = 0;
  }
  sum = is_negative && magnitude != 0 ? -magnitude : magnitude;
}

/// Truncates a sum to 23 fraction bits. False where RoundAccumulator would give something else: for
/// subnormals and infinities.
__device__ inline bool TruncateToFloat(double& sum) {
  constexpr uint32_t kSmallest = (1023u - 126) << 20, kLargest = (1023u + 127) << 20;
  const uint32_t high = static_cast<uint32_t>(__double2hiint(sum));
  sum = __hiloint2double(static_cast<int>(high), __double2loint(sum) & ~((1 << 29) - 1));
  return high == 0 || (high & 0x7FF00000u) - kSmallest <= kLargest - kSmallest;
}

/// value * 2^exponent where the result is a normal number or value is 0.
__device__ inline double TimesPowerOfTwo(double value, int exponent) {
  const int high = __double2hiint(value);
  return __hiloint2double(high == 0 ? 0 : high + (exponent << 20), __double2loint(value));
}

/// Begins the steps of one rule by additions to the exponent fields of doubles.
struct WideStart {
  int c_exponent_min;  // At the place of a double's exponent field.
  int to_start;        // Distance from the largest exponent to that of the start value.
  int zero = 0;        // The lower word of start values, hidden from the compiler, which would
                       // otherwise build each pair of registers again before every use.

  __device__ explicit WideStart(const FusedRule& rule)
      : c_exponent_min((1023 + (rule.f16_accumulator ? -14 : -126)) << 20),
        to_start((52 - rule.align_bits) << 20) {
    asm volatile("" : "+r"(zero));
  }

  /// Sets `start` to the step's start value, 2^52 units of the grid, for products whose scale
  /// 2^shift is not applied. Returns the accumulator in units: its magnitude truncated to below
  /// 2^26, with its sign.
  __device__ int Begin(int product_exponent, int shift, double c, double& start) const {
    const int product = product_exponent + shift;
    const int largest = product > kFusedExponentFloor ? product : kFusedExponentFloor;
    const int of_products = (largest + 1023) << 20;
    const int high = __double2hiint(c), field = high & 0x7FF00000;
    // Subnormals share the smallest normal's exponent; zero takes no part.
    const int of_c = high == 0 ? 0 : field > c_exponent_min ? field : c_exponent_min;
    const int largest_field = of_products > of_c ? of_products : of_c;
    start = __hiloint2double(largest_field + to_start - (shift << 20), zero);
    const double truncated = __dadd_rz(start, fabs(TimesPowerOfTwo(c, -shift)));
    const int sign = high >> 31;
    return (__double2loint(truncated) ^ sign) - sign;
  }
};

/// The exact sum of a step from its units, |units| < 2^51.
__device__ inline double WideSum(int64_t units, double start) {
  // The bits of 2^52 + 2^51 + units, less the first two.
  const double exact = __longlong_as_double(0x4338000000000000 + units) - 6755399441055744.0;
  const int high = __double2hiint(exact);
  return __hiloint2double(high == 0 ? 0 : high + __double2hiint(start) - ((1023 + 52) << 20),
                          __double2loint(exact));
}

}  // namespace quantgate
