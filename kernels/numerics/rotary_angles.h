// Cosine, sine and power of binary32 for rotary positions (docs/numerics.md section 9.1): evaluated
// in binary64 with IEEE operations and explicit fma, rounded once to binary32, the same bits
// everywhere. For the host, which makes the tables. A NaN and the cosine of an infinity give
// 0x7FFFFFFF.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/numerics/transcendental.h"

namespace quantgate {

struct CosineAndSine {
  float cosine, sine;
};

namespace rotary_steps {

/// x = quadrant * pi / 2 + rest, |rest| at most a little over pi / 4, quadrant modulo 4.
struct ReducedAngle {
  int quadrant;
  double rest;
};

/// For finite x >= 0. Payne and Hanek's reduction, "Radian Reduction for Trigonometric Functions",
/// ACM SIGNUM Newsletter 18, 1983: x = m 2^e with m of 24 bits, times the 128 bits of 2 / pi from
/// the one on that 2^e makes a 2. Those before give multiples of 4; those after change the product
/// by less than 2^-102, where no x comes nearer to a multiple of pi / 2 than 2^-32.
inline ReducedAngle ReduceAngle(float x) {
  if (x < 0.75f) return {0, x};
  // 2 / pi behind 32 zero bits: of an x below 2^25 the 128 bits begin among them.
  static constexpr uint32_t kTwoOverPi[] = {0,          0xA2F9836E, 0x4E441529,
                                            0xFC2757D1, 0xF534DDC0, 0xDB629599,
                                            0x3C439041, 0xFE5163AB, 0xDEBBC561};
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t m = (bits & 0x7FFFFF) | 0x800000;
  const int first = static_cast<int>(bits >> 23) - 150 + 30;  // Of the 128 bits, in kTwoOverPi.
  unsigned __int128 factor = 0;
  for (int i = 0; i < 4; ++i) factor = factor << 32 | kTwoOverPi[first / 32 + i];
  if (const int shift = first % 32; shift != 0) {
    factor = factor << shift | kTwoOverPi[first / 32 + 4] >> (32 - shift);
  }
  // Two bits of the quadrant, 126 bits of what is left.
  const unsigned __int128 turns = factor * m;
  const unsigned __int128 quadrant = (turns + (static_cast<unsigned __int128>(1) << 125)) >> 126;
  const auto rest = static_cast<__int128>(turns - (quadrant << 126));
  return {static_cast<int>(quadrant & 3),
          static_cast<double>(rest) * 0x1p-126 * 0x1.921fb54442d18p+0};
}

/// The polynomial with these coefficients, the highest power's first, by Horner's scheme.
template <int kCount>
double Polynomial(const double (&coefficients)[kCount], double s) {
  double value = coefficients[0];
  for (int i = 1; i < kCount; ++i) value = std::fma(value, s, coefficients[i]);
  return value;
}

/// sin r, |r| < 0.79: the series to r^19, whose next term is below 2^-72 of r.
inline double SineOfRest(double r) {
  static constexpr double kSeries[] = {-1.0 / 121645100408832000,
                                       1.0 / 355687428096000,
                                       -1.0 / 1307674368000,
                                       1.0 / 6227020800,
                                       -1.0 / 39916800,
                                       1.0 / 362880,
                                       -1.0 / 5040,
                                       1.0 / 120,
                                       -1.0 / 6};
  const double s = r * r;
  return std::fma(r * s, Polynomial(kSeries, s), r);
}

/// cos r, |r| < 0.79: the series to r^18, whose next term is below 2^-67.
inline double CosineOfRest(double r) {
  static constexpr double kSeries[] = {-1.0 / 6402373705728000,
                                       1.0 / 20922789888000,
                                       -1.0 / 87178291200,
                                       1.0 / 479001600,
                                       -1.0 / 3628800,
                                       1.0 / 40320,
                                       -1.0 / 720,
                                       1.0 / 24,
                                       -1.0 / 2};
  const double s = r * r;
  return std::fma(s, Polynomial(kSeries, s), 1.0);
}

/// A sum of two numbers, the second below an ulp of the first.
struct TwoParts {
  double high, low;
};

/// ln x of a positive finite x: k ln 2 + ln m with an error of a few 2^-53 of ln m, |ln m| < 0.35.
inline TwoParts Logarithm(float x) {
  constexpr double kLn2High = 0x1.62e42fefap-1, kLn2Low = 0x1.cf79abc9e3b3ap-40;
  int exponent = 0;
  double m = std::frexp(static_cast<double>(x), &exponent);  // [1/2, 1)
  if (m < 0.70710678118654752) {
    m *= 2;
    --exponent;
  }
  // ln m = 2 artanh t, t = (m - 1) / (m + 1), |t| < 0.1716: the series to t^25.
  const double t = (m - 1) / (m + 1), s = t * t;
  double series = 1.0 / 25;
  for (int n = 23; n >= 3; n -= 2) series = std::fma(series, s, 1.0 / n);
  const double ln_m = 2 * std::fma(t * s, series, t);
  // kLn2High has 16 trailing zero bits: its multiple is exact, and above |ln m| unless it is 0.
  const double multiple = exponent * kLn2High;
  const double small = std::fma(static_cast<double>(exponent), kLn2Low, ln_m);
  const double high = multiple + small;
  return {high, exponent == 0 ? 0 : small - (high - multiple)};
}

}  // namespace rotary_steps

inline CosineAndSine CosineAndSineOf(float x) {
  if (!std::isfinite(x)) {
    const float nan = CanonicalFloat(std::numeric_limits<float>::quiet_NaN());
    return {nan, nan};
  }
  const auto [quadrant, rest] = rotary_steps::ReduceAngle(std::fabs(x));
  double cosine = rotary_steps::CosineOfRest(rest), sine = rotary_steps::SineOfRest(rest);
  if (quadrant % 2 != 0) {
    const double turned = -sine;
    sine = cosine;
    cosine = turned;
  }
  if (quadrant >= 2) {
    cosine = -cosine;
    sine = -sine;
  }
  return {static_cast<float>(cosine), static_cast<float>(std::signbit(x) ? -sine : sine)};
}

/// base^exponent of a positive finite base, 0 <= exponent <= 1: e^(exponent ln base).
inline float PowerOf(float base, float exponent) {
  const auto [high, low] = rotary_steps::Logarithm(base);
  const double y = exponent * high;
  const double rest = std::fma(exponent, high, -y) + exponent * low;
  const auto [power, part] = transcendental_steps::SplitExp(y);
  const double value = std::fma(power, part, power);
  return static_cast<float>(std::fma(value, rest, value));
}

}  // namespace quantgate
