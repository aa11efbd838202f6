// exp, tanh, sigmoid and 1/sqrt of binary32 with the same bits everywhere: evaluated in binary64
// with IEEE operations and explicit fma, rounded once to binary32. Without branches, so that
// compilers vectorise loops over them. Results and how many of the 2^32 are correctly rounded:
// docs/numerics.md section 7. Every NaN gives 0x7FFFFFFF.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/base/host_device.h"
#include "kernels/numerics/cast.h"

namespace quantgate {

namespace transcendental_steps {

/// e^y = power * (1 + part), power = 2^n and part = e^r - 1, where y = n ln 2 + r.
struct PowerAndPart {
  double power;
  double part;
};

/// For y of at most 24 significant bits, |y| <= 128; NaN gives a NaN part.
QG_HOST_DEVICE inline PowerAndPart SplitExp(double y) {
  constexpr double kInverseLn2 = 0x1.71547652b82fep+0;
  constexpr double kToInteger = 0x1.8p+52;  // Adding it leaves the nearest integer in the low bits.
  // ln 2 in two parts; the first has 16 trailing zero bits, so n times it is exact, and so is
  // y - n times it: both are multiples of 2^-37 and the difference is small, or n is 0.
  constexpr double kLn2High = 0x1.62e42fefap-1, kLn2Low = 0x1.cf79abc9e3b3ap-40;
  // (e^r - 1 - r) / r^2 for |r| <= ln 2 / 2, interpolated in the Chebyshev nodes of that interval;
  // with rounded coefficients r^2 times its error stays below 2^-56.
  constexpr double kSeries[] = {0x1.0000000000001p-1,  0x1.5555555555556p-3,  0x1.5555555553d63p-5,
                                0x1.11111111109b3p-7,  0x1.6c16c1788bd90p-10, 0x1.a01a01a7c41d5p-13,
                                0x1.a019b90d2ae7ap-16, 0x1.71de0dae63bb3p-19, 0x1.289185613a3d6p-22,
                                0x1.af38a9b0ec855p-26};
  const double shifted = std::fma(y, kInverseLn2, kToInteger);
  const double n = shifted - kToInteger;
  const double r = std::fma(-n, kLn2Low, std::fma(-n, kLn2High, y));
  double series = std::fma(kSeries[9], r, kSeries[8]);  // No loop: compilers vectorise none within.
  series = std::fma(series, r, kSeries[7]);
  series = std::fma(series, r, kSeries[6]);
  series = std::fma(series, r, kSeries[5]);
  series = std::fma(series, r, kSeries[4]);
  series = std::fma(series, r, kSeries[3]);
  series = std::fma(series, r, kSeries[2]);
  series = std::fma(series, r, kSeries[1]);
  series = std::fma(series, r, kSeries[0]);
  // The exponent field of 2^n: the low bits of `shifted` are those of n, the rest is shifted out.
  const uint64_t power = (std::bit_cast<uint64_t>(shifted) + 1023) << 52;
  return {std::bit_cast<double>(power), std::fma(r * r, series, r)};
}

/// a + b rounded to odd: where it is inexact, the neighbour with an odd last bit. Rounding that to
/// binary32 gives what one rounding of the exact sum would (Boldo and Melquiond, "Emulation of a
/// FMA and Correctly Rounded Sums: Proved Algorithms Using Rounding to Odd", IEEE Trans. Comput.
/// 57, 2008). For a > |b| or a = 0, and b of any sign but a + b > 0.
QG_HOST_DEVICE inline double AddToOdd(double a, double b) {
  const double sum = a + b;
  const double error = b - (sum - a);
  const uint64_t bits = std::bit_cast<uint64_t>(sum);
  const uint64_t truncated = error < 0 ? bits - 1 : bits;
  return std::bit_cast<double>(error != 0 ? truncated | 1 : bits);
}

}  // namespace transcendental_steps

QG_HOST_DEVICE inline float Exp(float x) {
  // e^89 is beyond the largest binary32 number, e^-104 below half of the smallest.
  const float below = x > 89.0f ? 89.0f : x;
  const double y = below < -104.0f ? -104.0f : below;
  const auto [power, part] = transcendental_steps::SplitExp(y);
  return CanonicalFloat(static_cast<float>(std::fma(power, part, power)));
}

/// (1 - u) / (1 + u) with u = e^(-2|x|), by u - 1, which keeps its digits for small x.
QG_HOST_DEVICE inline float Tanh(float x) {
  const float magnitude = std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0x7FFFFFFF);
  const double y = magnitude > 10.0f ? 10.0f : magnitude;  // 1 - tanh 10 is below 2^-25.
  const auto [power, part] = transcendental_steps::SplitExp(-2 * y);
  const double u_minus_1 = std::fma(power, part, power - 1);
  const float quotient = static_cast<float>(u_minus_1 / (2 + u_minus_1));
  const uint32_t sign = std::bit_cast<uint32_t>(x) & 0x80000000u;
  const uint32_t quotient_magnitude = std::bit_cast<uint32_t>(quotient) & 0x7FFFFFFF;
  return CanonicalFloat(std::bit_cast<float>(quotient_magnitude | sign));
}

/// 1 / (1 + e^-x). With u = e^-|x|: 1/2 + (1 - u) / 2 / (1 + u) for x >= -1, where a result near
/// 1/2 + x/4 lies next to the middle between two binary32 numbers; u / (1 + u) below.
QG_HOST_DEVICE inline float Sigmoid(float x) {
  const float magnitude = std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0x7FFFFFFF);
  const double y = magnitude > 104.0f ? 104.0f : magnitude;
  const auto [power, part] = transcendental_steps::SplitExp(-y);
  const double u_minus_1 = std::fma(power, part, power - 1);
  const double u = std::fma(power, part, power);
  const bool is_low = x < -1.0f;
  const double half = x < 0 ? 0.5 * u_minus_1 : -0.5 * u_minus_1;
  const double quotient = (is_low ? u : half) / (2 + u_minus_1);
  const double sum = transcendental_steps::AddToOdd(is_low ? 0.0 : 0.5, quotient);
  return CanonicalFloat(static_cast<float>(sum));
}

/// Sigmoid in binary32 operations, as Transformer Engine writes it: a named variant.
QG_HOST_DEVICE inline float SigmoidByFloats(float x) {
  return CanonicalFloat(1.0f / (1.0f + Exp(-x)));
}

/// 1 / sqrt(x), both IEEE operations of binary32.
QG_HOST_DEVICE inline float ReciprocalSqrt(float x) { return CanonicalFloat(1.0f / std::sqrt(x)); }

}  // namespace quantgate
