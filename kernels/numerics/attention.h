// Attention beside its GEMMs (docs/numerics.md section 9): the steps of one row of scores and of
// one rotated pair, each operation rounded to fp32 unless it says otherwise.
#pragma once

#include <cstdint>

#include "kernels/base/host_device.h"
#include "kernels/numerics/transcendental.h"

namespace quantgate {

/// How many keys a query takes; they are the first ones. `keys` is at least `queries` where causal.
QG_HOST_DEVICE inline int64_t TakenKeys(bool is_causal, int64_t query, int64_t queries,
                                        int64_t keys) {
  return is_causal ? query + 1 + (keys - queries) : keys;
}

/// The numerator of a probability; `largest` is the row's largest z among the keys taken.
QG_HOST_DEVICE inline float SoftmaxTerm(float z, float largest) { return Exp(z - largest); }

/// The pairwise sum over all keys of a row from that over those taken, which come first: a key that
/// the mask leaves out has the term +0. Adding +0 changes no number but -0, and a sum that has such
/// a term within is never -0, so that it is enough to add +0 at the end.
QG_HOST_DEVICE inline float MaskedRowSum(float sum_of_taken, bool leaves_out) {
  return leaves_out ? sum_of_taken + 0.0f : sum_of_taken;
}

/// The gradient of z, before it is rounded to the dtype of the scores. `sum` is over the row's
/// gradient * probability.
QG_HOST_DEVICE inline float SoftmaxSlope(float gradient, float probability, float sum) {
  return (gradient - sum) * probability;
}

/// Two elements of a head that lie half a head apart.
struct RotaryPair {
  float low, high;
};
/// What a rotation multiplies; with -sine the transposed rotation. Each product is then rounded to
/// the dtype of the head.
struct RotaryProducts {
  float low_cosine, high_cosine, high_sine, low_sine;
};
QG_HOST_DEVICE inline RotaryProducts RotaryProductsOf(const RotaryPair& x, float cosine,
                                                      float sine) {
  return {x.low * cosine, x.high * cosine, x.high * sine, x.low * sine};
}
/// The rotated pair of the rounded products, before its last rounding.
QG_HOST_DEVICE inline RotaryPair RotatedPair(const RotaryProducts& rounded) {
  return {rounded.low_cosine - rounded.high_sine, rounded.high_cosine + rounded.low_sine};
}

}  // namespace quantgate
