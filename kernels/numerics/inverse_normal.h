// Normal and log-normal numbers as fixed fp64 formulas: IEEE +, -, *, /, sqrt and explicit fma
// only, so that every compiler and device gives the same bits. Equal bits are the purpose; the
// accuracy is about 1e-13.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/base/host_device.h"

namespace quantgate {

namespace normal_steps {

/// A polynomial by Horner's rule; `coefficients` begin with the constant term.
template <int N>
QG_HOST_DEVICE inline double Polynomial(const double (&coefficients)[N], double x) {
  double sum = coefficients[N - 1];
  for (int i = N - 2; i >= 0; --i) sum = std::fma(sum, x, coefficients[i]);
  return sum;
}

/// ln 2 in two parts: the first has 16 trailing zero bits, so its product with an exponent is
/// exact.
inline constexpr double kLn2High = 0x1.62e42fefap-1, kLn2Low = 0x1.cf79abc9e3b39p-40;

/// Natural logarithm of a positive normal number: x = m * 2^e with m in [sqrt(1/2), sqrt(2)), and
/// ln m = 2 atanh(s), s = (m - 1) / (m + 1), |s| < 0.1716, by its series (next term below 1e-14).
QG_HOST_DEVICE inline double Log(double x) {
  uint64_t bits = std::bit_cast<uint64_t>(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xFFFFFFFFFFFFFu) | (uint64_t{1023} << 52));
  if (m > 0x1.6a09e667f3bcdp+0) {
    m *= 0.5;
    ++exponent;
  }
  constexpr double kSeries[] = {1.0,      1.0 / 3,  1.0 / 5,  1.0 / 7,  1.0 / 9,
                                1.0 / 11, 1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19};
  const double s = (m - 1.0) / (m + 1.0);
  const double series = 2.0 * s * Polynomial(kSeries, s * s);
  return std::fma(double(exponent), kLn2High, std::fma(double(exponent), kLn2Low, series));
}

}  // namespace normal_steps

/// e^x for |x| <= 700: x = n ln 2 + r, |r| <= 0.347, and the Taylor series of e^r (next term below
/// 1e-16).
QG_HOST_DEVICE inline double FixedExp(double x) {
  constexpr double kInverseLn2 = 0x1.71547652b82fep+0;
  constexpr double kToInteger = 0x1.8p+52;  // Adding it leaves the nearest integer in the low bits.
  constexpr double kTaylor[] = {1.0,
                                1.0,
                                1.0 / 2,
                                1.0 / 6,
                                1.0 / 24,
                                1.0 / 120,
                                1.0 / 720,
                                1.0 / 5040,
                                1.0 / 40320,
                                1.0 / 362880,
                                1.0 / 3628800,
                                1.0 / 39916800,
                                1.0 / 479001600,
                                1.0 / 6227020800.0};
  const double n = std::fma(x, kInverseLn2, kToInteger) - kToInteger;
  const double r = std::fma(-n, normal_steps::kLn2Low, std::fma(-n, normal_steps::kLn2High, x));
  const uint64_t power = static_cast<uint64_t>(static_cast<int64_t>(n) + 1023) << 52;
  return normal_steps::Polynomial(kTaylor, r) * std::bit_cast<double>(power);
}

/// The standard normal number whose cumulative probability is (word + 1/2) / 2^32: Wichura,
/// "Algorithm AS 241: The Percentage Points of the Normal Distribution", Applied Statistics 37
/// (1988), PPND16. Its third branch begins at probability e^-25 = 1.4e-11, below the smallest here
/// (2^-33 = 1.2e-10), and is left out.
QG_HOST_DEVICE inline double InverseNormal(uint32_t word) {
  constexpr double kA[] = {3.3871328727963666080e0,  1.3314166789178437745e+2,
                           1.9715909503065514427e+3, 1.3731693765509461125e+4,
                           4.5921953931549871457e+4, 6.7265770927008700853e+4,
                           3.3430575583588128105e+4, 2.5090809287301226727e+3};
  constexpr double kB[] = {1.0,
                           4.2313330701600911252e+1,
                           6.8718700749205790830e+2,
                           5.3941960214247511077e+3,
                           2.1213794301586595867e+4,
                           3.9307895800092710610e+4,
                           2.8729085735721942674e+4,
                           5.2264952788528545610e+3};
  constexpr double kC[] = {1.42343711074968357734e0,  4.63033784615654529590e0,
                           5.76949722146069140550e0,  3.64784832476320460504e0,
                           1.27045825245236838258e0,  2.41780725177450611770e-1,
                           2.27238449892691845833e-2, 7.74545014278341407640e-4};
  constexpr double kD[] = {1.0,
                           2.05319162663775882187e0,
                           1.67638483018380384940e0,
                           6.89767334985100004550e-1,
                           1.48103976427480074590e-1,
                           1.51986665636164571966e-2,
                           5.47593808499534494600e-4,
                           1.05075007164441684324e-9};
  const double p = (double(word) + 0.5) * 0x1p-32;
  const double q = p - 0.5;
  if (-0.425 <= q && q <= 0.425) {
    const double r = std::fma(-q, q, 0.180625);  // 0.425^2 - q^2
    return q * (normal_steps::Polynomial(kA, r) / normal_steps::Polynomial(kB, r));
  }
  const double tail = q < 0 ? p : 1.0 - p;  // Exact: p is a multiple of 2^-33.
  const double r = std::sqrt(-normal_steps::Log(tail)) - 1.6;
  const double magnitude = normal_steps::Polynomial(kC, r) / normal_steps::Polynomial(kD, r);
  return q < 0 ? -magnitude : magnitude;
}

}  // namespace quantgate
