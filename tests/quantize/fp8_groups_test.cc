// fp8_block of 32, 64 and 256 elements: a block of a row has what fp8_rowwise gives of a row that
// is the block, a tile what fp8_block gives of the tile alone, whatever the length.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/quantize/quantizer.h"
#include "kernels/quantize/scale_layout.h"
#include "kernels/tensor/convert.h"
#include "kernels/tensor/generate/generate.h"
#include "kernels/tensor/transpose.h"

namespace quantgate {
namespace QG_TEST_FILE {

constexpr QuantizerFormat kFormats[] = {QuantizerFormat::kFp8Block32, QuantizerFormat::kFp8Block64,
                                        QuantizerFormat::kFp8Block, QuantizerFormat::kFp8Block256};

/// Normal values, some blocks with zeros, subnormals, an infinity or NaN.
Tensor Source(DType dtype, int64_t rows, int64_t columns) {
  GeneratorSpec spec;
  spec.distribution = Distribution::kNormal;
  spec.seed = 11;
  spec.dtype = DType::kF32;
  spec.shape = {rows, columns};
  Tensor values = *Generate(spec, {});
  float* x = values.as<float>();
  for (int64_t i = 0; i < rows * columns; ++i) {
    const int64_t piece = i / 16 % 23;
    if (piece == 3 || piece == 4) x[i] = i % 2 == 0 ? 0.0f : -0.0f;
    if (piece == 7) x[i] *= 0x1p-130f;
    if (piece == 9) x[i] *= 0x1p100f;
    if (piece == 11 && i % 16 == 5) x[i] = std::numeric_limits<float>::infinity();
    if (piece == 13 && i % 16 == 6) x[i] = std::numeric_limits<float>::quiet_NaN();
  }
  return *CastTensor(values, dtype, {});
}

QuantizedCopy Quantized(const Tensor& source, const QuantizerSpec& spec, Usage usage) {
  const bool is_rowwise = usage == Usage::kRowwise;
  const auto quantized = QuantizeCpu(source, spec, {is_rowwise, !is_rowwise}, {}, {});
  EXPECT_TRUE(quantized.ok()) << quantized.status();
  return *quantized->copy(usage);
}

bool SameBytes(const Tensor& a, const Tensor& b) {
  return a.byte_size() == b.byte_size() && std::memcmp(a.data(), b.data(), a.byte_size()) == 0;
}

std::vector<QuantizerSpec> Specs() {
  std::vector<QuantizerSpec> specs(5);
  specs[1].power_2_scale = true;
  specs[1].element = DType::kF8E5M2;
  specs[2].amax_epsilon = 0.5f;
  specs[2].scale_rule = ScaleRule::kReciprocal;
  specs[3].flush_subnormals = FlushSubnormals::kAlways;
  specs[3].element_rounding = ElementRounding::kNearestAway;
  specs[4].overflow = Overflow::kNan;
  specs[4].power_2_scale = true;
  specs[4].flush_subnormals = FlushSubnormals::kAlways;
  return specs;
}

TEST(Fp8Groups, ABlockIsARow) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const Tensor source = Source(dtype, 6, 1280);
    for (QuantizerSpec spec : Specs()) {
      for (const QuantizerFormat format : kFormats) {
        spec.format = format;
        const int64_t length = BlockLength(format);
        SCOPED_TRACE(QuantizerText(spec));
        QuantizerSpec of_rows = spec;
        of_rows.format = QuantizerFormat::kFp8Rowwise;
        const Tensor blocks = *source.Reinterpret(dtype, {6 * 1280 / length, length});
        const QuantizedCopy expected = Quantized(blocks, of_rows, Usage::kRowwise);
        const QuantizedCopy rowwise = Quantized(source, spec, Usage::kRowwise);
        EXPECT_EQ(rowwise.scale_inv.shape(), (Shape{6, 1280 / length}));
        EXPECT_TRUE(SameBytes(rowwise.data, expected.data));
        EXPECT_TRUE(SameBytes(rowwise.scale_inv, expected.scale_inv));
        // Columnwise blocks are those of the transpose.
        const Tensor turned = *Transpose2d(source, {});
        const QuantizedCopy columnwise = Quantized(turned, spec, Usage::kColumnwise);
        EXPECT_TRUE(SameBytes(columnwise.data, expected.data));
        EXPECT_TRUE(SameBytes(columnwise.scale_inv, expected.scale_inv));
      }
    }
  }
}

TEST(Fp8Groups, APartialBlockCountsItsElements) {
  const Tensor source = Source(DType::kBF16, 5, 700);
  Tensor filled = *Tensor::Allocate(DType::kBF16, {5, 768});
  std::memset(filled.data(), 0, filled.byte_size());
  for (int64_t row = 0; row < 5; ++row) {
    std::memcpy(filled.data() + row * 768 * 2, source.data() + row * 700 * 2, 700 * 2);
  }
  for (const QuantizerFormat format : kFormats) {
    const QuantizerSpec spec = {.format = format};
    const QuantizedCopy of_filled = Quantized(filled, spec, Usage::kRowwise);
    const QuantizedCopy copy = Quantized(source, spec, Usage::kRowwise);
    const int64_t length = BlockLength(format), blocks = (700 + length - 1) / length;
    ASSERT_EQ(copy.scale_inv.shape(), (Shape{5, blocks}));
    for (int64_t row = 0; row < 5; ++row) {
      EXPECT_EQ(std::memcmp(copy.data.data() + row * 700, of_filled.data.data() + row * 768, 700),
                0);
      EXPECT_EQ(std::memcmp(copy.scale_inv.as<float>() + row * blocks,
                            of_filled.scale_inv.as<float>() + row * (768 / length),
                            static_cast<size_t>(blocks) * sizeof(float)),
                0);
    }
  }
}

