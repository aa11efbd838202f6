// Running errors against what fp32 really does: never exceeded, and not far above it.
#include "kernels/validate/reference/running_error.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "kernels/numerics/pairwise.h"
#include "kernels/numerics/transcendental.h"

namespace quantgate {
namespace QG_TEST_FILE {

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

/// exp(z - max) / sum in fp32.
std::vector<float> SoftmaxOf(const std::vector<float>& z) {
  const float largest = *std::max_element(z.begin(), z.end());
  std::vector<float> terms;
  for (const float one : z) terms.push_back(Exp(one - largest));
  const float sum = PairwiseSum(terms.data(), std::ssize(terms));
  for (float& term : terms) term /= sum;
  return terms;
}

// Of scores that err by next to nothing up to more than what separates them.
TEST(RunningError, BoundsSoftmax) {
  std::mt19937_64 random(10);
  for (const double deviation : {0.0, 0x1p-20, 0x1p-8, 0.3, 2.0, 30.0}) {
    double worst = 0;
    for (int repetition = 0; repetition < 300; ++repetition) {
      std::normal_distribution<float> normal(0, repetition % 3 == 0 ? 40 : 2);
      std::uniform_real_distribution<double> unit(-1, 1);
      std::vector<float> z(1 + repetition % 40);
      std::vector<RunningError> with_error, p(z.size());
      for (float& one : z) {
        one = normal(random);
        with_error.push_back({one + deviation * unit(random), deviation});
      }
      SoftmaxReference(with_error, std::ssize(z) + repetition % 5, p);
      const std::vector<float> found = SoftmaxOf(z);
      for (size_t i = 0; i < z.size(); ++i) {
        worst = std::max(worst, RatioOf(found[i], p[i]));
        EXPECT_LE(p[i].error, 1 + 0x1p-30);
      }
    }
    EXPECT_LE(worst, 1) << deviation;
    EXPECT_GT(worst, 0.1) << deviation;
  }
}

TEST(RunningError, SoftmaxKnowsWhereFloatsGiveNoNumber) {
  const RunningError nan = Given(NAN), infinity = Given(kFloatInfinity);
  const RunningError anything = Given(1) / Given(0);
  const auto softmax = [](const std::vector<RunningError>& z) {
    std::vector<RunningError> p(z.size());
    SoftmaxReference(z, std::ssize(z), p);
    return p;
  };
  for (const auto& z : std::vector<std::vector<RunningError>>{
           {nan, Given(1)}, {Given(1), infinity}, {nan, anything}, {-infinity, -infinity}}) {
    for (const RunningError& p : softmax(z)) {
      EXPECT_TRUE(std::isnan(p.value));
      EXPECT_EQ(p.error, 0);
    }
  }
  EXPECT_EQ(softmax({anything, Given(1)})[1].error, running_error::kInfinity);
  const auto left_out = softmax({-infinity, Given(3), Given(3)});
  EXPECT_EQ(left_out[0].value, 0);
  EXPECT_EQ(left_out[0].error, 0);
  EXPECT_EQ(left_out[2].value, 0.5);
}

// A GEMM's sums of products that err: of operands that fp32 has rounded, in any order.
TEST(RunningError, BoundsProducts) {
  std::mt19937_64 random(11);
  std::normal_distribution<float> normal(0, 1);
  std::uniform_real_distribution<double> unit(-1, 1);
  constexpr int64_t kLength = 100, kColumns = 7;
  const ProductBound bound = {error_bound::Gamma(kLength), kLength * error_bound::kUnderflow,
                              0x1p-126};
  for (const double deviation : {0.0, 0x1p-12}) {
    double worst = 0;
    for (int repetition = 0; repetition < 50; ++repetition) {
      std::vector<float> a(kLength), b(kLength * kColumns);
      for (float& one : a) one = normal(random);
      for (float& one : b) one = normal(random);
      const GivenRows rows(b, kLength, kColumns, false);
      RunningProducts products(kColumns, bound);
      std::vector<float> found(kColumns);
      for (int64_t k = 0; k < kLength; ++k) {
        products.Add({a[k] + deviation * unit(random), deviation}, rows, k);
        for (int64_t n = 0; n < kColumns; ++n) {
          found[n] = std::fma(a[k], b[k * kColumns + n], found[n]);
        }
      }
      for (int64_t n = 0; n < kColumns; ++n) {
        worst = std::max(worst, RatioOf(found[n], products.At(n)));
      }
    }
    EXPECT_LE(worst, 1) << deviation;
    EXPECT_GT(worst, 0x1p-7) << deviation;
  }
}

TEST(RunningError, ProductsKeepWhatIsNoNumber) {
  const std::vector<float> b = {1, kFloatInfinity, NAN, 2};
  const GivenRows rows(b, 1, 4, false);
  const auto with = [&](const RunningError& a) {
    RunningProducts products(4, {});
    products.Add(Given(1), GivenRows(std::vector<float>{1, 1, 1, 1}, 1, 4, false), 0);
    products.Add(a, rows, 0);
    return products;
  };
  EXPECT_EQ(with(Given(2)).At(0).value, 3);
  EXPECT_EQ(with(Given(2)).At(1).value, kFloatInfinity);
  EXPECT_EQ(with(Given(2)).At(1).error, 0);
  EXPECT_TRUE(std::isnan(with(Given(2)).At(2).value));
  EXPECT_EQ(with(Given(2)).At(2).error, 0);
  EXPECT_TRUE(std::isnan(with(Given(0)).At(1).value));  // 0 * infinity, of a mask's 0 too.
  EXPECT_EQ(with(Given(0)).At(1).error, 0);
  EXPECT_EQ(with(Given(0)).At(3).value, 1);
  // A factor that may be 0 or not.
  EXPECT_EQ(with({0x1p-30, 0x1p-20}).At(1).error, running_error::kInfinity);
  EXPECT_EQ(with({1, running_error::kInfinity}).At(0).error, running_error::kInfinity);
}

TEST(RunningError, RoundsToADType) {
  const auto rounded = [](double value, double error, DType dtype) {
    return RoundedTo({value, error}, FactsOfOutput(dtype));
  };
  EXPECT_EQ(rounded(1.5, 0x1p-10, DType::kF32).error, 0x1p-10);
  EXPECT_EQ(rounded(1.5, 0, DType::kBF16).error, 0x1p-8);
  EXPECT_EQ(rounded(1.5, 0x1p-3, DType::kF16).error, 0x1p-3 + 0x1p-11);
  EXPECT_EQ(rounded(0, 0, DType::kBF16).error, 0);
  EXPECT_EQ(rounded(65500, 20, DType::kF16).error, running_error::kInfinity);
  EXPECT_EQ(rounded(kFloatInfinity, 0, DType::kF16).error, 0);
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

}  // namespace QG_TEST_FILE
}  // namespace quantgate
