#include "kernels/validate/reference/running_error.h"

#include <bit>

#include "kernels/numerics/transcendental.h"

namespace quantgate {
namespace running_error {
namespace {

using transcendental_steps::PowerAndPart;
using transcendental_steps::SplitExp;

/// e^x by the steps of fp32's, which take fp64 arguments too: x - n ln 2 is then rounded once.
PowerAndPart Split(double x) {
  // Beyond these all results here are 0, 1 or infinite in fp32.
  return SplitExp(std::isnan(x) ? x : std::clamp(x, -700.0, 700.0));
}

}  // namespace

double Exp(double x) {
  const auto [power, part] = Split(x);
  return std::fma(power, part, power);
}

/// (1 - u) / (1 + u), u = e^(-2|x|), by u - 1, which keeps its digits for small x.
double Tanh(double x) {
  const auto [power, part] = Split(-2 * std::fabs(x));
  const double u_minus_1 = std::fma(power, part, power - 1);
  return std::copysign(-u_minus_1 / (2 + u_minus_1), x);
}

double Sigmoid(double x) {
  const double u = Exp(-std::fabs(x));
  return (x < 0 ? u : 1.0) / (1 + u);
}

}  // namespace running_error

RunningError RunningSum::Sum() const {
  if (count_ == 0) return Given(0);
  const int depth = std::bit_width(static_cast<uint64_t>(count_ - 1));
  const double own = static_cast<double>(count_) * 0x1p-53;
  const double error = error_ + (error_bound::Gamma(depth) + own) * magnitude_ * (1 + own);
  const bool is_bounded = std::isfinite(value_) && magnitude_ + error < running_error::kOverflow;
  // A NaN, or infinities of both signs, make a NaN whatever the others are; those of one sign stay
  // where the others cannot overflow to the other.
  if (is_certain_) {
    const bool stays = std::isnan(special_) || is_bounded;
    return {special_, stays ? 0 : running_error::kInfinity};
  }
  return {value_, is_bounded ? error : running_error::kInfinity};
}

}  // namespace quantgate
