// fp8_block with scales of 128 elements on a GPU, in bands of eight rows of tiles: byte for byte
// what the CPU engine makes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <span>

#include "tests/tensor/cuda_test_device.h"

#include "kernels/quantize/cuda/quantize_cuda.h"
#include "kernels/quantize/quantizer.h"
#include "kernels/tensor/generate/generate.h"

namespace quantgate {
namespace QG_TEST_FILE {

/// Infinities and a NaN in tiles that are whole and share sectors of scales with others, the second
/// in the last whole row of tiles. A row and a column are zeros, some negative.
Tensor Source(int64_t rows, int64_t columns) {
  Tensor source = ValueOrAbort(Generate({.distribution = Distribution::kNormal,
                                         .seed = 5,
                                         .dtype = DType::kBF16,
                                         .shape = {rows, columns}},
                                        {}));
  auto* elements = source.as<uint16_t>();
  for (int64_t i = 0; i < columns; ++i) elements[7 * columns + i] = i % 2 == 0 ? 0 : 0x8000;
  for (int64_t i = 0; i < rows; ++i) elements[i * columns + 9] = i % 3 == 0 ? 0x8000 : 0;
  elements[5 * columns + columns / 3] = 0x7F80;
  elements[(rows / 128 * 128 - 1) * columns + columns / 2] = 0xFF80;
  elements[(rows - 60) * columns + columns / 2] = 0x7FC0;
  return source;
}

void ExpectSameCopy(const std::optional<QuantizedCopy>& expected,
                    const std::optional<QuantizedCopy>& found, const char* name) {
  ASSERT_EQ(found.has_value(), expected.has_value());
  if (!expected.has_value()) return;
  SCOPED_TRACE(name);
  EXPECT_TRUE(SameTensor(expected->data, found->data));
  EXPECT_TRUE(SameTensor(expected->scale_inv, found->scale_inv));
}

void ExpectSame(int64_t rows, int64_t columns, Usages usages) {
  SCOPED_TRACE(::testing::Message() << rows << " x " << columns);
  const Tensor source = Source(rows, columns);
  const Quantizer quantizer = QuantizerSpec{.format = QuantizerFormat::kFp8Block};
  const QuantizedTensor expected = ValueOrAbort(QuantizeCpu(source, quantizer, usages, {}, {}));
  const QuantizedTensor found =
      ValueOrAbort(QuantizeCuda(TestDevice(), OnDevice(source), quantizer, usages, {}));
  ExpectSameCopy(expected.rowwise, found.rowwise, "rowwise");
  ExpectSameCopy(expected.columnwise, found.columnwise, "columnwise");
  const QuantizationCounts& counts = expected.counts;
  const Tensor found_counts = OnHost(found.device_counts);
  EXPECT_THAT(
      std::span(found_counts.as<int64_t>(), kQuantizationCountKinds),
      ::testing::ElementsAre(counts.normal, counts.zero, counts.subnormal, counts.flushed_to_zero,
                             counts.saturated, counts.infinite, counts.nan));
}

/// 126 whole tiles across and one that is not.
constexpr int64_t kColumns = 126 * 128 + 56;

/// 15 tiles down, the last not whole: a band of eight and one of seven.
TEST(QuantizeLinesCuda, ShortLastBand) { ExpectSame(14 * 128 + 48, kColumns, {true, true}); }

TEST(QuantizeLinesCuda, WholeBands) { ExpectSame(16 * 128, kColumns, {true, true}); }

/// 58 tiles down: the last band has a row of whole tiles and one that is not.
TEST(QuantizeLinesCuda, LastBandOfTwo) { ExpectSame(57 * 128 + 48, kColumns, {true, true}); }

TEST(QuantizeLinesCuda, OneCopy) {
  ExpectSame(28 * 128 + 48, kColumns, {true, false});
  ExpectSame(28 * 128 + 48, kColumns, {false, true});
}

/// Scales of 32 tiles side by side or below each other are a line of the L2: one such line across
/// and two down, whole and begun.
TEST(QuantizeLinesCuda, LinesOfScales) {
  ExpectSame(64 * 128, 32 * 128, {true, true});
  ExpectSame(33 * 128 + 16, 33 * 128 + 8, {true, true});
}

/// Few tiles across, so that a band has few, and less than a band down or many.
TEST(QuantizeLinesCuda, Narrow) {
  for (const int64_t columns : {128, 256, 264, 384, 512}) {
    for (const int64_t tiles : {2, 400}) ExpectSame(tiles * 128 + 80, columns, {true, true});
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
