#include "server/runs/tensor_statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace quantgate {
namespace QG_TEST_FILE {

template <typename Code>
TensorStatistics Measure(DType dtype, const std::vector<Code>& codes) {
  const auto tensor = Tensor::FromBytes(dtype, {static_cast<int64_t>(codes.size())},
                                        std::as_bytes(std::span(codes)));
  return MeasureStatistics(*tensor, nullptr).value();
}

TEST(TensorStatisticsTest, F32) {
  const float infinity = std::numeric_limits<float>::infinity();
  const TensorStatistics statistics = Measure<float>(
      DType::kF32, {1.0f, -4.0f, 0.0f, -0.0f, infinity, -infinity, std::nanf(""), 0x1p-149f, 3.0f});
  EXPECT_EQ(statistics.amax, 4.0);
  EXPECT_EQ(statistics.mean, (1.0 - 4.0 + 0x1p-149 + 3.0) / 6);
  EXPECT_EQ(statistics.rms, std::sqrt((1.0 + 16.0 + 0x1p-298 + 9.0) / 6));
  EXPECT_EQ(statistics.zero_count, 2);
  EXPECT_EQ(statistics.subnormal_count, 1);
  EXPECT_EQ(statistics.infinite_count, 2);
  EXPECT_EQ(statistics.nan_count, 1);
  EXPECT_EQ(statistics.exponent_histogram,
            (std::map<int, int64_t>{{-149, 1}, {0, 1}, {1, 1}, {2, 1}}));
}

TEST(TensorStatisticsTest, EightBitFormats) {
  // E4M3 (OCP OFP8 1.0 table 2): 0x7E is 448, 0x01 is 2^-9, 0x08 is 2^-6, 0x7F is NaN.
  const TensorStatistics e4m3 =
      Measure<uint8_t>(DType::kF8E4M3, {0x7E, 0x01, 0x08, 0x7F, 0xFF, 0x80});
  EXPECT_EQ(e4m3.amax, 448.0);
  EXPECT_EQ(e4m3.nan_count, 2);
  EXPECT_EQ(e4m3.subnormal_count, 1);
  EXPECT_EQ(e4m3.zero_count, 1);
  EXPECT_EQ(e4m3.exponent_histogram, (std::map<int, int64_t>{{-9, 1}, {-6, 1}, {8, 1}}));
  // E5M2: 0x7B is 57344, 0x7C infinity, 0x03 is 3 x 2^-16.
  const TensorStatistics e5m2 = Measure<uint8_t>(DType::kF8E5M2, {0x7B, 0x7C, 0x03});
  EXPECT_EQ(e5m2.amax, 57344.0);
  EXPECT_EQ(e5m2.infinite_count, 1);
  EXPECT_EQ(e5m2.exponent_histogram, (std::map<int, int64_t>{{-15, 1}, {15, 1}}));
}

TEST(TensorStatisticsTest, EmptyTensorsHaveNoMean) {
  const TensorStatistics statistics = Measure<float>(DType::kF32, {});
  EXPECT_EQ(statistics.mean, 0);
  EXPECT_EQ(statistics.rms, 0);
}

TEST(TensorStatisticsTest, IntegersHaveNone) {
  const auto tensor = Tensor::Allocate(DType::kI32, {4});
  EXPECT_TRUE(absl::IsInvalidArgument(MeasureStatistics(*tensor, nullptr).status()));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
