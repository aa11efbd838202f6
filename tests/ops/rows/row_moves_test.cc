#include "kernels/ops/rows/row_moves.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/engine/tensor_values.h"

namespace quantgate {
namespace QG_TEST_FILE {

TEST(GatherRows, MovesBytesOfAnyType) {
  const Tensor codes =
      *Tensor::FromBytes(DType::kF8E4M3, {3, 2}, std::as_bytes(std::span("\1\2\3\4\5\6", 6)));
  const std::vector<int64_t> rows = {2, kNoRow, 0, 2};
  const Tensor moved = *GatherRowsCpu(codes, rows, ExecutionContext());
  EXPECT_TRUE(SameBits(moved, *Tensor::FromBytes(DType::kF8E4M3, {4, 2},
                                                 std::as_bytes(std::span("\5\6\0\0\1\2\5\6", 8)))));
  EXPECT_EQ(GatherRowsCpu(codes, {}, ExecutionContext())->shape(), (Shape{0, 2}));
  const std::vector<int64_t> beyond = {0, 3};
  EXPECT_EQ(GatherRowsCpu(codes, beyond, ExecutionContext()).status().message(),
            "rows[1] is 3: must be a row of 3, or -1 for none");
}

TEST(ScaleRows, RoundsEachProductOnce) {
  const Tensor rows = FromValues(DType::kBF16, {2, 2}, {1.0078125f, -3.0f, 2.0f, 0.5f});
  const Tensor factors = FromValues(DType::kF32, {2}, {1.0078125f, -0.25f});
  // 1.0078125^2 = 1.01568603515625, between 1.015625 and 1.0234375.
  EXPECT_TRUE(SameBits(*ScaleRowsCpu(rows, factors, ExecutionContext()),
                       FromValues(DType::kBF16, {2, 2}, {1.015625f, -3.03125f, -0.5f, -0.125f})));
}

/// 1 + 2^-8, whose half unit a bf16 sum drops, and what is left when large terms cancel.
TEST(SumRows, OrderAndRoundingAreAsStated) {
  const Tensor rows = FromValues(DType::kBF16, {4, 1}, {256.0f, 1.0f, -256.0f, 0.5f});
  const std::vector<int64_t> ascending = {0, 1, 2, 3}, other = {0, 2, 1, 3};
  RowSums sums = {.rows = rows, .positions = ascending, .choices = 4, .out = DType::kF32};
  const auto sum = [&] { return ToValues(*SumRowsCpu(sums, ExecutionContext()))[0]; };
  EXPECT_EQ(sum(), 1.5f);
  sums.accumulation = SumAccumulation::kElement;
  EXPECT_EQ(sum(), 0.5f);  // 256 + 1 is 256 in bf16.
  sums.positions = other;
  EXPECT_EQ(sum(), 1.5f);
}

TEST(SumRows, WeighsTerms) {
  const Tensor rows = FromValues(DType::kBF16, {3, 2}, {1, 2, 3, 4, 5, 6});
  const std::vector<int64_t> positions = {2, 0, kNoRow, 1};
  RowSums sums = {.rows = rows, .positions = positions, .choices = 2};
  sums.weights = FromValues(DType::kF32, {2, 2}, {0.5f, 2.0f, 7.0f, 0.25f});
  EXPECT_TRUE(SameBits(*SumRowsCpu(sums, ExecutionContext()),
                       FromValues(DType::kBF16, {2, 2}, {4.5f, 7.0f, 0.75f, 1.0f})));
  // A term is rounded to bf16 before it is added, where each element is.
  const Tensor two = FromValues(DType::kBF16, {2, 1}, {1.0078125f, -1.015625f});
  const std::vector<int64_t> both = {0, 1};
  sums = {.rows = two, .positions = both, .choices = 2, .out = DType::kF32};
  sums.weights = FromValues(DType::kF32, {2}, {1.0078125f, 1.0f});
  EXPECT_EQ(ToValues(*SumRowsCpu(sums, ExecutionContext()))[0], std::ldexp(1.0f, -14));
  sums.accumulation = SumAccumulation::kElement;
  EXPECT_EQ(ToValues(*SumRowsCpu(sums, ExecutionContext()))[0], 0.0f);
}

TEST(SumRows, RefusesWhatDoesNotFit) {
  const Tensor rows = FromValues(DType::kBF16, {2, 1}, {1, 2});
  const std::vector<int64_t> three = {0, 1, 0};
  RowSums sums = {.rows = rows, .positions = three, .choices = 2};
  EXPECT_EQ(SumRowsCpu(sums, ExecutionContext()).status().message(),
            "choices is 2: must be at least 1 and divide the 3 positions");
  sums.choices = 3;
  sums.weights = FromValues(DType::kF32, {2}, {1, 2});
  EXPECT_EQ(SumRowsCpu(sums, ExecutionContext()).status().message(),
            "weights is f32[2]: must have one for each of 3 positions");
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
