// One run over every recipe, override and arithmetic of this build: every report whole, every GEMM
// within its derived bound, the numbers of steps as announced.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "kernels/validate/run/run.h"
#include "tests/engine/tensor_values.h"
#include "tests/validate/run_watched.h"

namespace quantgate {
namespace QG_TEST_FILE {

constexpr int64_t kM = 64, kN = 96, kK = 160;

LayerRequest LayerOf() {
  LayerRequest request;
  request.x = Generated(Distribution::kNormal, 1, DType::kBF16, {kM, kK});
  request.parameters["weight"] = Generated(Distribution::kNormal, 2, DType::kBF16, {kN, kK});
  request.parameters["bias"] = Generated(Distribution::kNormal, 3, DType::kBF16, {kN});
  request.grad_output = Generated(Distribution::kNormal, 4, DType::kBF16, {kM, kN});
  request.seed = 3;
  return request;
}

LayerRunRequest EveryVariant() {
  LayerRunRequest request;
  request.step = LayerOf();
  std::vector<std::string> recipes = {"hybrid:fprop=mxfp8,dgrad=nvfp4,wgrad=fp8_block"};
  for (const RecipeDescription& recipe : AllRecipes()) {
    if (!recipe.is_composed && !recipe.is_codes_only) recipes.push_back(recipe.name);
  }
  for (const std::string& name : recipes) {
    for (const char* mode : {"none", "high_precision", "dequantized"}) {
      if (name == "fp8_delayed" && std::string(mode) != "none") continue;
      for (const char* arithmetic : {"auto", "exact"}) {
        request.variants.push_back(
            {Recipe::Parse(name)->WithBackwardOverride(*ParseBackwardOverride(mode)),
             *Arithmetic::Parse(arithmetic)});
      }
    }
  }
  return request;
}

/// Held to the bounds of every output; made once.
const RunReport& ReportOfEveryVariant() {
  static const RunReport report = [] {
    LayerRunRequest request = EveryVariant();
    request.requirement = Requirement::kBound;
    return RunOk(request);
  }();
  return report;
}

TEST(RunRecipes, OneRunOfEverythingIsWithinItsBounds) {
  const RunReport& report = ReportOfEveryVariant();
  EXPECT_TRUE(report.verdict.pass) << report.verdict.finding;
  ASSERT_EQ(report.variants.size(), EveryVariant().variants.size());
  for (const VariantReport& variant : report.variants) {
    SCOPED_TRACE(variant.label);
    ASSERT_EQ(variant.outputs.size(), 4u);
    const bool is_exact = variant.arithmetic == "exact";
    for (const OutputReport& output : variant.outputs) {
      EXPECT_EQ(output.against_unquantized.non_finite_count, 0);
      if (output.tensor == "db") continue;
      ASSERT_TRUE(output.bound.has_value()) << output.tensor;
      EXPECT_TRUE(output.bound->pass) << output.tensor << " " << output.bound->worst_ratio;
      if (is_exact) {
        EXPECT_TRUE(output.against_exact.parity.equal) << output.tensor;
        EXPECT_EQ(output.bound->worst_ratio, 0) << output.tensor;
      }
    }
  }
}

TEST(RunRecipes, TheForwardOfAnOverrideIsTheForwardWithoutIt) {
  const RunReport& report = ReportOfEveryVariant();
  std::map<std::string, std::string> forward;  // Of each recipe under exact.
  for (const VariantReport& variant : report.variants) {
    if (variant.arithmetic != "exact") continue;
    const std::string fingerprint = variant.outputs[0].fingerprint.Hex();
    EXPECT_EQ(forward.emplace(variant.recipe_name, fingerprint).first->second, fingerprint)
        << variant.label;
  }
  // The hybrid takes its forward from mxfp8. FP8 scaled by powers of two (fp8_block, mxfp8, a fresh
  // fp8_delayed) gives the same values where nothing leaves the range of the format.
  EXPECT_EQ(forward.at("hybrid"), forward.at("mxfp8"));
  std::set<std::string> different;
  for (const char* name : {"bf16", "fp8_current", "mxfp8", "nvfp4"}) {
    different.insert(forward.at(name));
  }
  EXPECT_EQ(different.size(), 4u);
}

TEST(RunRecipes, StateComesWithTheReport) {
  LayerRunRequest request;
  request.step = LayerOf();
  request.step.seed = 0;
  request.variants = {{*Recipe::Parse("fp8_delayed:amax_history_len=2"), Arithmetic{}},
                      {*Recipe::Parse("fp8_current"), Arithmetic{}}};
  const RunReport report = RunOk(request);
  ASSERT_EQ(report.variants.size(), 2u);
  std::vector<std::string> names;
  for (const NamedTensor& tensor : report.variants[0].state) names.push_back(tensor.name);
  EXPECT_EQ(names, (std::vector<std::string>{"input.scale", "input.amax_history", "weight.scale",
                                             "weight.amax_history", "grad_output.scale",
                                             "grad_output.amax_history"}));
  EXPECT_TRUE(report.variants[1].state.empty());
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
