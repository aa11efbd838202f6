// Running errors against what fp32 really does: never exceeded, and not far above it.
#include "kernels/validate/reference/running_error.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "kernels/numerics/pairwise.h"
#include "kernels/numerics/transcendental.h"

namespace quantgate {
namespace {

constexpr float kFloatInfinity = std::numeric_limits<float>::infinity();

/// |fp32 - fp64| as a part of the running error.
double RatioOf(float found, const RunningError& expected) {
  const double distance = std::fabs(found - expected.value);
  return distance == 0 ? 0 : distance / expected.error;
}

struct Expression {
  const char* name;
  std::function<float(float, float)> in_floats;
  std::function<RunningError(const RunningError&, const RunningError&)> with_error;
};

/// Several operations each, so that errors propagate.
const std::vector<Expression>& Expressions() {
  static const std::vector<Expression> expressions = {
      {"sum", [](float a, float b) { return (a + b) + a * b; },
       [](const auto& a, const auto& b) { return (a + b) + a * b; }},
      {"difference", [](float a, float b) { return a * a - b * a; },
       [](const auto& a, const auto& b) { return a * a - b * a; }},
      {"quotient", [](float a, float b) { return (a * b) / (b * b + 0.5f); },
       [](const auto& a, const auto& b) { return (a * b) / (b * b + 0.5f); }},
      {"root", [](float a, float b) { return 1.0f / std::sqrt(a * a + b * b); },
       [](const auto& a, const auto& b) { return 1.0f / Sqrt(a * a + b * b); }},
      {"exp", [](float a, float b) { return Exp(a * b - 0.25f); },
       [](const auto& a, const auto& b) { return Exp(a * b - 0.25f); }},
      {"tanh", [](float a, float b) { return Tanh(a * b) * b; },
       [](const auto& a, const auto& b) { return Tanh(a * b) * b; }},
      {"sigmoid", [](float a, float b) { return a * Sigmoid(1.702f * b * a); },
       [](const auto& a, const auto& b) { return a * Sigmoid(1.702f * b * a); }},
      {"cancellation", [](float a, float b) { return 1.0f - Tanh(a * b) * Tanh(a * b); },
       [](const auto& a, const auto& b) { return 1.0f - Tanh(a * b) * Tanh(a * b); }},
  };
  return expressions;
}

TEST(RunningError, BoundsWhatFloatsDo) {
  for (const Expression& expression : Expressions()) {
    std::mt19937_64 random(7);
    std::normal_distribution<float> normal(0, 3);
    double worst = 0;
    for (int i = 0; i < 20000; ++i) {
      const float a = normal(random), b = normal(random);
      const RunningError expected = expression.with_error(Given(a), Given(b));
      worst = std::max(worst, RatioOf(expression.in_floats(a, b), expected));
    }
    EXPECT_LE(worst, 1) << expression.name;
    // A bound that nothing comes near says nothing.
    EXPECT_GT(worst, 0.2) << expression.name;
  }
}

TEST(RunningError, BoundsResultsBelowTheSmallestNormal) {
  std::mt19937_64 random(8);
  std::normal_distribution<float> normal(0, 0x1p-70f);
  double worst = 0;
  for (int i = 0; i < 20000; ++i) {
    const float a = normal(random), b = normal(random);
    worst = std::max(worst, RatioOf(a * b + b * b, Given(a) * Given(b) + Given(b) * Given(b)));
  }
  EXPECT_LE(worst, 1);
  EXPECT_GT(worst, 0.2);
}

TEST(RunningError, BoundsPairwiseSums) {
  std::mt19937_64 random(9);
  std::normal_distribution<float> normal(0.5f, 1);
  for (const int count : {1, 2, 3, 100, 1000, 4096}) {
    for (int repetition = 0; repetition < 50; ++repetition) {
      std::vector<float> terms(count);
      RunningSum sum;
      for (float& term : terms) {
        const float a = normal(random), b = normal(random);
        term = a * b;
        sum.Add(Given(a) * Given(b));
      }
      EXPECT_LE(RatioOf(PairwiseSum(terms.data(), count), sum.Sum()), 1) << count;
    }
  }
  EXPECT_EQ(RunningSum().Sum().value, 0);
  EXPECT_EQ(RunningSum().Sum().error, 0);
}

TEST(RunningError, KnowsNoBoundWhereFloatsOverflow) {
  const RunningError large = Given(std::numeric_limits<float>::max());
  EXPECT_EQ((large * large).error, running_error::kInfinity);
  EXPECT_EQ((large + large).error, running_error::kInfinity);
  EXPECT_EQ((1.0f / (1.0f / (large * large))).error, running_error::kInfinity);
  EXPECT_EQ((Given(1) / Given(0)).error, running_error::kInfinity);
  EXPECT_EQ(Given(kFloatInfinity).error, 0);
  RunningSum sum;
  sum.Add(large);
  sum.Add(-large);
  sum.Add(large);
  EXPECT_EQ(sum.Sum().error, running_error::kInfinity);
}

TEST(RunningError, KnowsWhereFloatsGiveNoNumber) {
  const RunningError nan = Given(NAN), infinity = Given(kFloatInfinity);
  const RunningError anything = Given(1) / Given(0);
  for (const RunningError& result :
       {nan + Given(1), nan * Given(0), Given(1) / nan, Sqrt(nan), Exp(nan), Tanh(nan),
        Sigmoid(nan), infinity - infinity, infinity * Given(0), nan * anything}) {
    EXPECT_TRUE(std::isnan(result.value));
    EXPECT_EQ(result.error, 0);
  }
  EXPECT_EQ((anything - anything).error, running_error::kInfinity);
}

// A NaN that goes into a sum comes out of it, whatever else does.
TEST(RunningError, SumsKeepWhatIsNoNumber) {
  const RunningError anything = Given(1) / Given(0), infinity = Given(kFloatInfinity);
  const auto sum_of = [](const std::vector<RunningError>& terms) {
    RunningSum sum;
    for (const RunningError& term : terms) sum.Add(term);
    return sum.Sum();
  };
  for (const auto& terms : std::vector<std::vector<RunningError>>{
           {Given(NAN)}, {Given(1), Given(NAN)}, {Given(NAN), anything}, {infinity, -infinity}}) {
    EXPECT_TRUE(std::isnan(sum_of(terms).value));
    EXPECT_EQ(sum_of(terms).error, 0);
  }
  EXPECT_EQ(sum_of({Given(1), anything}).error, running_error::kInfinity);
  EXPECT_EQ(sum_of({Given(2), -infinity, Given(3)}).value, -kFloatInfinity);
  EXPECT_EQ(sum_of({Given(2), -infinity, Given(3)}).error, 0);
  // Others may have overflowed to the other sign.
  EXPECT_EQ(sum_of({infinity, anything}).error, running_error::kInfinity);
}

TEST(RunningError, KnowsWhichInfinitiesFloatsHave) {
  const RunningError infinity = Given(kFloatInfinity),
                     small = (Given(1) + Given(0x1p-30)) - Given(1);
  for (const RunningError& result : {infinity + Given(1), Given(-2) * -infinity,
                                     infinity / Given(2), Sqrt(infinity), infinity * infinity}) {
    EXPECT_EQ(result.value, kFloatInfinity);
    EXPECT_EQ(result.error, 0);
  }
  // 0 in fp32, which makes NaN of an infinity.
  EXPECT_EQ((infinity * small).error, running_error::kInfinity);
  const RunningError large = Given(std::numeric_limits<float>::max());
  EXPECT_EQ((infinity - large * large).error, running_error::kInfinity);
}

TEST(RunningError, ADivisorThatMayBeZeroHasNoBound) {
  // 1 + 2^-30 - 1 is 0 in fp32.
  const RunningError small = (Given(1) + Given(0x1p-30)) - Given(1);
  EXPECT_EQ((Given(1) / small).error, running_error::kInfinity);
}

}  // namespace
}  // namespace quantgate
