// Operands with block scales, in the layouts of gemm.h, for tests and benchmarks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>

#include "kernels/gemm/gemm.h"
#include "tests/gemm/operand_codes.h"

namespace quantgate {

enum class ScalePattern {
  kUsual,   ///< Within a few binades of 1.
  kWide,    ///< Every scale with equal probability; f32 from 2^-48 to 2^48, of both signs.
  kSmall,   ///< The smallest, E4M3 zeros and subnormals among them.
  kLaced,   ///< Usual, with zeros (where the format has one) and NaN in about one row of eight.
  kPowers,  ///< f32 only: powers of two.
};

inline float DrawScaleF32(std::mt19937& random, ScalePattern pattern, bool laced) {
  if (laced) return random() % 2 == 0 ? 0.0f : std::bit_cast<float>(0x7FC00000u);
  const bool wide = pattern == ScalePattern::kWide || pattern == ScalePattern::kSmall;
  const int exponent =
      wide ? static_cast<int>(random() % 96) - 48 : static_cast<int>(random() % 9) - 5;
  if (pattern == ScalePattern::kPowers) return std::ldexp(1.0f, exponent * 3);
  const float mantissa = 1 + static_cast<float>(random() % (1 << 23)) * 0x1p-23f;
  return std::ldexp(wide && random() % 2 == 0 ? -mantissa : mantissa, exponent);
}

inline uint8_t DrawScaleByte(DType dtype, std::mt19937& random, ScalePattern pattern, bool laced) {
  const bool e8m0 = dtype == DType::kF8E8M0;
  if (laced) return e8m0 ? 0xFF : random() % 2 == 0 ? 0 : 0x7F;
  switch (pattern) {
    case ScalePattern::kWide:
      return static_cast<uint8_t>(random() % (e8m0 ? 255 : 127)) |
             (!e8m0 && random() % 4 == 0 ? 0x80 : 0);
    case ScalePattern::kSmall:
      return static_cast<uint8_t>(random() % (e8m0 ? 70 : 10));
    default:
      return static_cast<uint8_t>(e8m0 ? 120 + random() % 14 : 0x28 + random() % 0x20);
  }
}

/// An operand of rows x k, stored as [rows][k], or with `by_k` as [k][rows].
inline GemmOperand MakeOperand(DType dtype, ScaleMode mode, int64_t rows, int64_t k, bool by_k,
                               CodePattern codes, ScalePattern scales, uint32_t seed) {
  GemmOperand operand;
  operand.data =
      by_k ? MakeCodes(dtype, k, rows, codes, seed) : MakeCodes(dtype, rows, k, codes, seed);
  operand.scaling = mode;
  if (mode == ScaleMode::kNone) return operand;
  const auto [scale_dtype, row_block, k_block] = ScaleBlockOf(mode);
  const int64_t row_blocks = (rows + row_block - 1) / row_block;
  const int64_t k_blocks = (k + k_block - 1) / k_block;
  operand.scale_inv = Tensor::Allocate(scale_dtype, by_k ? Shape{k_blocks, row_blocks}
                                                         : Shape{row_blocks, k_blocks})
                          .value();
  std::mt19937 random(seed + 1000);
  for (int64_t i = 0; i < row_blocks * k_blocks; ++i) {
    const int64_t row = by_k ? i % row_blocks : i / k_blocks;
    const bool laced = scales == ScalePattern::kLaced && row % 8 == 1 && random() % 3 == 0;
    if (scale_dtype == DType::kF32) {
      operand.scale_inv.as<float>()[i] = DrawScaleF32(random, scales, laced);
    } else {
      operand.scale_inv.as<uint8_t>()[i] = DrawScaleByte(scale_dtype, random, scales, laced);
    }
  }
  return operand;
}

}  // namespace quantgate
