// RunningError: a value in fp64 with a bound on its distance from the same value in fp32 (running
// error analysis: Higham, "Accuracy and Stability of Numerical Algorithms", section 3.3). A formula
// written over this type computes its own bound, element by element:
//
// - every fp32 operation rounds its result by at most u = 2^-24 of it, or by 2^-150 where a product
//   or quotient is subnormal, on top of what its operands' errors make of it;
// - exp, tanh and sigmoid are off by at most one ulp (2 u of the result, or 2^-149), on top of
//   that (docs/numerics.md section 3);
// - a pairwise sum of n values goes through d = ceil(log2 n) additions each: gamma_d of the sum of
//   magnitudes (Higham, section 4.2);
// - a GEMM errs by the bound of its arithmetic, of operands as large as fp32 may have them, and by
//   what the errors of its operand make of each product;
// - each fp64 operation adds its own 2^-53.
//
// Where an fp32 intermediate may overflow there is no bound: the error is infinite.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kernels/gemm/bound/error_bound_element.h"
#include "kernels/numerics/activation.h"
#include "kernels/tensor/dtype.h"

namespace quantgate {

struct RunningError {
  double value = 0;
  double error = 0;  ///< Bound on |fp32 - value|; infinite if there is none.
};

namespace running_error {

inline constexpr double kU = error_bound::kU;
inline constexpr double kUnderflow = error_bound::kUnderflow;
/// u and the fp64 operation's own rounding.
inline constexpr double kRounding = kU + 0x1p-53;
inline constexpr double kInfinity = error_bound::kInfinity;
/// The smallest magnitude that fp32 rounds to infinity.
inline constexpr double kOverflow = 0x1p128 - 0x1p103;

/// `value` after one fp32 rounding; the errors of its operands contribute `propagated`. An error
/// that cannot be bounded is infinite.
inline RunningError Rounded(double value, double propagated, double underflow = 0) {
  const double error = propagated + kRounding * (std::fabs(value) + propagated) + underflow;
  const bool is_bounded = std::isfinite(value) && std::fabs(value) + error < kOverflow;
  return {value, is_bounded ? error : kInfinity};
}

/// The result of an operation whose value is NaN: fp32 gets NaN too, unless its operands may
/// differ.
inline RunningError NotANumber(const RunningError& a, const RunningError& b) {
  const auto is_nan = [](const RunningError& x) {
    return std::isnan(x.value) && std::isfinite(x.error);
  };
  const bool is_certain =
      (std::isfinite(a.error) && std::isfinite(b.error)) || is_nan(a) || is_nan(b);
  return {std::numeric_limits<double>::quiet_NaN(), is_certain ? 0 : kInfinity};
}

/// Whether the value is an infinity in fp32 too, and not one that may have overflowed.
inline bool IsCertainlyInfinite(const RunningError& a) {
  return std::isinf(a.value) && std::isfinite(a.error);
}

double Exp(double x);
double Tanh(double x);
double Sigmoid(double x);

}  // namespace running_error

/// A given value, equal in fp64 and fp32.
inline RunningError Given(double value) { return {value, 0}; }

inline RunningError operator-(const RunningError& a) { return {-a.value, a.error}; }
inline RunningError operator+(const RunningError& a, const RunningError& b) {
  using running_error::IsCertainlyInfinite;
  const double value = a.value + b.value;
  if (std::isnan(value)) return running_error::NotANumber(a, b);
  const bool is_bounded = std::isfinite(a.error) && std::isfinite(b.error);
  if (is_bounded && (IsCertainlyInfinite(a) || IsCertainlyInfinite(b))) return {value, 0};
  return running_error::Rounded(value, a.error + b.error);
}
inline RunningError operator-(const RunningError& a, const RunningError& b) { return a + -b; }
inline RunningError operator*(const RunningError& a, const RunningError& b) {
  using running_error::IsCertainlyInfinite;
  const double value = a.value * b.value;
  if (std::isnan(value)) return running_error::NotANumber(a, b);
  // A factor that may be 0 makes NaN of an infinity.
  const bool have_signs = std::fabs(a.value) > a.error && std::fabs(b.value) > b.error;
  if (have_signs && (IsCertainlyInfinite(a) || IsCertainlyInfinite(b))) return {value, 0};
  const double propagated =
      std::fabs(a.value) * b.error + std::fabs(b.value) * a.error + a.error * b.error;
  return running_error::Rounded(value, propagated, running_error::kUnderflow);
}
inline RunningError operator/(const RunningError& a, const RunningError& b) {
  const double value = a.value / b.value;
  if (std::isnan(value)) return running_error::NotANumber(a, b);
  const double divisor = std::fabs(b.value) - b.error;
  if (!(divisor > 0)) return {value, running_error::kInfinity};
  if (running_error::IsCertainlyInfinite(a)) return {value, 0};
  return running_error::Rounded(value, (a.error + std::fabs(value) * b.error) / divisor,
                                running_error::kUnderflow);
}

inline RunningError operator+(const RunningError& a, float b) { return a + Given(b); }
inline RunningError operator+(float a, const RunningError& b) { return Given(a) + b; }
inline RunningError operator-(const RunningError& a, float b) { return a - Given(b); }
inline RunningError operator-(float a, const RunningError& b) { return Given(a) - b; }
inline RunningError operator*(const RunningError& a, float b) { return a * Given(b); }
inline RunningError operator*(float a, const RunningError& b) { return Given(a) * b; }
inline RunningError operator/(float a, const RunningError& b) { return Given(a) / b; }

/// |sqrt(a') - sqrt(a)| = |a' - a| / (sqrt(a') + sqrt(a)).
inline RunningError Sqrt(const RunningError& a) {
  const double root = std::sqrt(a.value);
  if (std::isnan(root)) return running_error::NotANumber(a, a);
  if (running_error::IsCertainlyInfinite(a)) return {root, 0};
  const double propagated =
      root > 0 ? std::min(a.error / root, std::sqrt(a.error)) : std::sqrt(a.error);
  return running_error::Rounded(root, propagated);
}

/// exp(a') - exp(a) = exp(a) (exp(a' - a) - 1), and exp(t) - 1 <= t (1 + t) for t <= 1.
inline RunningError Exp(const RunningError& a) {
  if (std::isnan(a.value)) return running_error::NotANumber(a, a);
  const double value = running_error::Exp(a.value);
  const double grows = a.error <= 1     ? a.error * (1 + a.error)
                       : a.error <= 100 ? running_error::Exp(a.error) * error_bound::kInflation
                                        : running_error::kInfinity;
  const double propagated = value > 0 ? value * grows : 0;
  return running_error::Rounded(value, propagated + 2 * running_error::kU * (value + propagated) +
                                           2 * running_error::kUnderflow);
}

/// tanh's slope at t is below 4 exp(-2 |t|), and 1.
inline RunningError Tanh(const RunningError& a) {
  if (std::isnan(a.value)) return running_error::NotANumber(a, a);
  const double nearest = std::max(0.0, std::fabs(a.value) - a.error);
  const double slope = std::min(1.0, 4 * running_error::Exp(-2 * nearest));
  const double value = running_error::Tanh(a.value);
  const double propagated = a.error > 0 ? std::min(2.0, a.error * slope) : 0;
  return running_error::Rounded(value, propagated +
                                           2 * running_error::kU * (std::fabs(value) + propagated) +
                                           2 * running_error::kUnderflow);
}

/// sigmoid's slope at t is below exp(-|t|), and 1/4.
inline RunningError Sigmoid(const RunningError& a) {
  if (std::isnan(a.value)) return running_error::NotANumber(a, a);
  const double nearest = std::max(0.0, std::fabs(a.value) - a.error);
  const double slope = std::min(0.25, running_error::Exp(-nearest));
  const double value = running_error::Sigmoid(a.value);
  const double propagated = a.error > 0 ? std::min(1.0, a.error * slope) : 0;
  return running_error::Rounded(value, propagated + 2 * running_error::kU * (value + propagated) +
                                           2 * running_error::kUnderflow);
}

/// The pairwise sum of values that arrive one by one, in any order.
class RunningSum {
 public:
  void Add(const RunningError& term) {
    ++count_;
    if (!std::isfinite(term.value) && std::isfinite(term.error)) {
      is_certain_ = true;
      special_ += term.value;
      return;
    }
    value_ += term.value;
    magnitude_ += std::fabs(term.value) + term.error;
    error_ += term.error;
  }
  RunningError Sum() const;

