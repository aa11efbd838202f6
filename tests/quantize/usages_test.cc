// The table of docs/quantizers.md section 8: which direction can be dropped, derived or asked
// for, whatever the codes are; refusals change nothing.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/quantize/quantizer.h"

namespace quantgate {
namespace QG_TEST_FILE {

constexpr Usages kRow = {true, false}, kColumn = {false, true}, kBoth = {true, true},
                 kNone = {false, false};

Tensor Numbered(DType dtype, Shape shape) {
  Tensor tensor = *Tensor::Allocate(dtype, std::move(shape));
  for (size_t i = 0; i < tensor.byte_size(); ++i) {
    tensor.data()[i] = static_cast<std::byte>(i * 37 + 11);
  }
  return tensor;
}

/// Codes and scales of a 48x32 tensor (M = 48, K = 32) with any bytes: usages look at no value.
QuantizedTensor Made(QuantizerFormat format, int block_dim, Usages usages) {
  constexpr int64_t m = 48, k = 32;
  QuantizedTensor quantized;
  quantized.shape = {m, k};
  const auto fill = [&](QuantizedCopy& copy, bool turned) {
    copy.format = format;
    copy.block_dim = block_dim;
    const int64_t rows = turned ? k : m, columns = turned ? m : k;
    switch (format) {
      case QuantizerFormat::kIdentity:
        copy.data = Numbered(DType::kBF16, {m, k});
        break;
      case QuantizerFormat::kFp8Tensor:
        copy.data = Numbered(DType::kF8E4M3, {rows, columns});
        copy.scale_inv = *Tensor::FromScalar(0.5f);
        break;
      case QuantizerFormat::kFp8Block:
        copy.data = Numbered(DType::kF8E4M3, {rows, columns});
        copy.scale_inv = Numbered(DType::kF32, {block_dim == 2 ? 1 : rows, 1});
        break;
      case QuantizerFormat::kFp8Rowwise:
        copy.data = Numbered(DType::kF8E4M3, {rows, columns});
        copy.scale_inv = Numbered(DType::kF32, {rows});
        break;
      case QuantizerFormat::kMxfp8:
        copy.data = Numbered(DType::kF8E4M3, {m, k});
        copy.scale_inv = Numbered(DType::kF8E8M0, {rows, columns / 32});
        break;
      case QuantizerFormat::kNvfp4:
        copy.element = DType::kF4E2M1x2;
        copy.data = Numbered(DType::kF4E2M1x2, {rows, columns / 2});
        copy.scale_inv = Numbered(DType::kF8E4M3, {rows, columns / 16});
        copy.amax = *Tensor::FromScalar(3.0f);
        break;
      case QuantizerFormat::kInt8:
      case QuantizerFormat::kInt4:
      case QuantizerFormat::kNf4:
      case QuantizerFormat::kBnbFp4: {
        const bool is_8_bits = format == QuantizerFormat::kInt8;
        copy.element = TraitsOf(format).elements.front();
        copy.group = is_8_bits ? kLineGroup : 32;
        copy.data = Numbered(copy.element, {rows, columns / (is_8_bits ? 1 : 2)});
        copy.scale_inv = Numbered(DType::kF32, {is_8_bits ? rows : rows * columns / 32});
        break;
      }
    }
  };
  if (usages.rowwise) fill(quantized.rowwise.emplace(), false);
  if (usages.columnwise) fill(quantized.columnwise.emplace(), true);
  return quantized;
}

absl::Status Update(QuantizedTensor& quantized, Usages usages) {
  return UpdateUsagesCpu(quantized, usages, ExecutionContext());
}

bool Same(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         std::memcmp(a.data(), b.data(), a.byte_size()) == 0;
}

struct Row {
  QuantizerFormat format;
  int block_dim;
  bool derives_columnwise;
};

constexpr Row kTable[] = {
    {QuantizerFormat::kFp8Tensor, 1, true}, {QuantizerFormat::kFp8Block, 1, false},
    {QuantizerFormat::kFp8Block, 2, true},  {QuantizerFormat::kMxfp8, 1, false},
    {QuantizerFormat::kMxfp8, 2, false},    {QuantizerFormat::kNvfp4, 1, false},
    {QuantizerFormat::kNvfp4, 2, true},     {QuantizerFormat::kFp8Rowwise, 1, false},
    {QuantizerFormat::kInt8, 1, false},     {QuantizerFormat::kInt4, 1, false},
    {QuantizerFormat::kNf4, 1, false},      {QuantizerFormat::kBnbFp4, 1, false},
};

TEST(Usages, FollowTheTable) {
  for (const Row& row : kTable) {
    for (const bool is_hybrid : {false, true}) {
      for (const Usages held : {kRow, kColumn, kBoth}) {
        for (const Usages wanted : {kRow, kColumn, kBoth, kNone}) {
          SCOPED_TRACE(absl::StrCat(std::string(QuantizerFormatName(row.format)), " ",
                                    row.block_dim, is_hybrid ? " hybrid" : "", " held ",
                                    held.rowwise, held.columnwise, " wanted ", wanted.rowwise,
                                    wanted.columnwise));
          QuantizedTensor quantized = Made(row.format, row.block_dim, held);
          quantized.is_hybrid = is_hybrid;
          const bool derives =
              row.derives_columnwise && !is_hybrid && held.rowwise && !held.columnwise;
          const bool can = wanted != kNone && (!wanted.rowwise || held.rowwise) &&
                           (!wanted.columnwise || held.columnwise || derives);
          const absl::Status status = Update(quantized, wanted);
          EXPECT_EQ(status.ok(), can) << status;
          EXPECT_EQ(quantized.usages(), can ? wanted : held);
          if (!can) {
            EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
          }
        }
      }
    }
  }
}

TEST(Usages, IdentityHasOneBufferForBothAndNothingToDrop) {
  for (const Usages held : {kRow, kColumn, kBoth}) {
    for (const Usages wanted : {kRow, kColumn, kBoth, kNone}) {
      QuantizedTensor quantized = Made(QuantizerFormat::kIdentity, 1, held);
      EXPECT_TRUE(Update(quantized, wanted).ok());
      EXPECT_EQ(quantized.usages(), kBoth);
      EXPECT_TRUE(Same(quantized.rowwise->data, quantized.columnwise->data));
    }
  }
}

TEST(Usages, IdentityOfOneDirectionIsNotThatOfTheOther) {
  QuantizedTensor quantized = Made(QuantizerFormat::kIdentity, 1, kRow);
  quantized.is_hybrid = true;
  EXPECT_EQ(Update(quantized, kBoth).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(quantized.usages(), kRow);
}

TEST(Usages, PerTensorCodesAreTransposedByteByByte) {
  QuantizedTensor quantized = Made(QuantizerFormat::kFp8Tensor, 1, kRow);
  const Tensor rowwise = quantized.rowwise->data;
  ASSERT_TRUE(Update(quantized, kColumn).ok());
  const QuantizedCopy& columnwise = *quantized.columnwise;
  ASSERT_EQ(columnwise.data.shape(), (Shape{32, 48}));
  for (int64_t m = 0; m < 48; ++m) {
    for (int64_t k = 0; k < 32; ++k) {
      ASSERT_EQ(columnwise.data.data()[k * 48 + m], rowwise.data()[m * 32 + k]);
    }
  }
  EXPECT_EQ(*columnwise.scale_inv.as<float>(), 0.5f);
}

TEST(Usages, TilesOf128AreTransposedWithTheirGrid) {
  QuantizedTensor quantized = Made(QuantizerFormat::kFp8Block, 2, kRow);
  quantized.rowwise->data = Numbered(DType::kF8E4M3, {200, 300});
  quantized.rowwise->scale_inv = Numbered(DType::kF32, {2, 3});
  ASSERT_TRUE(Update(quantized, kBoth).ok());
  const QuantizedCopy& rowwise = *quantized.rowwise;
  const QuantizedCopy& columnwise = *quantized.columnwise;
  EXPECT_EQ(columnwise.block_dim, 2);
  ASSERT_EQ(columnwise.scale_inv.shape(), (Shape{3, 2}));
  for (int64_t m = 0; m < 200; ++m) {
    for (int64_t k = 0; k < 300; ++k) {
      ASSERT_EQ(columnwise.data.data()[k * 200 + m], rowwise.data.data()[m * 300 + k]);
      ASSERT_EQ(columnwise.scale_inv.as<uint32_t>()[k / 128 * 2 + m / 128],
                rowwise.scale_inv.as<uint32_t>()[m / 128 * 3 + k / 128]);
    }
  }
}

TEST(Usages, TilesOf16AreTransposedNibbleByNibble) {
  QuantizedTensor quantized = Made(QuantizerFormat::kNvfp4, 2, kRow);
  quantized.rowwise->e4m3_max = 256;
  // Scales as a 2-D quantizer writes them: equal in the 16 rows of a tile.
  uint8_t* scales = quantized.rowwise->scale_inv.as<uint8_t>();
  for (int64_t m = 0; m < 48; ++m) {
    for (int64_t tile = 0; tile < 2; ++tile) scales[m * 2 + tile] = m / 16 * 10 + tile + 1;
  }
  ASSERT_TRUE(Update(quantized, kBoth).ok());
  const QuantizedCopy& rowwise = *quantized.rowwise;
  const QuantizedCopy& columnwise = *quantized.columnwise;
  ASSERT_EQ(columnwise.data.shape(), (Shape{32, 24}));
  ASSERT_EQ(columnwise.scale_inv.shape(), (Shape{32, 3}));
  const auto nibble = [](const Tensor& packed, int64_t row, int64_t column, int64_t width) {
    const int byte = packed.as<uint8_t>()[row * (width / 2) + column / 2];
    return column % 2 == 0 ? byte % 16 : byte / 16;
  };
  for (int64_t m = 0; m < 48; ++m) {
    for (int64_t k = 0; k < 32; ++k) {
      ASSERT_EQ(nibble(columnwise.data, k, m, 48), nibble(rowwise.data, m, k, 32));
      ASSERT_EQ(columnwise.scale_inv.as<uint8_t>()[k * 3 + m / 16],
                rowwise.scale_inv.as<uint8_t>()[m * 2 + k / 16]);
    }
  }
  EXPECT_EQ(*columnwise.amax.as<float>(), 3.0f);
  EXPECT_EQ(columnwise.e4m3_max, 256);
}

TEST(Usages, RefusalsSayWhy) {
  const auto message = [](QuantizedTensor quantized, Usages wanted) {
    return std::string(Update(quantized, wanted).message());
  };
  EXPECT_EQ(message(Made(QuantizerFormat::kMxfp8, 1, kRow), kBoth),
            "usages is columnwise: columnwise codes of mxfp8 cannot be made from rowwise ones, "
            "only from the "
            "source");
  EXPECT_EQ(message(Made(QuantizerFormat::kFp8Rowwise, 1, kRow), kBoth),
            "usages is columnwise: columnwise codes of fp8_rowwise cannot be made from rowwise "
            "ones, only from the source: they have a scale per column, and were rounded under one "
            "per row");
  EXPECT_EQ(message(Made(QuantizerFormat::kNvfp4, 1, kRow), kColumn),
            "usages is columnwise: columnwise codes of nvfp4 1-D cannot be made from rowwise ones, "
            "only from "
            "the source");
  EXPECT_EQ(message(Made(QuantizerFormat::kFp8Tensor, 1, kColumn), kBoth),
            "usages is rowwise: rowwise codes cannot be made from columnwise ones");
  EXPECT_EQ(message(Made(QuantizerFormat::kFp8Tensor, 1, kBoth), kNone),
            "usages is none: a quantized tensor must keep rowwise or columnwise codes");
  QuantizedTensor hybrid = Made(QuantizerFormat::kFp8Tensor, 1, kRow);
  hybrid.is_hybrid = true;
  EXPECT_EQ(message(hybrid, kBoth),
            "usages is columnwise: a hybrid tensor has no columnwise codes, and its rowwise ones "
            "(fp8_tensor) "
            "are of another quantizer");
}

TEST(Usages, ACancelledDerivationLeavesTheTensorAsItWas) {
  QuantizedTensor quantized = Made(QuantizerFormat::kNvfp4, 2, kRow);
  Cancellation cancellation;
  cancellation.Cancel();
  ExecutionContext context;
  context.cancellation = &cancellation;
  EXPECT_EQ(UpdateUsagesCpu(quantized, kColumn, context).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(quantized.usages(), kRow);
}

// f32(448 / 3) = 7/6 * 2^7 and f32(57344 / 3) = 7/6 * 2^14, rounded by hand: 7/6 = 0x1.2aaaaa|aa..
// .
TEST(Usages, EachCopyHasAScaleOfItsOwn) {
  constexpr float kOfE4m3 = 0x1.2aaaaap+7f, kOfE5m2 = 0x1.2aaaaap+14f;
  Tensor x = *Tensor::Allocate(DType::kF32, {16, 16});
  for (int64_t i = 0; i < x.element_count(); ++i) x.as<float>()[i] = i % 7 == 0 ? -3.0f : 0.5f;
  const QuantizerSpec e4m3 = {.format = QuantizerFormat::kFp8Tensor};
  QuantizerSpec e5m2 = e4m3, delayed = e4m3;
  e5m2.element = DType::kF8E5M2;
  delayed.scaling = Scaling::kDelayed;
  struct Row {
    QuantizerSpec rowwise, columnwise;
    float rowwise_scale, columnwise_scale;
  };
  const Row rows[] = {{e4m3, e5m2, kOfE4m3, kOfE5m2},
                      {e5m2, e4m3, kOfE5m2, kOfE4m3},
                      {delayed, e4m3, 8, kOfE4m3},
                      {e5m2, delayed, kOfE5m2, 0.25f},
                      {e4m3, e4m3, kOfE4m3, kOfE4m3}};
  for (const Row& row : rows) {
    Quantizer quantizer(row.rowwise);
    quantizer.columnwise = row.columnwise;
    QuantizeArguments arguments;
    if (row.rowwise == delayed) arguments.scale = *Tensor::FromScalar(8.0f);
    if (row.columnwise == delayed) arguments.columnwise_scale = *Tensor::FromScalar(0.25f);
    const auto both = QuantizeCpu(x, quantizer, kBoth, arguments, {});
    ASSERT_TRUE(both.ok()) << both.status();
    EXPECT_EQ(both->has_two_scales(), !quantizer.is_uniform());
    EXPECT_EQ(*both->rowwise->scale.as<float>(), row.rowwise_scale);
    EXPECT_EQ(*both->columnwise->scale.as<float>(), row.columnwise_scale);
    for (const Usages usages : {kRow, kColumn}) {
      QuantizedTensor one = *both;
      ASSERT_TRUE(UpdateUsagesCpu(one, usages, {}).ok());
      ASSERT_EQ(one.usages(), usages);
      const float scale = usages.rowwise ? row.rowwise_scale : row.columnwise_scale;
      EXPECT_EQ(*one.copy(usages.rowwise ? Usage::kRowwise : Usage::kColumnwise)->scale.as<float>(),
                scale);
      EXPECT_EQ(SummarizeCpu(one).scale, scale);
    }
  }
  // A copy that is made of another one's codes has been made under its scale.
  QuantizedTensor rowwise = *QuantizeCpu(x, e4m3, kRow, {}, {});
  ASSERT_TRUE(UpdateUsagesCpu(rowwise, kBoth, {}).ok());
  EXPECT_EQ(*rowwise.columnwise->scale.as<float>(), kOfE4m3);
  EXPECT_FALSE(rowwise.has_two_scales());
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
