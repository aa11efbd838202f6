// Activation functions of MLPs and their derivatives in fp32, operation by operation as Transformer
// Engine writes them (docs/quantizers.md section 10.6), on exp and tanh of transcendental.h. A NaN
// input gives a NaN, of any bits: what stores an output makes it canonical.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/base/host_device.h"
#include "kernels/numerics/transcendental.h"

namespace quantgate {

enum class ActivationKind : uint8_t {
  kGelu,
  kGeglu,
  kGlu,
  kQgelu,
  kQgeglu,
  kRelu,
  kReglu,
  kSrelu,
  kSreglu,
  kSilu,
  kSwiglu,
  kClampedSwiglu,
};
inline constexpr std::string_view kActivationKindNames[] = {
    "gelu",  "geglu", "glu",    "qgelu", "qgeglu", "relu",
    "reglu", "srelu", "sreglu", "silu",  "swiglu", "clamped_swiglu"};

/// Other orders of operations that Transformer Engine has for the same functions.
enum class ActivationVariant : uint8_t {
  kCanonical,
  kFp32Sigmoid,  ///< sigmoid as 1 / (1 + exp(-x)) in fp32 operations.
  kJitGelu,      ///< gelu's value as its torch operations have it.
};
inline constexpr std::string_view kActivationVariantNames[] = {"canonical", "fp32_sigmoid",
                                                               "jit_gelu"};

struct ActivationOptions {
  ActivationKind kind = ActivationKind::kGelu;
  ActivationVariant variant = ActivationVariant::kCanonical;
  // clamped_swiglu alone:
  float limit = 7.0f;    ///< Of the activated half from above, of the gate on both sides.
  float alpha = 1.702f;  ///< Of sigmoid(alpha * x).
  float offset = 1.0f;   ///< Added to the clamped gate.
};

/// What is done to the activated element, with or without a gate.
enum class ActivationFunction : uint8_t {
  kGelu,
  kSigmoid,
  kQuickGelu,  ///< x * sigmoid(1.702 x).
  kRelu,
  kSquaredRelu,
  kSilu,
  kClampedSilu,
};

QG_HOST_DEVICE constexpr ActivationFunction FunctionOf(ActivationKind kind) {
  switch (kind) {
    case ActivationKind::kGelu:
    case ActivationKind::kGeglu:
      return ActivationFunction::kGelu;
    case ActivationKind::kGlu:
      return ActivationFunction::kSigmoid;
    case ActivationKind::kQgelu:
    case ActivationKind::kQgeglu:
      return ActivationFunction::kQuickGelu;
    case ActivationKind::kRelu:
    case ActivationKind::kReglu:
      return ActivationFunction::kRelu;
    case ActivationKind::kSrelu:
    case ActivationKind::kSreglu:
      return ActivationFunction::kSquaredRelu;
    case ActivationKind::kSilu:
    case ActivationKind::kSwiglu:
      return ActivationFunction::kSilu;
    case ActivationKind::kClampedSwiglu:
      break;
  }
  return ActivationFunction::kClampedSilu;
}

/// Whether the last dim of the input holds an activated half and then a gate half.
QG_HOST_DEVICE constexpr bool IsGated(ActivationKind kind) {
  switch (kind) {
    case ActivationKind::kGelu:
    case ActivationKind::kQgelu:
    case ActivationKind::kRelu:
    case ActivationKind::kSrelu:
    case ActivationKind::kSilu:
      return false;
    default:
      return true;
  }
}

/// Whether sigmoid is a part of the function, so that kFp32Sigmoid says something.
QG_HOST_DEVICE constexpr bool UsesSigmoid(ActivationFunction function) {
  return function == ActivationFunction::kSigmoid || function == ActivationFunction::kQuickGelu ||
         function == ActivationFunction::kSilu || function == ActivationFunction::kClampedSilu;
}

/// The part of a function that takes time: tanh or sigmoid of something that x gives. Alone, so
/// that a kernel may look it up where there are few x.
struct InnerValues {
  float for_value, for_slope;
};

/// f(x) and f'(x) of the activated element.
struct ValueAndSlope {
  float value, slope;
};

namespace activation_steps {

/// What x is multiplied by within sigmoid.
template <ActivationFunction kFunction>
QG_HOST_DEVICE inline float SigmoidFactor(const ActivationOptions& options) {
  if constexpr (kFunction == ActivationFunction::kQuickGelu) return 1.702f;
  if constexpr (kFunction == ActivationFunction::kClampedSilu) return options.alpha;
  return 1.0f;
}

/// x as sigmoid and what multiplies it see it.
template <ActivationFunction kFunction>
QG_HOST_DEVICE inline float Clamped(float x, const ActivationOptions& options) {
  if constexpr (kFunction != ActivationFunction::kClampedSilu) return x;
  return x > options.limit ? options.limit : x;
}

}  // namespace activation_steps

/// For relu and srelu, which have none, zeros. Compilers leave out what is not used.
template <ActivationFunction kFunction, ActivationVariant kVariant>
QG_HOST_DEVICE inline InnerValues InnerOf(float x, const ActivationOptions& options) {
  if constexpr (kFunction == ActivationFunction::kGelu) {
    const float of_slope = Tanh((0.79788456f * x) * (1.0f + (0.044715f * x) * x));
    if constexpr (kVariant == ActivationVariant::kJitGelu) return {of_slope, of_slope};
    return {Tanh(x * (0.79788456f + (0.03567741f * x) * x)), of_slope};
  } else if constexpr (UsesSigmoid(kFunction)) {
    const float scaled = activation_steps::SigmoidFactor<kFunction>(options) *
                         activation_steps::Clamped<kFunction>(x, options);
    const float s =
        kVariant == ActivationVariant::kFp32Sigmoid ? SigmoidByFloats(scaled) : Sigmoid(scaled);
    return {s, s};
  } else {
    return {0, 0};
  }
}

/// What is done around the inner values.
template <ActivationFunction kFunction, ActivationVariant kVariant>
QG_HOST_DEVICE inline ValueAndSlope ActivateAround(float x, const InnerValues& inner,
                                                   const ActivationOptions& options) {
  using F = ActivationFunction;
  const float s = inner.for_value, t = inner.for_slope;
  if constexpr (kFunction == F::kGelu) {
    const float value =
        kVariant == ActivationVariant::kJitGelu ? (0.5f * x) * (1.0f + s) : x * (0.5f + 0.5f * s);
    return {value, (0.5f * x) * ((1.0f - t * t) * (0.79788456f + (0.1070322243f * x) * x)) +
                       0.5f * (1.0f + t)};
  } else if constexpr (kFunction == F::kSigmoid) {
    return {s, t * (1.0f - t)};
  } else if constexpr (kFunction == F::kRelu) {
    const float slope = x > 0 ? 1.0f : x;  // NaN stays.
    return {x <= 0 ? 0.0f : x, x <= 0 ? 0.0f : slope};
  } else if constexpr (kFunction == F::kSquaredRelu) {
    return {x <= 0 ? 0.0f : x * x, x <= 0 ? 0.0f : 2.0f * x};
  } else {
    const float clamped = activation_steps::Clamped<kFunction>(x, options);
    const float scaled = activation_steps::SigmoidFactor<kFunction>(options) * clamped;
    const float slope = scaled * (t * (1.0f - t)) + t;
    const bool is_clamped = kFunction == F::kClampedSilu && x > options.limit;
    return {clamped * s, is_clamped ? 0.0f : slope};
  }
}

template <ActivationFunction kFunction, ActivationVariant kVariant>
QG_HOST_DEVICE inline ValueAndSlope Activate(float x, const ActivationOptions& options) {
  return ActivateAround<kFunction, kVariant>(x, InnerOf<kFunction, kVariant>(x, options), options);
}

/// What the activated element is multiplied by.
template <ActivationFunction kFunction>
QG_HOST_DEVICE inline float GateFactor(float gate, const ActivationOptions& options) {
  if constexpr (kFunction != ActivationFunction::kClampedSilu) return gate;
  const float below = gate > options.limit ? options.limit : gate;
  return (below < -options.limit ? -options.limit : below) + options.offset;
}

/// Of the activated element and of the gate.
struct GatedGradients {
  float x, gate;
};

/// dy times the derivatives of f(x) * GateFactor(gate), of what Activate gives for x.
template <ActivationFunction kFunction>
QG_HOST_DEVICE inline GatedGradients GatedGradient(float dy, const ValueAndSlope& activated,
                                                   float gate, const ActivationOptions& options) {
  const float x_gradient = activated.slope * dy * GateFactor<kFunction>(gate, options);
  const float gate_gradient = dy * activated.value;
  if constexpr (kFunction != ActivationFunction::kClampedSilu) return {x_gradient, gate_gradient};
  const float passed = gate == gate ? gate_gradient : gate;  // NaN stays.
  const bool is_clamped = gate > options.limit || gate < -options.limit;
  return {x_gradient, is_clamped ? 0.0f : passed};
}

}  // namespace quantgate