 private:
  double value_ = 0, magnitude_ = 0, error_ = 0;  // Over the terms other than those in special_.
  double special_ = 0;       // The sum of terms that are NaN or infinite in fp32 too.
  bool is_certain_ = false;  // There are such terms.
  int64_t count_ = 0;
};

/// The facts of f32, bf16 or f16.
error_bound::OutputFacts FactsOfOutput(DType dtype);

/// The value after rounding to a dtype, half an ulp; f32 values stay as they are, and so does what
/// is certainly 0, infinite or NaN.
RunningError RoundedTo(const RunningError& a, const error_bound::OutputFacts& output);

/// The bound of a GEMM whose operands have one dtype (ErrorBound, error_bound.h).
struct ProductBound {
  double factor = 0;
  double absolute = 0;
  double floor = 0;  ///< The smallest normal number of the operands' dtype.
};

/// Rows of given numbers in fp64, and whether each is finite throughout.
class GivenRows {
 public:
  GivenRows(std::span<const float> values, int64_t rows, int64_t columns, bool transposed);
  std::span<const double> Row(int64_t row) const {
    return std::span(values_).subspan(static_cast<size_t>(row * columns_),
                                      static_cast<size_t>(columns_));
  }
  bool IsFinite(int64_t row) const { return is_finite_[static_cast<size_t>(row)]; }

