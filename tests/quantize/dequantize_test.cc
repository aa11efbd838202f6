// DequantizeCpu against its definition, element by element: every code of every format under many
// scales, to every output type, in both directions and over several pieces.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/base/round_up.h"
#include "kernels/numerics/nvfp4.h"
#include "kernels/quantize/quantizer.h"
#include "kernels/tensor/visit_format.h"
#include "tests/quantize/vector_tensors.h"

namespace quantgate {
namespace QG_TEST_FILE {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Every exponent with few and with many mantissa bits, and what is not a positive number.
std::vector<float> Scales() {
  std::vector<float> scales = {0.0f, -0.0f, kInfinity, -kInfinity, kNan, -0.3f, 0x1p-149f};
  for (uint32_t exponent = 0; exponent < 255; ++exponent) {
    for (const uint32_t mantissa : {0u, 0x2AAAABu, 0x7FFFFFu}) {
      scales.push_back(std::bit_cast<float>(exponent << 23 | mantissa));
    }
  }
  return scales;
}

/// One direction of a tensor of rows x columns: line by line, element by element along a line.
struct Direction {
  QuantizerFormat format;
  Usage usage;
  int64_t rows, columns;

  bool is_rowwise() const { return usage == Usage::kRowwise; }
  int64_t lines() const { return is_rowwise() ? rows : columns; }
  int64_t length() const { return is_rowwise() ? columns : rows; }
  int64_t blocks() const { return DivideUp(length(), BlockLength(format)); }
  /// The layouts of QuantizedCopy's table.
  bool is_turned() const { return !is_rowwise() && format != QuantizerFormat::kMxfp8; }
  Shape CodeShape() const { return is_turned() ? Shape{columns, rows} : Shape{rows, columns}; }
  int64_t CodeIndex(int64_t row, int64_t column) const {
    return is_turned() ? column * rows + row : row * columns + column;
  }
  Shape ScaleShape() const {
    if (!is_rowwise() && !is_turned()) return {blocks(), lines()};
    return {lines(), blocks()};
  }
  int64_t ScaleIndex(int64_t line, int64_t block) const {
    return !is_rowwise() && !is_turned() ? block * lines() + line : line * blocks() + block;
  }
};

/// Over the blocks of a line every code, in an order that differs from line to line.
uint8_t CodeAt(int64_t line, int64_t element, int bits) {
  return static_cast<uint8_t>((element ^ line % 16) & ((1 << bits) - 1));
}

int BitsOf(DType element) {
  if (element == DType::kF4E2M1x2) return 4;
  return element == DType::kF6E2M3 || element == DType::kF6E3M2 ? 6 : 8;
}

QuantizedCopy CopyOf(QuantizerFormat format, DType element) {
  QuantizedCopy copy;
  copy.format = format;
  copy.element = element;
  return copy;
}

Tensor Codes(const Direction& direction, DType element) {
  const int bits = BitsOf(element);
  Shape shape = direction.CodeShape();
  if (bits == 4) shape.back() /= 2;
  Tensor codes = *Tensor::Allocate(element, shape);
  auto* to = codes.as<uint8_t>();
  std::fill_n(to, codes.byte_size(), uint8_t{0});
  for (int64_t row = 0; row < direction.rows; ++row) {
    for (int64_t column = 0; column < direction.columns; ++column) {
      const uint8_t code =
          direction.is_rowwise() ? CodeAt(row, column, bits) : CodeAt(column, row, bits);
      const int64_t index = direction.CodeIndex(row, column);
      if (bits == 4) {
        to[index / 2] |= static_cast<uint8_t>(code << (index % 2 * 4));
      } else {
        to[index] = code;
      }
    }
  }
  return codes;
}

/// The scales of blocks, scale_of(line, block), and what a float of each is.
template <class T, class ScaleOf>
Tensor ScaleTensor(const Direction& direction, DType dtype, const ScaleOf& scale_of) {
  Tensor scales = *Tensor::Allocate(dtype, direction.ScaleShape());
  for (int64_t line = 0; line < direction.lines(); ++line) {
    for (int64_t block = 0; block < direction.blocks(); ++block) {
      scales.as<T>()[direction.ScaleIndex(line, block)] = scale_of(line, block);
    }
  }
  return scales;
}

float Decode(DType element, uint8_t code) {
  float value = 0;
  VisitFormat<AllFormats>(
      element, [&]<class F>() { value = DecodeFloat<F>(static_cast<typename F::Storage>(code)); });
  return value;
}

uint32_t Encode(DType dtype, float value) {
  if (dtype == DType::kBF16) return EncodeFloat<BFloat16>(value);
  if (dtype == DType::kF16) return EncodeFloat<Float16>(value);
  return std::bit_cast<uint32_t>(CanonicalFloat(value));
}

/// value_scale(line, block): what the definition multiplies by.
template <class ValueScale>
void ExpectValues(const Direction& direction, const QuantizedCopy& copy,
                  const ValueScale& value_scale) {
  QuantizedTensor quantized;
  quantized.shape = {direction.rows, direction.columns};
  quantized.copy(direction.usage) = copy;
  const int bits = BitsOf(copy.element);
  const int length = BlockLength(copy.format);
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    SCOPED_TRACE(::testing::Message() << DTypeName(copy.element) << " "
                                      << UsageName(direction.usage) << " to " << DTypeName(dtype));
    for (const ExecutionContext& context : testing::EveryPath()) {
      const auto values = DequantizeCpu(quantized, direction.usage, dtype, context);
      ASSERT_TRUE(values.ok()) << values.status();
      for (int64_t line = 0; line < direction.lines(); ++line) {
        for (int64_t i = 0; i < direction.length(); ++i) {
          const int64_t index =
              direction.is_rowwise() ? line * direction.columns + i : i * direction.columns + line;
          const uint32_t value =
              dtype == DType::kF32 ? values->as<uint32_t>()[index] : values->as<uint16_t>()[index];
          const uint8_t code = CodeAt(line, i, bits);
          const float scale = value_scale(line, i / length);
          ASSERT_EQ(value, Encode(dtype, Decode(copy.element, code) * scale))
              << "line " << line << ", element " << i << ", code " << int{code} << ", scale "
              << scale;
        }
      }
    }
  }
}

TEST(Dequantize, Fp8Block) {
  const std::vector<float> scales = Scales();
  const auto lines = static_cast<int64_t>(scales.size());
  const auto scale_of = [&](int64_t line, int64_t block) {
    return scales[static_cast<size_t>((line + block) % lines)];
  };
  for (const DType element : {DType::kF8E4M3, DType::kF8E5M2}) {
    for (const Direction& direction :
         {Direction{QuantizerFormat::kFp8Block, Usage::kRowwise, lines, 2 * 128 + 5},
          Direction{QuantizerFormat::kFp8Block, Usage::kColumnwise, 2 * 128 + 5, lines}}) {
      QuantizedCopy copy = CopyOf(QuantizerFormat::kFp8Block, element);
      copy.data = Codes(direction, element);
      copy.scale_inv = ScaleTensor<float>(direction, DType::kF32, scale_of);
      ExpectValues(direction, copy, scale_of);
    }
  }
}

TEST(Dequantize, Fp8BlockTilesOverSeveralPieces) {
  const std::vector<float> scales = Scales();
  for (const Direction& direction :
       {Direction{QuantizerFormat::kFp8Block, Usage::kRowwise, 130, 2048 + 131},
        Direction{QuantizerFormat::kFp8Block, Usage::kColumnwise, 130, 2048 + 131}}) {
    QuantizedCopy copy = CopyOf(QuantizerFormat::kFp8Block, DType::kF8E4M3);
    copy.block_dim = 2;
    copy.data = Codes(direction, copy.element);
    Direction grid = direction;  // A line of scales for 128 lines of codes.
    (grid.is_rowwise() ? grid.rows : grid.columns) = DivideUp(direction.lines(), 128);
    const auto scale_of_tile = [&](int64_t line, int64_t block) {
      return scales[static_cast<size_t>(line * 37 + block * 11 + 300)];
    };
    copy.scale_inv = ScaleTensor<float>(grid, DType::kF32, scale_of_tile);
    ExpectValues(direction, copy,
                 [&](int64_t line, int64_t block) { return scale_of_tile(line / 128, block); });
  }
}

TEST(Dequantize, Mxfp8) {
  const auto code_of = [](int64_t line, int64_t block) {
    return static_cast<uint8_t>(line + block);
  };
  for (const DType element :
       {DType::kF8E4M3, DType::kF8E5M2, DType::kF6E2M3, DType::kF6E3M2, DType::kF4E2M1x2}) {
    for (const Direction& direction :
         {Direction{QuantizerFormat::kMxfp8, Usage::kRowwise, 256, 288},
          Direction{QuantizerFormat::kMxfp8, Usage::kColumnwise, 288, 256}}) {
      QuantizedCopy copy = CopyOf(QuantizerFormat::kMxfp8, element);
      copy.data = Codes(direction, element);
      copy.scale_inv = ScaleTensor<uint8_t>(direction, DType::kF8E8M0, code_of);
      ExpectValues(direction, copy, [&](int64_t line, int64_t block) {
        const int code = code_of(line, block);
        return code == 255 ? kNan : std::ldexp(1.0f, code - 127);
      });
    }
  }
}

TEST(Dequantize, Nvfp4) {
  const Direction direction = {QuantizerFormat::kNvfp4, Usage::kRowwise, 256, 272};
  const auto code_of = [](int64_t line, int64_t block) {
    return static_cast<uint8_t>(line + 7 * block);
  };
  QuantizedCopy copy = CopyOf(QuantizerFormat::kNvfp4, DType::kF4E2M1x2);
  copy.data = Codes(direction, copy.element);
  copy.scale_inv = ScaleTensor<uint8_t>(direction, DType::kF8E4M3, code_of);
  {
    SCOPED_TRACE("without an amax");
    ExpectValues(direction, copy, [&](int64_t line, int64_t block) {
      return DecodeFloat<E4M3>(code_of(line, block));
    });
  }
  const std::vector<float> amaxes = {0.0f, 3.7f, 2688.0f, 1e-41f, 0x1.FFFFFEp127f, kInfinity, kNan};
  for (const int e4m3_max : {448, 256}) {
    copy.e4m3_max = e4m3_max;
    const auto value_scale = [&](int64_t line, int64_t block, float amax) {
      return Nvfp4DequantizeScale(code_of(line, block), amax, Nvfp4AmaxFactor(e4m3_max));
    };
    for (const float amax : amaxes) {
      SCOPED_TRACE(::testing::Message() << "amax " << amax);
      copy.amax = *Tensor::FromScalar(amax);
      ExpectValues(direction, copy,
                   [&](int64_t line, int64_t block) { return value_scale(line, block, amax); });
    }
    SCOPED_TRACE("an amax for each row");
    const auto amax_of = [&](int64_t line) {
      return amaxes[static_cast<size_t>(line) % amaxes.size()];
    };
    copy.amax = *Tensor::Allocate(DType::kF32, {direction.rows});
    for (int64_t row = 0; row < direction.rows; ++row) copy.amax.as<float>()[row] = amax_of(row);
    ExpectValues(direction, copy, [&](int64_t line, int64_t block) {
      return value_scale(line, block, amax_of(line));
    });
  }
}

TEST(Dequantize, Fp8Tensor) {
  for (const DType element : {DType::kF8E4M3, DType::kF8E5M2}) {
    for (const Direction& direction :
         {Direction{QuantizerFormat::kFp8Tensor, Usage::kRowwise, 33, 256},
          Direction{QuantizerFormat::kFp8Tensor, Usage::kColumnwise, 256, 33}}) {
      QuantizedCopy copy = CopyOf(QuantizerFormat::kFp8Tensor, element);
      copy.data = Codes(direction, element);
      for (const float scale : {0.0f, 1.0f, 0.3f, -1e30f, 1e-44f, kInfinity, kNan}) {
        copy.scale_inv = *Tensor::FromScalar(scale);
        ExpectValues(direction, copy, [&](int64_t, int64_t) { return scale; });
      }
    }
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