/// The rows [row, row + rows) and columns alike of a bf16 matrix.
Tensor Part(const Tensor& source, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  Tensor part = *Tensor::Allocate(DType::kBF16, {rows, columns});
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(part.as<uint16_t>() + r * columns,
                source.as<uint16_t>() + (row + r) * source.columns() + column,
                static_cast<size_t>(columns) * 2);
  }
  return part;
}

// Of a tile of at most 128 x 128 fp8_block has one scale too: the tile is the whole matrix.
TEST(Fp8Groups, ATileIsAMatrixOfItsOwn) {
  const Tensor source = Source(DType::kBF16, 150, 200);
  for (const QuantizerFormat format :
       {QuantizerFormat::kFp8Block32, QuantizerFormat::kFp8Block64}) {
    const int64_t side = BlockLength(format);
    const QuantizerSpec spec = {.format = format, .block_dim = 2, .power_2_scale = true};
    QuantizerSpec of_whole = spec;
    of_whole.format = QuantizerFormat::kFp8Block;
    const QuantizedCopy copy = Quantized(source, spec, Usage::kRowwise);
    const QuantizedCopy columnwise = Quantized(source, spec, Usage::kColumnwise);
    const int64_t across = (200 + side - 1) / side, down = (150 + side - 1) / side;
    ASSERT_EQ(copy.scale_inv.shape(), (Shape{down, across}));
    ASSERT_EQ(columnwise.scale_inv.shape(), (Shape{across, down}));
    for (int64_t row = 0; row < 150; row += side) {
      for (int64_t column = 0; column < 200; column += side) {
        const int64_t rows = std::min(side, 150 - row), columns = std::min(side, 200 - column);
        const QuantizedCopy expected =
            Quantized(Part(source, row, rows, column, columns), of_whole, Usage::kRowwise);
        ASSERT_EQ(expected.scale_inv.element_count(), 1);
        const float scale = *expected.scale_inv.as<float>();
        EXPECT_EQ(copy.scale_inv.as<float>()[row / side * across + column / side], scale);
        EXPECT_EQ(columnwise.scale_inv.as<float>()[column / side * down + row / side], scale);
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < columns; ++c) {
            const uint8_t code = expected.data.as<uint8_t>()[r * columns + c];
            ASSERT_EQ(copy.data.as<uint8_t>()[(row + r) * 200 + column + c], code);
            ASSERT_EQ(columnwise.data.as<uint8_t>()[(column + c) * 150 + row + r], code);
          }
        }
      }
    }
  }
  // A tile of 256 holds whole matrices of 128: its amax is the largest of theirs.
  const Tensor wide = Source(DType::kBF16, 256, 256);
  const QuantizerSpec spec = {.format = QuantizerFormat::kFp8Block256, .block_dim = 2};
  QuantizerSpec lines = {.format = QuantizerFormat::kFp8Rowwise};
  const Tensor one_row = *wide.Reinterpret(DType::kBF16, {1, 256 * 256});
  const QuantizedCopy expected = Quantized(one_row, lines, Usage::kRowwise);
  const QuantizedCopy tile = Quantized(wide, spec, Usage::kRowwise);
  EXPECT_TRUE(SameBytes(tile.data, expected.data));
  EXPECT_TRUE(SameBytes(tile.scale_inv, expected.scale_inv));
}

TEST(Fp8Groups, ValuesAreCodesTimesTheirScale) {
  const Tensor source = Source(DType::kBF16, 130, 300);
  for (const QuantizerFormat format : kFormats) {
    for (const int block_dim : {1, 2}) {
      for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
        const QuantizerSpec spec = {.format = format, .block_dim = block_dim};
        const auto quantized = QuantizeCpu(
            source, spec, {usage == Usage::kRowwise, usage == Usage::kColumnwise}, {}, {});
        const Tensor values = *DequantizeCpu(*quantized, usage, DType::kF32, {});
        const QuantizedCopy& copy = *quantized->copy(usage);
        const int64_t length = BlockLength(format), across = copy.scale_inv.columns();
        for (int64_t r = 0; r < 130; ++r) {
          for (int64_t c = 0; c < 300; ++c) {
            const int64_t line = usage == Usage::kRowwise ? r : c;
            const int64_t at = usage == Usage::kRowwise ? c : r;
            const int64_t width = usage == Usage::kRowwise ? 300 : 130;
            const float scale =
                copy.scale_inv
                    .as<float>()[line / (block_dim == 2 ? length : 1) * across + at / length];
            const float code = DecodeFloat<E4M3>(copy.data.as<uint8_t>()[line * width + at]);
            const float value = values.as<float>()[r * 300 + c];
            ASSERT_TRUE(value == code * scale || (value != value && code != code));
          }
        }
      }
    }
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
