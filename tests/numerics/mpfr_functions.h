// exp, tanh, sigmoid and 1/sqrt of binary32 under test, beside MPFR and the C library.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace quantgate::testing {

struct FunctionOfFloats {
  std::string name;
  float (*function)(float);  ///< Of kernels/numerics/transcendental.h.
  float (*correct)(float);   ///< By MPFR, correctly rounded; NaN is 0x7FFFFFFF.
  /// In binary64 by the C library, to a few units in its last place.
  double (*approximate)(double);
  bool is_rising;  ///< Monotone: rising or falling over the numbers from `from` up.
  float from;
};

/// exp, tanh, sigmoid, rsqrt.
const std::vector<FunctionOfFloats>& EveryFunction();

/// Whether both are the same bits, signs of zeros and NaN included.
bool SameBits(float a, float b);

/// How many numbers of binary32 b is above or below a, both zeros being one; INT64_MAX where one
/// of them is NaN.
int64_t Distance(float a, float b);

}  // namespace quantgate::testing
