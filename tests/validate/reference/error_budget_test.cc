// Error budgets against an independent rational model (tests/vectors/error_budget_reference.py),
// and what must hold of every budget.
#include "kernels/validate/reference/error_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "kernels/validate/reference/exact_values.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::ElementsAre;

Tensor FromHex(const std::string& hex, const Shape& shape) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return *Tensor::FromBytes(DType::kBF16, shape, bytes);
}

std::vector<ErrorBudget> BudgetsOf(const LayerRequest& request, const std::string& recipe_text,
                                   const std::string& arithmetic_text) {
  const auto engine = MakeCpuEngine({});
  const Recipe recipe = *Recipe::Parse(recipe_text);
  const auto result =
      RunLayer(*engine, request, recipe, *Arithmetic::Parse(arithmetic_text), nullptr);
  EXPECT_TRUE(result.ok()) << result.status();
  const auto budgets = MeasureErrorBudgets(*engine, request, recipe, *result, nullptr);
  EXPECT_TRUE(budgets.ok()) << budgets.status();
  return *budgets;
}

/// Both sides are sums of at most 2^10 fp64 terms in different orders: relative errors of the sums
/// of magnitudes, which rms bounds from above, of at most 2^10 * 2^-53 each.
void ExpectSame(const BudgetTerm& term, const BudgetTerm& expected) {
  const double slack = 0x1p-42;
  EXPECT_LE(std::fabs(term.mean - expected.mean), slack * expected.rms) << expected.stage;
  EXPECT_LE(std::fabs(term.rms - expected.rms), slack * expected.rms) << expected.stage;
  EXPECT_EQ(term.max_abs, expected.max_abs) << expected.stage;
  EXPECT_LE(std::fabs(term.share - expected.share), slack) << expected.stage;
}

TEST(ErrorBudget, EqualsRationalArithmetic) {
  std::ifstream file(std::string(QUANTGATE_SOURCE_DIR) + "/tests/data/error_budget_vectors.txt");
  ASSERT_TRUE(file.is_open());
  std::string line;
  std::optional<ErrorBudget> budget;
  int compared = 0;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string kind;
    words >> kind;
    if (kind == "case") {
      std::string recipe, x, weight;
      int64_t m, n, k;
      words >> recipe >> m >> n >> k >> x >> weight;
      LayerRequest request;
      request.x = FromHex(x, {m, k});
      request.parameters["weight"] = FromHex(weight, {n, k});
      budget = BudgetsOf(request, recipe, "fp32").front();
      EXPECT_EQ(budget->tensor, "y");
      EXPECT_EQ(budget->terms.size(), 7u);
    } else if (kind == "term") {
      std::string mean, rms, max_abs, share;
      words >> mean >> rms >> max_abs >> share >> std::ws;
      const auto value = [](const std::string& text) { return std::strtod(text.c_str(), nullptr); };
      BudgetTerm expected{"", value(mean), value(rms), value(max_abs), value(share)};
      std::getline(words, expected.stage);
      const BudgetTerm* found = expected.stage == "total" ? &budget->total : nullptr;
      for (const BudgetTerm& term : budget->terms)
        if (term.stage == expected.stage) found = &term;
      ASSERT_NE(found, nullptr) << expected.stage;
      ExpectSame(*found, expected);
      ++compared;
    }
  }
  EXPECT_EQ(compared, 16);
}

LayerRequest RandomRequest(int64_t m, int64_t n, int64_t k,
                           Distribution distribution = Distribution::kLogNormalOutliers) {
  const auto engine = MakeCpuEngine({});
  const auto generate = [&](uint64_t seed, Shape shape) {
    return *engine->Generate({distribution, seed, DType::kBF16, std::move(shape), 0.5f}, nullptr);
  };
  LayerRequest request;
  request.x = generate(1, {m, k});
  request.parameters["weight"] = generate(2, {n, k});
  request.parameters["bias"] = generate(3, {n});
  request.grad_output = generate(4, {m, n});
  return request;
}

