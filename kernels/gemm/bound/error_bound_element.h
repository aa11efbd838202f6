// How far one output may lie from the exact value: the bound of the accumulation plus the roundings
// of the epilogue. Shared by the CPU and the CUDA engine, so that their ratios are the same
// doubles.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/base/host_device.h"
#include "kernels/numerics/float_format.h"

namespace quantgate {

namespace error_bound {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kU = 0x1p-24;
/// The rounding error of fp32 where a result is subnormal: half of 2^-149.
inline constexpr double kUnderflow = 0x1p-150;
/// Covers the roundings of the bound itself, each below 2^-52.
inline constexpr double kInflation = 1 + 0x1p-40;

/// gamma_n = n u / (1 - n u).
QG_HOST_DEVICE constexpr double Gamma(int64_t n) {
  const double nu = static_cast<double>(n) * kU;
  return nu < 1 ? nu / (1 - nu) : kInfinity;
}

QG_HOST_DEVICE constexpr double Magnitude(double x) {
  return std::bit_cast<double>(std::bit_cast<uint64_t>(x) & ~(uint64_t(1) << 63));
}
QG_HOST_DEVICE constexpr bool IsFinite(double x) { return Magnitude(x) < kInfinity; }
QG_HOST_DEVICE constexpr bool IsNan(double x) { return x != x; }
QG_HOST_DEVICE constexpr double WithSignOf(double magnitude, double x) {
  return std::bit_cast<uint64_t>(x) >> 63 != 0 ? -magnitude : magnitude;
}

/// 2^exponent, a normal number; infinity above.
QG_HOST_DEVICE constexpr double PowerOfTwo(int exponent) {
  if (exponent > 1023) return kInfinity;
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}

/// Properties of an output format: half an ulp at a magnitude, and where overflow begins.
struct OutputFacts {
  int mantissa_bits = 0;
  int exponent_min = 0;
  double largest_finite = 0;
  bool saturates = false;

  QG_HOST_DEVICE constexpr double HalfUlp(double magnitude) const {
    if (magnitude == kInfinity) return kInfinity;
    // Numbers below the smallest normal, and NaN, have its ulp; so do subnormals of fp64, whose
    // exponent field is 0.
    const auto field = static_cast<int>(std::bit_cast<uint64_t>(magnitude) >> 52);
    const int exponent = magnitude > 0 ? field - 1023 : exponent_min;
    return PowerOfTwo((exponent > exponent_min ? exponent : exponent_min) - mantissa_bits - 1);
  }
  /// The smallest magnitude that rounds to infinity.
  QG_HOST_DEVICE constexpr double Overflow() const {
    return largest_finite + HalfUlp(largest_finite);
  }
};

template <class F>
constexpr OutputFacts FactsOf() {
  using C = FormatConstants<F>;
  const int top = (C::kMaxFinite >> F::kMantissaBits) - F::kBias;
  const double significand = (C::kMaxFinite & C::kMantissaMask) | (1u << F::kMantissaBits);
  return {F::kMantissaBits, C::kExponentMin, significand * PowerOfTwo(top - F::kMantissaBits),
          C::kBits <= 8};
}

/// The values that differ between the elements of an output. An absent part has its neutral value.
struct ElementTerms {
  double absolute = 0;  ///< The element of AbsoluteGemm.
  float a_scale = 1;    ///< Multiplies the whole row; amaxes of nv16 included. Likewise b_scale.
  float b_scale = 1;
  float c = 0;
  float bias = 0;
};

/// The values that the bound of every element of an output depends on.
struct ElementBound {
  double factor = 0;  ///< As in ErrorBound.
  double absolute = 0;
  double divisor = 1;          ///< GlobalDivisor.
  float nv16_coefficient = 1;  ///< nv16: alpha' (docs/tensor-cores.md section 3.5).
  float alpha = 1;
  float beta = 0;
  double d_scale = 1;
  OutputFacts output;
  bool is_exact = false;
  bool is_outer = false;
  bool is_nv16 = false;
  bool is_row_scaled = false;
  bool has_bias = false;
  bool rounds_before_c = false;  ///< In place with beta = 1: rounds to the output type before c.

