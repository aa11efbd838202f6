// LayerNorm and RMSNorm of one row of N elements (docs/numerics.md section 5): the steps
// between the pairwise sums, each operation rounded to fp32.
#pragma once

#include <cstdint>

#include "kernels/base/host_device.h"
#include "kernels/numerics/transcendental.h"

namespace quantgate {

/// The factor that turns a sum over the row into a mean.
QG_HOST_DEVICE inline float NormInverseCount(int64_t count) {
  return 1.0f / static_cast<float>(count);
}

/// 1 / sqrt(mean + epsilon) of the mean of squares.
QG_HOST_DEVICE inline float NormRstd(float mean_of_squares, float epsilon) {
  return ReciprocalSqrt(mean_of_squares + epsilon);
}

/// The factor of xhat: gamma, or 1 + gamma if it is stored zero-centered.
QG_HOST_DEVICE inline float NormGamma(float gamma, bool zero_centered) {
  return zero_centered ? gamma + 1.0f : gamma;
}

/// xhat, the normalized element. For RMSNorm pass mean +0, which changes no x.
QG_HOST_DEVICE inline float NormHat(float x, float mean, float rstd) { return rstd * (x - mean); }

/// y before beta is added.
QG_HOST_DEVICE inline float NormScaled(float hat, float gamma) { return gamma * hat; }

/// dx from dyg = gamma * dz and the means over the row of dyg * xhat and of dyg. RMSNorm has no
/// mean of dyg; pass -0.0, which changes no sum.
QG_HOST_DEVICE inline float NormGradient(float dyg, float hat, float rstd, float mean_dyg_hat,
                                         float mean_dyg) {
  return rstd * (dyg - (mean_dyg_hat * hat + mean_dyg));
}

}  // namespace quantgate