TEST(ErrorBudget, TermsAddUpForEveryGemmOfEveryRecipe) {
  const LayerRequest request = RandomRequest(64, 96, 128);
  for (const char* recipe :
       {"bf16", "fp8_current", "fp8_current:backward_override=dequantized",
        "fp8_current:backward_override=high_precision", "fp8_current:activation_dtype=f16",
        "fp8_block", "mxfp8", "mxfp8:fp8_format=hybrid,enable_2d_quantization=true", "nvfp4",
        "nvfp4:disable_rht=true,nvfp4_4over6=all", "nvfp4:backward_override=dequantized",
        "fp8_delayed", "hybrid:fprop=mxfp8,dgrad=mxfp8,wgrad=nvfp4"}) {
    const std::vector<ErrorBudget> budgets = BudgetsOf(request, recipe, "auto");
    std::vector<std::string> tensors;
    for (const ErrorBudget& budget : budgets) {
      tensors.push_back(budget.tensor);
      double share = 0, mean = 0, magnitude = 0;
      for (const BudgetTerm& term : budget.terms) {
        share += term.share;
        mean += term.mean;
        magnitude += term.max_abs;
      }
      // Each element adds at most 12 fp64 numbers below `magnitude`; sums of 2^14 elements are
      // pairwise, 14 roundings deep.
      EXPECT_LE(budget.closure, 12 * 0x1p-53 * magnitude) << recipe;
      EXPECT_LE(std::fabs(mean - budget.total.mean), 32 * 0x1p-53 * magnitude) << recipe;
      EXPECT_LE(std::fabs(share - 1), 0x1p-40) << recipe;
      EXPECT_GT(budget.total.rms, 0) << recipe;
      EXPECT_EQ(budget.non_finite_count, 0);
    }
    EXPECT_THAT(tensors, ElementsAre("y", "dx", "dw"));
  }
}

// The total is the distance from the unquantized product, which ExactValues forms without any
// transform or transpose.
TEST(ErrorBudget, TotalsAreTheDistanceFromTheUnquantizedProduct) {
  const LayerRequest request = RandomRequest(64, 96, 128, Distribution::kNormal);
  const auto engine = MakeCpuEngine({});
  for (const char* text : {"fp8_current", "fp8_block", "mxfp8", "nvfp4"}) {
    const Recipe recipe = *Recipe::Parse(text);
    const LayerResult result = *RunLayer(*engine, request, recipe, Arithmetic(), nullptr);
    const auto budgets = *MeasureErrorBudgets(*engine, request, recipe, result, nullptr);
    ExactValues exact(*engine, request, nullptr);
    for (size_t i = 0; i < budgets.size(); ++i) {
      const std::string& output = budgets[i].tensor;
      const Tensor& d = result.gemms[i].result.d;
      const ErrorReport error = *engine->MeasureError(d, *exact.Unquantized(output), nullptr);
      // Originals under a Hadamard transform are rounded to f32 once: each product is off by less
      // than 2^-22 of its magnitude, the transform's entries being 1/4. The largest magnitudes
      // bound the sum of 64 products. Elsewhere only the order of the fp64 sums differs.
      double slack = 0x1p-40 * error.rms;
      if (std::string(text) == "nvfp4" && output == "dw") {
        const auto largest = [](const Tensor& tensor) {
          double value = 0;
          for (const float x : ToValues(tensor)) value = std::max<double>(value, std::fabs(x));
          return value;
        };
        slack = 0x1p-22 * 64 * 4 * largest(request.x) * 4 * largest(request.grad_output);
      }
      EXPECT_LE(std::fabs(budgets[i].total.rms - error.rms), slack) << text << " " << output;
      EXPECT_LT(slack, error.rms / 4) << text << " " << output;
    }
  }
}

TEST(ErrorBudget, WhatIsExactCostsNothing) {
  // Integers up to 4: on the grid of every scale that is a power of two, sums exact in fp32 and
  // bf16. amax 4 and 448 / 4 = 112, so power-of-two scales are 64.
  LayerRequest request;
  request.x = FromValues(DType::kBF16, {16, 16}, std::vector<float>(256, 4.0f));
  request.parameters["weight"] = FromValues(DType::kBF16, {16, 16}, std::vector<float>(256, 2.0f));
  const ErrorBudget budget = BudgetsOf(request, "fp8_current:power_2_scales=true", "sm90").front();
  EXPECT_EQ(budget.total.rms, 0);
  EXPECT_EQ(budget.total.share, 0);
  double operands = 0, rest = 0;
  for (const BudgetTerm& term : budget.terms) {
    const bool of_an_operand = term.stage.find(':') != std::string::npos;
    (of_an_operand ? operands : rest) += term.max_abs;
  }
  EXPECT_EQ(rest, 0);
  // The ideal scale of 4 is f32(4 / 448), whose 448-fold is 4 again.
  EXPECT_EQ(operands, 0);
}

TEST(ErrorBudget, NonFiniteElementsAreLeftOut) {
  LayerRequest request = RandomRequest(16, 16, 32);
  request.x.as<uint16_t>()[5] = 0x7F80;  // Infinity in row 0.
  const ErrorBudget budget = BudgetsOf(request, "bf16", "sm90").front();
  EXPECT_EQ(budget.non_finite_count, 16);
  EXPECT_TRUE(std::isfinite(budget.total.rms));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