 private:
  int64_t columns_;
  std::vector<double> values_;
  std::vector<bool> is_finite_;
};

/// A row of a GEMM's outputs: sums over k of a[k] * b[k][n]. The operand a comes of other
/// operations, b is given. The bound is that of the operands as they are in fp32, whose magnitudes
/// are at most |a| + e(a), and what e(a) makes of each product.
class RunningProducts {
 public:
  RunningProducts(int64_t columns, const ProductBound& bound);
  void Add(const RunningError& a, const GivenRows& b, int64_t row);
  RunningError At(int64_t column) const;

 private:
  void AddSpecial(const RunningError& a, std::span<const double> b);

  ProductBound bound_;
  int64_t count_ = 0;
  bool has_special_ = false;
  std::vector<double> value_, magnitude_, propagated_;
  std::vector<double> special_;  ///< Sums of terms that fp32 has as NaN or infinities too.
};

/// The probabilities of one row (docs/numerics.md section 9): exp(z - max) / sum, in fp32. `z` are
/// the scaled scores of the keys taken, of `keys` altogether; `p` has as many.
void SoftmaxReference(std::span<const RunningError> z, int64_t keys, std::span<RunningError> p);

// Activation functions and their gradients in fp64, with a bound on the error of their fp32
// evaluation (docs/quantizers.md section 10.6): the formulas of kernels/numerics/activation.h,
// operation by operation.

/// One row: `h` has F elements, or 2 F of a gated kind; `out` has F.
void ActivationReference(const ActivationOptions& options, std::span<const float> h,
                         std::span<RunningError> out);
/// One row: `dy` has F elements, `out` as many as `h`.
void ActivationGradientReference(const ActivationOptions& options, std::span<const float> h,
                                 std::span<const float> dy, std::span<RunningError> out);

}  // namespace quantgate
