#include "kernels/validate/reference/activation_reference.h"

namespace quantgate {
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
