// The step of an optimizer for one element (docs/numerics.md section 6), each operation rounded
// to fp32, and the split of an fp32 master into a bf16 parameter and a remainder.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/base/host_device.h"

namespace quantgate {

/// The factors of an Adam step, the same for all elements. one_minus_beta is taken in fp32; the
/// corrections are 1 - beta^step in fp64, rounded once.
struct AdamFactors {
  float learning_rate = 0;
  float beta1 = 0, one_minus_beta1 = 1;
  float beta2 = 0, one_minus_beta2 = 1;
  float correction1 = 1, correction2 = 1;
  float epsilon = 0;
  float weight_decay = 0;
  bool decoupled_decay = true;
};

/// The state of one element.
struct AdamElement {
  float master, m, v;
};

QG_HOST_DEVICE inline AdamElement AdamUpdate(const AdamElement& element, float gradient,
                                             const AdamFactors& factors) {
  const float decay = factors.weight_decay * element.master;
  if (!factors.decoupled_decay) gradient = gradient + decay;
  const float m = factors.beta1 * element.m + factors.one_minus_beta1 * gradient;
  const float v = factors.beta2 * element.v + factors.one_minus_beta2 * gradient * gradient;
  const float denominator = std::sqrt(v / factors.correction2) + factors.epsilon;
  float update = (m / factors.correction1) / denominator;
  if (factors.decoupled_decay) update = update + decay;
  return {element.master - factors.learning_rate * update, m, v};
}

/// beta^step by repeated squaring from the lowest bit of `step`, each product rounded to fp64.
constexpr double AdamBetaPower(float beta, int64_t step) {
  double power = 1, square = beta;
  for (; step > 0; step >>= 1) {
    if ((step & 1) != 0) power *= square;
    square *= square;
  }
  return power;
}

/// The factors of an SGD step, the same for all elements.
struct SgdFactors {
  float learning_rate = 0;
  float momentum = 0;
  float weight_decay = 0;
  bool nesterov = false;
  bool has_momentum = false;  ///< The step writes a momentum buffer.
  bool has_buffer = false;    ///< There is a momentum buffer from the step before.
};

/// The state of one element; `momentum` where there is a buffer.
struct SgdElement {
  float master, momentum;
};

QG_HOST_DEVICE inline SgdElement SgdUpdate(const SgdElement& element, float gradient,
                                           const SgdFactors& factors) {
  if (factors.weight_decay != 0) gradient = gradient + factors.weight_decay * element.master;
  float momentum = gradient, direction = gradient;
  if (factors.has_momentum) {
    if (factors.has_buffer) momentum = factors.momentum * element.momentum + gradient;
    direction = factors.nesterov ? gradient + factors.momentum * momentum : momentum;
  }
  return {element.master - factors.learning_rate * direction, momentum};
}

/// The bits of an fp32 master in two halves. The upper half is a bf16 parameter, plus one if the
/// top bit of the lower half is set, which is rounding to nearest with ties away from zero.
struct SplitBits {
  uint16_t parameter;
  uint16_t remainder;
};

QG_HOST_DEVICE constexpr SplitBits SplitMasterBits(uint32_t master) {
  return {static_cast<uint16_t>((master >> 16) + ((master >> 15) & 1)),
          static_cast<uint16_t>(master)};
}

QG_HOST_DEVICE constexpr uint32_t JoinMasterBits(SplitBits split) {
  return (uint32_t{split.parameter} - (split.remainder >> 15)) << 16 | split.remainder;
}

}  // namespace quantgate
