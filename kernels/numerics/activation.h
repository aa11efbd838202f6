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
  kJitGelu,      ///< The value of gelu as Transformer Engine's torch operations compute it.
};
inline constexpr std::string_view kActivationVariantNames[] = {"canonical", "fp32_sigmoid",
                                                               "jit_gelu"};

/// Which activation, and the parameters of clamped_swiglu.
struct ActivationOptions {
  ActivationKind kind = ActivationKind::kGelu;
  ActivationVariant variant = ActivationVariant::kCanonical;
  // For clamped_swiglu only:
  float limit = 7.0f;    ///< Clamps the activated half from above, the gate on both sides.
  float alpha = 1.702f;  ///< The factor in sigmoid(alpha * x).
  float offset = 1.0f;   ///< Is added to the clamped gate.
};

/// The function of the activated element, with or without a gate.
enum class ActivationFunction : uint8_t {
  kGelu,
  kSigmoid,
  kQuickGelu,  ///< x * sigmoid(1.702 x).
  kRelu,
  kSquaredRelu,
  kSilu,
  kClampedSilu,
};

/// The function that a kind applies to the activated element.
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

/// Whether sigmoid is a part of the function, so that kFp32Sigmoid applies.
QG_HOST_DEVICE constexpr bool UsesSigmoid(ActivationFunction function) {
  return function == ActivationFunction::kSigmoid || function == ActivationFunction::kQuickGelu ||
         function == ActivationFunction::kSilu || function == ActivationFunction::kClampedSilu;
}

/// The expensive part of a function: tanh or sigmoid of an expression in x, as the value and the
/// slope need it. It is separate so that a kernel may look it up in a table when few values of x
/// exist.
struct InnerValues {
  float for_value, for_slope;
};

/// f(x) and f'(x) of the activated element.
struct ValueAndSlope {
  float value, slope;
};

namespace activation_steps {

/// The factor of x within sigmoid.
template <ActivationFunction kFunction>
QG_HOST_DEVICE inline float SigmoidFactor(const ActivationOptions& options) {
  if constexpr (kFunction == ActivationFunction::kQuickGelu) return 1.702f;
  if constexpr (kFunction == ActivationFunction::kClampedSilu) return options.alpha;
  return 1.0f;
}

/// x, clamped from above under clamped_swiglu.
template <ActivationFunction kFunction>
QG_HOST_DEVICE inline float Clamped(float x, const ActivationOptions& options) {
  if constexpr (kFunction != ActivationFunction::kClampedSilu) return x;
  return x > options.limit ? options.limit : x;
}

}  // namespace activation_steps

/// The inner values for x; zeros for relu and srelu, which have none. Compilers leave out the one
/// that is not used.
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

/// f(x) and f'(x) from x and the inner values.
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

/// f(x) and f'(x).
template <ActivationFunction kFunction, ActivationVariant kVariant>
QG_HOST_DEVICE inline ValueAndSlope Activate(float x, const ActivationOptions& options) {
  return ActivateAround<kFunction, kVariant>(x, InnerOf<kFunction, kVariant>(x, options), options);
}

/// The factor of the activated element: the gate, clamped and offset under clamped_swiglu.
template <ActivationFunction kFunction>
QG_HOST_DEVICE inline float GateFactor(float gate, const ActivationOptions& options) {
  if constexpr (kFunction != ActivationFunction::kClampedSilu) return gate;
  const float below = gate > options.limit ? options.limit : gate;
  return (below < -options.limit ? -options.limit : below) + options.offset;
}

/// The gradients of the activated element and of the gate.
struct GatedGradients {
  float x, gate;
};

/// dy times the derivatives of f(x) * GateFactor(gate). `activated` is Activate of x.
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
