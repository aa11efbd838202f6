// Sums over ranks held to their bound, with sums taken by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/validate/ranks/rank_sum.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {
namespace QG_TEST_FILE {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

Tensor BF16(const std::vector<float>& values) {
  return FromValues(DType::kBF16, {1, static_cast<int64_t>(values.size())}, values);
}

BoundCheck Check(const std::vector<Tensor>& parts, const Tensor& sum, const Tensor& bias = {},
                 ReductionKind kind = ReductionKind::kRankAscFp32) {
  ReductionProfile profile;
  profile.kind = kind;
  const auto check = CheckRankSum({parts, bias, profile}, sum, nullptr);
  EXPECT_TRUE(check.ok()) << check.status();
  return check.value_or(BoundCheck{});
}

// 1 + 2^-8 lies halfway between two numbers of bf16: both roundings keep the bound, at its limit,
// and the number after them does not.
TEST(RankSum, OneRoundingOfAnFp32Sum) {
  const std::vector<Tensor> parts = {BF16({1}), BF16({0x1p-8f})};
  EXPECT_TRUE(Check(parts, BF16({1})).pass);
  EXPECT_TRUE(Check(parts, BF16({1 + 0x1p-7f})).pass);
  EXPECT_GT(Check(parts, BF16({1})).worst_ratio, 0.99);
  const BoundCheck two_ulps = Check(parts, BF16({1 + 0x1p-6f}));
  EXPECT_FALSE(two_ulps.pass);
  EXPECT_EQ(two_ulps.violation_count, 1);
}

// 1 + 2^-8 + 2^-8 is 1 where each addition is rounded to bf16, and 1 + 2^-7 where the sum is.
TEST(RankSum, AdditionsInTheDType) {
  const std::vector<Tensor> parts = {BF16({1}), BF16({0x1p-8f}), BF16({0x1p-8f})};
  EXPECT_TRUE(Check(parts, BF16({1}), {}, ReductionKind::kNcclRing).pass);
  EXPECT_FALSE(Check(parts, BF16({1})).pass);
  EXPECT_TRUE(Check(parts, BF16({1 + 0x1p-7f})).pass);
}

TEST(RankSum, ABiasIsRoundedOnceMore) {
  const std::vector<Tensor> parts = {BF16({1}), BF16({0x1p-8f})};
  const Tensor bias = BF16({0x1p-7f + 0x1p-8f});
  // 1 + 2^-8 goes to 1 + 2^-7 or 1; the bias adds 2^-7 + 2^-8, halfway again.
  EXPECT_TRUE(Check(parts, BF16({1 + 0x1p-6f + 0x1p-7f}), bias).pass);
  EXPECT_TRUE(Check(parts, BF16({1 + 0x1p-7f}), bias).pass);
  EXPECT_FALSE(Check(parts, BF16({1 + 0x1p-5f}), bias).pass);
}

TEST(RankSum, NumbersThatAreNotFinite) {
  const float large = 0x1.fep127f, nan = std::nanf("");
  EXPECT_TRUE(Check({BF16({large}), BF16({large})}, BF16({kInfinity})).pass);
  EXPECT_FALSE(Check({BF16({1}), BF16({1})}, BF16({kInfinity})).pass);
  EXPECT_FALSE(Check({BF16({1}), BF16({1})}, BF16({nan})).pass);
  EXPECT_TRUE(Check({BF16({nan}), BF16({1})}, BF16({nan})).pass);
  EXPECT_FALSE(Check({BF16({nan}), BF16({1})}, BF16({1})).pass);
  EXPECT_TRUE(Check({BF16({kInfinity}), BF16({-kInfinity})}, BF16({nan})).pass);
  EXPECT_FALSE(Check({BF16({kInfinity}), BF16({1})}, BF16({1})).pass);
}

TEST(RankSum, ExactValueIsRoundedOnce) {
  const std::vector<Tensor> parts = {FromValues(DType::kF32, {1, 2}, {1, 3}),
                                     FromValues(DType::kF32, {1, 2}, {0x1p-24f, 0}),
                                     FromValues(DType::kF32, {1, 2}, {0x1p-24f, -3})};
  const auto value = ExactRankSum({parts, BF16({0, 0.5f}), {}}, DType::kBF16, nullptr);
  ASSERT_TRUE(value.ok()) << value.status();
  // In fp32 each 2^-24 would be lost.
  EXPECT_EQ(ToValues(value->f32), (std::vector<float>{1 + 0x1p-23f, 0.5f}));
  EXPECT_EQ(ToValues(value->own), (std::vector<float>{1, 0.5f}));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
