// The arithmetic "int32": sums of products of integers of 8 bits, each less its zero point, and
// what becomes of them before the epilogue (docs/quantizers.md section 11.4).
#pragma once

#include <cstdint>

#include "kernels/numerics/float_format.h"

namespace quantgate {

/// So many products of differences of 8-bit integers have a sum of 32 bits: 2^14 * 255^2 < 2^31.
inline constexpr int64_t kIntegerTermsOf32Bits = 1 << 14;

/// acc * scale of a's row * scale of b's row, each product rounded to fp32: torchao's order.
QG_HOST_DEVICE constexpr float ScaledIntegerSum(int64_t sum, float a_scale, float b_scale) {
  const float by_row = static_cast<float>(sum) * a_scale;
  return by_row * b_scale;
}

}  // namespace quantgate
