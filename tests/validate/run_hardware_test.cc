// A plan on hardware: reports say which GEMMs ran on it, by which algorithm, and bounds hold.
#include <gtest/gtest.h>

#include <string>

#include "kernels/validate/run/run.h"
#include "tests/engine/pretend_hardware.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {
namespace QG_TEST_FILE {

/// Every k is three whole slices.
LayerRunRequest RequestOf(const std::string& recipe, const std::string& arithmetic) {
  LayerRunRequest request;
  request.step.x = Generated(Distribution::kNormal, 1, DType::kBF16, {384, 384});
  request.step.parameters["weight"] = Generated(Distribution::kNormal, 2, DType::kBF16, {384, 384});
  request.step.parameters["bias"] = Generated(Distribution::kNormal, 3, DType::kBF16, {384});
  request.step.grad_output = Generated(Distribution::kNormal, 4, DType::kBF16, {384, 384});
  request.variants.push_back({*Recipe::Parse(recipe), *Arithmetic::Parse(arithmetic)});
  request.error_budget = true;
  return request;
}

VariantReport RunOne(const std::string& recipe, const std::string& arithmetic) {
  PretendHardware engine;
  const absl::StatusOr<Plan> plan = Plan::Create(RequestOf(recipe, arithmetic));
  EXPECT_TRUE(plan.ok()) << plan.status();
  auto report = RunPlan(*plan, engine, nullptr,
                        {[](const RunProgress&) {}, [](int, const VariantReport&) {}});
  EXPECT_TRUE(report.ok()) << report.status();
  return report.ok() ? report->variants.at(0) : VariantReport();
}

constexpr char kFirstAlgorithm[] =
    "id=66 tile=20 stages=0 splitk=1 reduction=0 swizzle=0 custom=0 inner=0 cluster=0 workspace=0";

TEST(RunHardwareTest, SaysWhichAlgorithmRan) {
  for (const char* recipe : {"bf16", "fp8_current"}) {
    const VariantReport variant = RunOne(recipe, "cublaslt");
    EXPECT_TRUE(variant.is_hardware);
    ASSERT_EQ(variant.gemms.size(), 3u);
    for (const VariantReport::GemmLine& line : variant.gemms) {
      EXPECT_TRUE(line.is_hardware);
      EXPECT_EQ(line.algorithm, kFirstAlgorithm);
      EXPECT_EQ(line.arithmetic.find("cublaslt"), 0u);
    }
  }
}

TEST(RunHardwareTest, ModelsHaveNoAlgorithm) {
  // The note of an exact GEMM is another one: bits needed and available.
  for (const char* arithmetic : {"sm90", "sm90:split", "exact", "fp32"}) {
    const VariantReport variant = RunOne("fp8_current", arithmetic);
    EXPECT_FALSE(variant.is_hardware);
    for (const VariantReport::GemmLine& line : variant.gemms) {
      EXPECT_FALSE(line.is_hardware);
      EXPECT_EQ(line.algorithm, "");
    }
  }
}

TEST(RunHardwareTest, SaysOfEachGemmWhereAVariantIsMixed) {
  const VariantReport variant = RunOne("mxfp8:backward_override=high_precision", "auto");
  EXPECT_EQ(variant.arithmetic, "auto");
  EXPECT_TRUE(variant.is_hardware);
  ASSERT_EQ(variant.gemms.size(), 3u);
  EXPECT_FALSE(variant.gemms[0].is_hardware);
  EXPECT_EQ(variant.gemms[0].arithmetic, "sm100");
  EXPECT_TRUE(variant.gemms[1].is_hardware);
  EXPECT_TRUE(variant.gemms[2].is_hardware);
}

TEST(RunHardwareTest, BoundsAreOfTheSlicesThatRan) {
  const VariantReport variant = RunOne("fp8_current", "cublaslt:splitk=any");
  EXPECT_EQ(variant.arithmetic, "cublaslt:splitk=any");
  for (const OutputReport& output : variant.outputs) {
    if (output.tensor == "db") continue;
    ASSERT_TRUE(output.bound.has_value()) << output.tensor;
    EXPECT_TRUE(output.bound->pass) << output.tensor;
    EXPECT_NE(output.bound->bound.derivation.find("2 slices"), std::string::npos)
        << output.bound->bound.derivation;
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