  /// |subject - exact| divided by its bound. Infinite where the two differ in class (number,
  /// infinity, NaN), unless an intermediate value may overflow.
  QG_HOST_DEVICE double Ratio(const ElementTerms& terms, double subject, double exact) const;

 private:
  QG_HOST_DEVICE double ExactCoefficient(const ElementTerms& terms) const {
    return static_cast<double>(alpha) * terms.a_scale * terms.b_scale / divisor;
  }
  QG_HOST_DEVICE double Coefficient(const ElementTerms& terms) const;
  QG_HOST_DEVICE double CoefficientError(const ElementTerms& terms) const;
  QG_HOST_DEVICE double BeforeAddends(const ElementTerms& terms) const;
  QG_HOST_DEVICE double LargestSum(const ElementTerms& terms, double error) const;
  QG_HOST_DEVICE double BeforeOutput(const ElementTerms& terms) const;
  QG_HOST_DEVICE bool MayOverflow(const ElementTerms& terms) const;
};

// The coefficient as the epilogue computes it in fp32: it may underflow or overflow where the exact
// one does not.
QG_HOST_DEVICE inline double ElementBound::Coefficient(const ElementTerms& terms) const {
  if (is_nv16) {
    double coefficient = nv16_coefficient;
    if (is_row_scaled) coefficient *= terms.a_scale * terms.b_scale;
    return coefficient;
  }
  const float scaled_alpha = alpha * terms.b_scale;
  return scaled_alpha * terms.a_scale;
}

// The relative error of that coefficient: that of at most four roundings (nvfp4 has the most), or
// the actual error where that is larger, because it underflows.
QG_HOST_DEVICE inline double ElementBound::CoefficientError(const ElementTerms& terms) const {
  const double exact = ExactCoefficient(terms);
  if (exact == 0) return 0;
  const double found = Magnitude(Coefficient(terms) / exact - 1) * kInflation;
  return Gamma(4) < found ? found : Gamma(4);
}

// The error of the scaled accumulator: by accumulation and scales.
QG_HOST_DEVICE inline double ElementBound::BeforeAddends(const ElementTerms& terms) const {
  const double scale = Magnitude(ExactCoefficient(terms));
  double error = factor * terms.absolute + absolute * scale;
  // Outer scales multiply the value one after the other (and alpha last), the amaxes of a
  // row-scaled operand after the coefficient; otherwise one coefficient does.
  const double scaling =
      is_outer ? Gamma(3) : Gamma(is_row_scaled ? 2 : 1) + 2 * CoefficientError(terms);
  error += scaling * (terms.absolute + error);
  error += kUnderflow * (2 + Magnitude(alpha) * (1 + Magnitude(terms.a_scale)));
  if (is_row_scaled) {
    error +=
        kUnderflow * Magnitude(static_cast<double>(terms.a_scale) * terms.b_scale) * (1 + 0x1p-20);
  }
  return error;
}

// An upper bound of every sum of the epilogue, with room for a few roundings.
QG_HOST_DEVICE inline double ElementBound::LargestSum(const ElementTerms& terms,
                                                      double error) const {
  const double c = beta != 0 ? Magnitude(static_cast<double>(beta) * terms.c) : 0;
  return (terms.absolute + error + c + Magnitude(terms.bias)) * (1 + 0x1p-20);
}

// The error before the rounding to the output type: by accumulation, scales, then beta * c or bias.
QG_HOST_DEVICE inline double ElementBound::BeforeOutput(const ElementTerms& terms) const {
  if (is_exact) return IsFinite(terms.absolute) ? 0 : terms.absolute;
  double error = BeforeAddends(terms);
  const double c = beta != 0 ? Magnitude(static_cast<double>(beta) * terms.c) : 0;
  const double magnitude = LargestSum(terms, error);
  if (beta != 0) error += kU * (c + magnitude) + 2 * kUnderflow;
  if (has_bias) error += kU * magnitude;
  if (rounds_before_c) error += output.HalfUlp(magnitude) * (1 + kU);
  if (d_scale != 1) {
    const double by = Magnitude(d_scale);
    error = error * by + kU * (magnitude + error) * by + kUnderflow;
  }
  return error * kInflation;
}

// Whether an intermediate value may overflow although all inputs are finite. An infinity then
// stays, or becomes a NaN, whatever the exact result is.
QG_HOST_DEVICE inline bool ElementBound::MayOverflow(const ElementTerms& terms) const {
  if (is_exact || !IsFinite(LargestSum(terms, 0))) return false;
  constexpr double kOverflow = FactsOf<Float32>().Overflow();
  if (!is_outer && !IsFinite(Coefficient(terms))) return true;
  const double scale = Magnitude(ExactCoefficient(terms));
  if (scale > 0) {
    const double accumulator = (terms.absolute / scale * (1 + factor) + absolute) * (1 + 0x1p-20);
    const double once_scaled = is_outer ? accumulator * Magnitude(terms.b_scale) : 0;
    const double twice_scaled = once_scaled * Magnitude(terms.a_scale);
    if (!(accumulator < kOverflow && once_scaled < kOverflow && twice_scaled < kOverflow)) {
      return true;
    }
  }
  const double largest = LargestSum(terms, BeforeAddends(terms));
  return !(largest < (rounds_before_c ? output.Overflow() : kOverflow));
}

QG_HOST_DEVICE inline double ElementBound::Ratio(const ElementTerms& terms, double subject,
                                                 double exact) const {
  // 1. NaN and infinities of the same kind. FP8 outputs have no infinities of their own.
  double expected = exact * d_scale;
  if (IsNan(expected)) return IsNan(subject) ? 0 : kInfinity;
  const bool may_be_infinity = output.saturates && Magnitude(subject) == output.largest_finite;
  if ((!IsFinite(subject) || may_be_infinity) && MayOverflow(terms)) return 0;
  if (IsNan(subject)) return kInfinity;
  if (output.saturates) {
    if (expected > output.largest_finite) expected = output.largest_finite;
    if (expected < -output.largest_finite) expected = -output.largest_finite;
  }
  if (subject == expected) return 0;
  // 2. Infinite operands, scales or addends make infinite results, whatever the arithmetic.
  const double before_output = BeforeOutput(terms);
  if (!IsFinite(before_output)) return kInfinity;
  // 3. All inputs finite: an infinity stands for every value from where overflow begins, and the
  //    exact
  // value, which was rounded to f32, is off by up to half its ulp.
  constexpr OutputFacts kF32 = FactsOf<Float32>();
  if (!IsFinite(expected)) expected = WithSignOf(kF32.Overflow(), expected);
  const double truth = IsFinite(exact) ? Magnitude(exact) : kF32.Overflow();
  double error = before_output + kF32.HalfUlp(truth) * Magnitude(d_scale);
  if (!IsFinite(subject)) {
    const double overflow = WithSignOf(output.Overflow(), subject);
    const bool is_beyond = subject > 0 ? expected >= overflow : expected <= overflow;
    return is_beyond ? 0 : Magnitude(overflow - expected) / error;
  }
  error += output.HalfUlp(Magnitude(expected) + error);
  return Magnitude(subject - expected) / error;
}

}  // namespace error_bound

/// How AbsoluteGemm scales its fp64 sums.
struct AbsoluteScaling {
  double alpha = 1;
  double inflation = 1;  ///< Covers the roundings that a term goes through.
  double divisor = 1;    ///< GlobalDivisor.

  QG_HOST_DEVICE double RowFactor(float a_scale) const {
    return error_bound::Magnitude(alpha * a_scale) * inflation;
  }
  QG_HOST_DEVICE double Apply(double s, double row_factor, float b_scale) const {
    return s * (row_factor * error_bound::Magnitude(b_scale)) / divisor;
  }
};

}  // namespace quantgate
