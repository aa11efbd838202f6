// The loops of attention over rows of floats, once per instruction set: compiled from one body, so
// every one gives the same bits.
#pragma once

#include <cstdint>

#include "kernels/base/execution.h"

namespace quantgate {

struct AttentionLoops {
  /// The largest of at least one number. Where some are NaN it is any of the values.
  float (*largest)(const float* z, int64_t count);
  /// z[i] becomes SoftmaxTerm(z[i], largest).
  void (*terms)(float largest, int64_t count, float* z);
  /// to[i] /= divisor.
  void (*divide)(float divisor, int64_t count, float* to);
  /// to[i] = a[i] * b[i].
  void (*multiply)(const float* a, const float* b, int64_t count, float* to);
  /// gradient[i] becomes SoftmaxSlope(gradient[i], probabilities[i], sum).
  void (*slopes)(float sum, const float* probabilities, int64_t count, float* gradient);
  /// Row by row RotaryProductsOf the pairs x[i], x[half + i]: [4][half].
  void (*rotary_products)(const float* x, const float* cosines, const float* sines, int64_t half,
                          float* products);
  /// The pairs to[i], to[half + i] become RotatedPair of the products.
  void (*rotated_pairs)(const float* products, int64_t half, float* to);
};

AttentionLoops AttentionLoopsOf(Isa isa);

}  // namespace quantgate
