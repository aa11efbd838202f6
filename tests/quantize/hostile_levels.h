// Sources on which the steps of integers and tables of levels may differ.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kernels/numerics/level_rule.h"
#include "kernels/tensor/convert.h"
#include "kernels/tensor/tensor.h"

namespace quantgate::testing {

/// m x k elements, of which some rows are hostile: zeros of both signs, NaN, infinities, values
/// that lie between two codes, subnormals, and the largest and the smallest values.
inline Tensor HostileLevels(DType dtype, int64_t m, int64_t k) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kSpecial[] = {kNan,   kInfinity, -kInfinity, 0.0f,    -0.0f,    1e-45f, -1e-45f,
                                1e-38f, 3e38f,     -3e38f,     65504.f, 0x1p-24f, 6e-8f,  1e-20f};
  std::vector<float> values;
  uint32_t state = 12345;
  const auto next = [&] { return (state = state * 1664525u + 1013904223u) >> 8; };
  for (int64_t row = 0; row < m; ++row) {
    const float size = std::ldexp(1.0f, static_cast<int>(next() % 60) - 40);
    for (int64_t i = 0; i < k; ++i) {
      const float random = static_cast<float>(next() % 4001) / 2000.0f - 1.0f;
      float value = random;
      switch (row % 8) {
        case 1:  // Of int8 and int4 the scale is 1 or 17: every half is a tie.
          value = i == 0 ? 127.5f : static_cast<float>(next() % 511) / 2.0f - 127.5f;
          break;
        case 2:
          value = i % 2 == 0 ? 0.0f : -0.0f;
          break;
        case 3:
          value = next() % 9 == 0 ? kSpecial[next() % 14] : random;
          break;
        case 4:  // Subnormal in f32, or of f16.
          value = random * (row % 16 == 4 ? 1e-39f : 1e-6f);
          break;
        case 5:  // The midpoints of NF4 and FP4, and their neighbours.
          value =
              i == 0
                  ? 1.0f
                  : (Nf4Level(static_cast<int>(i % 15)) + Nf4Level(static_cast<int>(i % 15) + 1)) /
                        2.0f;
          if (i % 3 == 1) value = std::nextafter(value, 2.0f);
          if (i % 3 == 2) value = BnbFp4Level(static_cast<int>(i % 16)) / 2.0f;
          break;
        case 6:
          value = random * (dtype == DType::kF16 ? 65504.0f : 3e38f);
          break;
        default:
          value = random * size;
      }
      values.push_back(value);
    }
  }
  return *CastTensor(*Tensor::FromBytes(DType::kF32, {m, k}, std::as_bytes(std::span(values))),
                     dtype, {});
}

}  // namespace quantgate::testing
