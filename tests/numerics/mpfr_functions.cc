#include "tests/numerics/mpfr_functions.h"

#include <mpfr.h>

#include <bit>
#include <cmath>
#include <limits>

#include "kernels/numerics/transcendental.h"

namespace quantgate::testing {
namespace {

/// An MPFR number for the life of a thread.
class Number {
 public:
  explicit Number(mpfr_prec_t bits) { mpfr_init2(value_, bits); }
  ~Number() { mpfr_clear(value_); }
  Number(const Number&) = delete;
  Number& operator=(const Number&) = delete;
  operator mpfr_ptr() { return value_; }  // NOLINT: as MPFR's functions take it.

 private:
  mpfr_t value_;
};

/// The exponent range of binary32 as MPFR counts it, for mpfr_subnormalize.
class Float32Range {
 public:
  Float32Range() : min_(mpfr_get_emin()), max_(mpfr_get_emax()) {
    mpfr_set_emin(-148);
    mpfr_set_emax(128);
  }
  ~Float32Range() {
    mpfr_set_emin(min_);
    mpfr_set_emax(max_);
  }

 private:
  const mpfr_exp_t min_, max_;
};

/// `function` of x in one rounding: MPFR's are correctly rounded to the precision of the result.
template <class Function>
float RoundedOnce(float x, const Function& function) {
  const Float32Range range;
  thread_local Number argument(24), result(24);
  mpfr_set_flt(argument, x, MPFR_RNDN);
  const int inexact = function(result, argument);
  mpfr_subnormalize(result, inexact, MPFR_RNDN);
  return CanonicalFloat(mpfr_get_flt(result, MPFR_RNDN));
}

float CorrectExp(float x) {
  return RoundedOnce(x, [](mpfr_ptr y, mpfr_ptr a) { return mpfr_exp(y, a, MPFR_RNDN); });
}

float CorrectTanh(float x) {
  return RoundedOnce(x, [](mpfr_ptr y, mpfr_ptr a) { return mpfr_tanh(y, a, MPFR_RNDN); });
}

float CorrectReciprocalSqrt(float x) {
  // MPFR has +Inf for both zeros; IEEE 754's rSqrt keeps the sign, as 1 / sqrt does.
  if (x == 0) return std::copysign(std::numeric_limits<float>::infinity(), x);
  return RoundedOnce(x, [](mpfr_ptr y, mpfr_ptr a) { return mpfr_rec_sqrt(y, a, MPFR_RNDN); });
}

/// 1 / (1 + e^-x) in 300 bits, then rounded to binary32. The sum is exact to 2^-299 of itself: the
/// last rounding is that of the true value unless it lies within 2^-298 of the middle of two
/// numbers, and no x but those with e^-x below 2^-150 or within 2^-150 of 1, where the result is 1,
/// 0 or 1/2, has one so near.
float CorrectSigmoid(float x) {
  thread_local Number sum(300), quotient(300), result(24);
  mpfr_set_flt(sum, -x, MPFR_RNDN);
  mpfr_exp(sum, sum, MPFR_RNDN);
  mpfr_add_ui(sum, sum, 1, MPFR_RNDN);
  mpfr_ui_div(quotient, 1, sum, MPFR_RNDN);
  const Float32Range range;
  const int inexact = mpfr_check_range(result, mpfr_set(result, quotient, MPFR_RNDN), MPFR_RNDN);
  mpfr_subnormalize(result, inexact, MPFR_RNDN);
  return CanonicalFloat(mpfr_get_flt(result, MPFR_RNDN));
}

/// Signed magnitude as an integer that counts the numbers.
int64_t Place(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const int64_t magnitude = bits & 0x7FFFFFFF;
  return bits >> 31 ? -magnitude : magnitude;
}

}  // namespace

const std::vector<FunctionOfFloats>& EveryFunction() {
  static const std::vector<FunctionOfFloats> functions = {
      {"exp", &Exp, &CorrectExp, [](double x) { return std::exp(x); }, true, -INFINITY},
      {"tanh", &Tanh, &CorrectTanh, [](double x) { return std::tanh(x); }, true, -INFINITY},
      {"sigmoid", &Sigmoid, &CorrectSigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }, true,
       -INFINITY},
      {"rsqrt", &ReciprocalSqrt, &CorrectReciprocalSqrt, [](double x) { return 1 / std::sqrt(x); },
       false, 0.0f},
  };
  return functions;
}

bool SameBits(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }

int64_t Distance(float a, float b) {
  if (a != a || b != b) return std::numeric_limits<int64_t>::max();
  return std::abs(Place(a) - Place(b));
}

}  // namespace quantgate::testing
