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

namespace {

constexpr float kQuickGeluAlpha = 1.702f;

RunningError AnySigmoid(const RunningError& x, ActivationVariant variant) {
  if (variant != ActivationVariant::kFp32Sigmoid) return Sigmoid(x);
  return 1.0f / (1.0f + Exp(-x));
}

/// tanh of gelu as the derivative and the torch operations write it.
RunningError GeluTanh(const RunningError& x) {
  return Tanh((0.79788456f * x) * (1.0f + (0.044715f * x) * x));
}

RunningError Gelu(const RunningError& x, ActivationVariant variant) {
  if (variant == ActivationVariant::kJitGelu) return (0.5f * x) * (1.0f + GeluTanh(x));
  return x * (0.5f + 0.5f * Tanh(x * (0.79788456f + (0.03567741f * x) * x)));
}

RunningError GeluDerivative(const RunningError& x) {
  const RunningError t = GeluTanh(x);
  return (0.5f * x) * ((1.0f - t * t) * (0.79788456f + (0.1070322243f * x) * x)) +
         0.5f * (1.0f + t);
}

/// d/dx of x * sigmoid(alpha * x).
RunningError SigmoidProductDerivative(const RunningError& x, float alpha,
                                      ActivationVariant variant) {
  const RunningError scaled = alpha * x;
  const RunningError s = AnySigmoid(scaled, variant);
  return scaled * (s * (1.0f - s)) + s;
}

float ClampedAbove(float x, const ActivationOptions& options) {
  return x > options.limit ? options.limit : x;
}

RunningError Value(float given, const ActivationOptions& options) {
  const RunningError x = Given(given);
  switch (FunctionOf(options.kind)) {
    case ActivationFunction::kGelu:
      return Gelu(x, options.variant);
    case ActivationFunction::kSigmoid:
      return AnySigmoid(x, options.variant);
    case ActivationFunction::kQuickGelu:
      return x * AnySigmoid(kQuickGeluAlpha * x, options.variant);
    case ActivationFunction::kRelu:
      return given <= 0 ? Given(0) : x;
    case ActivationFunction::kSquaredRelu:
      return given <= 0 ? Given(0) : x * x;
    case ActivationFunction::kSilu:
      return x * AnySigmoid(x, options.variant);
    case ActivationFunction::kClampedSilu:
      break;
  }
  const RunningError clamped = Given(ClampedAbove(given, options));
  return clamped * AnySigmoid(options.alpha * clamped, options.variant);
}

RunningError Derivative(float given, const ActivationOptions& options) {
  const RunningError x = Given(given);
  switch (FunctionOf(options.kind)) {
    case ActivationFunction::kGelu:
      return GeluDerivative(x);
    case ActivationFunction::kSigmoid: {
      const RunningError s = AnySigmoid(x, options.variant);
      return s * (1.0f - s);
    }
    case ActivationFunction::kQuickGelu:
      return SigmoidProductDerivative(x, kQuickGeluAlpha, options.variant);
    case ActivationFunction::kRelu:
      if (given <= 0) return Given(0);
      return given > 0 ? Given(1) : x;
    case ActivationFunction::kSquaredRelu:
      return given <= 0 ? Given(0) : 2.0f * x;
    case ActivationFunction::kSilu:
      return SigmoidProductDerivative(x, 1.0f, options.variant);
    case ActivationFunction::kClampedSilu:
      break;
  }
  if (given > options.limit) return Given(0);
  return SigmoidProductDerivative(x, options.alpha, options.variant);
}

bool ClampsGate(const ActivationOptions& options) {
  return FunctionOf(options.kind) == ActivationFunction::kClampedSilu;
}

RunningError GateFactor(float gate, const ActivationOptions& options) {
  if (!ClampsGate(options)) return Given(gate);
  const float below = ClampedAbove(gate, options);
  return Given(below < -options.limit ? -options.limit : below) + options.offset;
}

RunningError GateGradient(float dy, float x, float gate, const ActivationOptions& options) {
  if (ClampsGate(options)) {
    if (std::isnan(gate)) return Given(gate);
    if (std::fabs(gate) > options.limit) return Given(0);
  }
  return dy * Value(x, options);
}

}  // namespace

void ActivationReference(const ActivationOptions& options, std::span<const float> h,
                         std::span<RunningError> out) {
  const size_t gates = IsGated(options.kind) ? h.size() / 2 : 0;
  for (size_t i = 0; i < out.size(); ++i) {
    const RunningError value = Value(h[i], options);
    out[i] = gates == 0 ? value : value * GateFactor(h[gates + i], options);
  }
}

void ActivationGradientReference(const ActivationOptions& options, std::span<const float> h,
                                 std::span<const float> dy, std::span<RunningError> out) {
  const size_t gates = IsGated(options.kind) ? h.size() / 2 : 0;
  for (size_t i = 0; i < dy.size(); ++i) {
    const RunningError gradient = Derivative(h[i], options) * dy[i];
    if (gates == 0) {
      out[i] = gradient;
      continue;
    }
    out[i] = gradient * GateFactor(h[gates + i], options);
    out[gates + i] = GateGradient(dy[i], h[i], h[gates + i], options);
  }
}

}  // namespace quantgate
