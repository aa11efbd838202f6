// A verdict that fails says why.
#include "kernels/validate/run/run_diagnosis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/engine/forwarding_engine.h"
#include "tests/validate/run_watched.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// RequestOf with dims that are whole blocks of every recipe.
LayerRunRequest RequestIn(const std::vector<std::string>& recipes,
                          const std::string& arithmetic = "sm90") {
  LayerRunRequest request = RequestOf(recipes, arithmetic);
  request.step.x = Generated(Distribution::kNormal, 1, DType::kBF16, {32, 512});
  request.step.parameters["weight"] = Generated(Distribution::kNormal, 2, DType::kBF16, {128, 512});
  request.step.parameters["bias"] = Generated(Distribution::kNormal, 3, DType::kBF16, {128});
  request.step.grad_output = Generated(Distribution::kNormal, 4, DType::kBF16, {32, 128});
  return request;
}

/// Doubles the result of a GEMM of fp32 with a bias, which is y; what is exact stays so.
class DoublingEngine : public ForwardingEngine {
 public:
  explicit DoublingEngine(std::unique_ptr<Engine> cpu = MakeCpuEngine({}))
      : ForwardingEngine(*cpu), cpu_(std::move(cpu)) {}
  absl::StatusOr<StartedGemm> StartGemm(const GemmDesc& desc,
                                        const Cancellation* cancellation) override {
    auto started = ForwardingEngine::StartGemm(desc, cancellation);
    const bool is_model = desc.arithmetic.family == ArithmeticFamily::kFp32;
    if (!started.ok() || !is_model || !desc.bias.has_value()) return started;
    Tensor& d = started->result.d;
    for (int64_t i = 0; i < d.element_count(); ++i) {
      uint16_t& code = d.as<uint16_t>()[i];
      if ((code & 0x7F80) != 0) code = uint16_t(code + 0x80);
    }
    return started;
  }

 private:
  const std::unique_ptr<Engine> cpu_;
};

TEST(RunDiagnosis, APassedVerdictHasNone) {
  LayerRunRequest request = RequestIn({"bf16"});
  EXPECT_FALSE(RunOk(request).diagnosis.has_value());
  request.requirement = Requirement::kBound;
  EXPECT_FALSE(RunOk(request).diagnosis.has_value());
}

TEST(RunDiagnosis, RoundingsOfAnArithmeticAreTold) {
  LayerRunRequest request = RequestIn({"fp8_current"}, "sm90:fast");
  request.requirement = Requirement::kBitwise;
  const RunReport report = RunOk(request);
  ASSERT_FALSE(report.verdict.pass);
  ASSERT_TRUE(report.diagnosis.has_value());
  EXPECT_THAT(
      report.diagnosis->sentence,
      HasSubstr("the roundings of sm90:fast, which exact has not: all within what it may round "
                "off"));
  EXPECT_THAT(report.diagnosis->figures, Contains(HasSubstr("elements are not those of exact")));
  // Tensors that only the diagnosis needed are gone.
  for (const OutputReport& output : report.variants[0].outputs) {
    EXPECT_FALSE(output.exact.has_value());
  }
}

TEST(RunDiagnosis, OtherSettingsAreTold) {
  LayerRunRequest request = RequestIn({"bf16", "fp8_current"});
  request.reference = 0;
  request.requirement = Requirement::kBitwise;
  EXPECT_EQ(
      RunOk(request).diagnosis->sentence,
      "fp8_current / none / sm90: y, dx, dw differ since its recipe is fp8_current and not bf16");
  request = RequestIn({"bf16", "bf16"});
  request.variants[1].arithmetic = *Arithmetic::Parse("exact");
  request.reference = 0;
  request.requirement = Requirement::kBitwise;
  EXPECT_THAT(RunOk(request).diagnosis->sentence,
              HasSubstr("since its arithmetic is exact and not sm90"));
}

TEST(RunDiagnosis, OfManyVariantsTheFirstAreTold) {
  LayerRunRequest request = RequestIn({"bf16", "fp8_current", kHighPrecision, kDequantized,
                                       "fp8_block", "fp8_current:power_2_scales=true"});
  request.reference = 0;
  request.requirement = Requirement::kBitwise;
  const Diagnosis diagnosis = *RunOk(request).diagnosis;
  EXPECT_THAT(diagnosis.sentence, HasSubstr("; 2 more variants fail, not looked into"));
  EXPECT_EQ(diagnosis.not_tried.size(), 2u);
}

TEST(RunDiagnosis, WhatLeavesItsBoundIsHeldAgainstExact) {
  DoublingEngine engine;
  for (const Requirement requirement : {Requirement::kBound, Requirement::kBitwise}) {
    LayerRunRequest request = RequestIn({"bf16"}, "fp32");
    request.requirement = requirement;
    Watched watched;
    const auto report = RunWatched(request, engine, nullptr, watched);
    ASSERT_TRUE(report.ok()) << report.status();
    ASSERT_FALSE(report->verdict.pass);
    ASSERT_TRUE(report->diagnosis.has_value());
    // Of the sums of fp32 a few are rounded otherwise than exact.
    if (requirement == Requirement::kBound) {
      EXPECT_THAT(report->diagnosis->sentence, StartsWith("y is twice the expected"));
    } else {
      EXPECT_THAT(report->diagnosis->sentence, HasSubstr("y is twice the expected"));
    }
  }
}

TEST(RunDiagnosis, WithoutTimeItSaysWhatItDidNotLookInto) {
  LayerRunRequest request = RequestIn({"bf16", "fp8_current"});
  request.reference = 0;
  request.requirement = Requirement::kBitwise;
  const RunReport report = RunOk(request);
  const auto engine = MakeCpuEngine({});
  const auto diagnosis =
      DiagnoseRun(request, report, *engine, nullptr, DiagnosisBudget::Of(absl::Seconds(-1)));
  ASSERT_TRUE(diagnosis.ok() && diagnosis->has_value()) << diagnosis.status();
  EXPECT_EQ((*diagnosis)->sentence, "unknown: 1 variant fails, not looked into");
  EXPECT_TRUE((*diagnosis)->is_unknown);
  EXPECT_THAT((*diagnosis)->not_tried, Contains("fp8_current / none / sm90 (no time)"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
