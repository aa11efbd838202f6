// The scale rule at its corners, by the order of tests in docs/quantizers.md section 3. Real amaxes
// and every knob are covered by quantize_vectors_test.
#include "kernels/numerics/scale_rule.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <limits>

namespace quantgate {
namespace QG_TEST_FILE {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(MaxFinite, OfTheFormats) {
  EXPECT_EQ(MaxFinite<E4M3>(), 448.0f);
  EXPECT_EQ(MaxFinite<E5M2>(), 57344.0f);
}

TEST(ComputeScale, NothingToMeasureGivesOne) {
  for (const float amax : {0.0f, -0.0f, kInf, kNan}) EXPECT_EQ(ComputeScale(amax, 448, {}), 1.0f);
}

TEST(ComputeScale, EpsilonComesBeforeTheZeroTest) {
  EXPECT_EQ(ComputeScale(0, 448, {.amax_epsilon = 2}), 224.0f);
  EXPECT_EQ(ComputeScale(1, 448, {.amax_epsilon = 2}), 224.0f);
  EXPECT_EQ(ComputeScale(4, 448, {.amax_epsilon = 2}), 112.0f);
  EXPECT_EQ(ComputeScale(kNan, 448, {.amax_epsilon = 2}), 1.0f);  // NaN < 2 is false.
  EXPECT_EQ(ComputeScale(kInf, 448, {.amax_epsilon = 2}), 1.0f);
}

TEST(ComputeScale, OverflowGivesTheLargestFloat) {
  EXPECT_EQ(ComputeScale(0x1p-149f, 448, {}), FLT_MAX);
  EXPECT_EQ(ComputeScale(0x1p-149f, 448, {.power_2 = true}), 0x1p127f);
  EXPECT_EQ(ComputeScale(0x1p-149f, 448, {.rule = ScaleRule::kReciprocal}), FLT_MAX);
}

TEST(ComputeScale, PowerOfTwoRoundsDown) {
  EXPECT_EQ(ComputeScale(1, 448, {.power_2 = true}), 256.0f);
  EXPECT_EQ(ComputeScale(1.75f, 448, {.power_2 = true}), 256.0f);
  EXPECT_EQ(ComputeScale(FLT_MAX, 448, {.power_2 = true}), 0x1p-120f);
}

/// 448 / 6.5 and 1 / (6.5 * (1/448)) in fp32, by numpy: one unit in the last place apart.
TEST(ComputeScale, RulesDiffer) {
  EXPECT_EQ(std::bit_cast<uint32_t>(ComputeScale(6.5f, 448, {})), 0x4289d89eu);
  EXPECT_EQ(std::bit_cast<uint32_t>(ComputeScale(6.5f, 448, {.rule = ScaleRule::kReciprocal})),
            0x4289d89du);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
