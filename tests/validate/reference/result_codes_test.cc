// The bound of results that have the values of their codes: what rounds to a neighbouring code is
// within it, what does not is outside, each by one code; and runs that are held to it.
#include "kernels/validate/reference/result_codes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/validate/run_watched.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

/// The quantizer that a rule of a custom recipe gives y.
Quantizer RuleFor(const std::string& json) {
  const auto recipe = Recipe::Parse(absl::StrCat(
      R"(custom:rules=[{"tensor_type":"output","rowwise":)", json, R"(},{"quantizer":"bf16"}])"));
  EXPECT_TRUE(recipe.ok()) << recipe.status();
  return recipe->QuantizerFor(TensorRole::kOutput);
}

/// A GEMM's record whose result has been quantized by the rule.
GemmRecord Quantized(Engine& engine, const Tensor& result, const Quantizer& rule) {
  GemmRecord record;
  record.result.d = result;
  QuantizeArguments arguments;
  arguments.seed = 5;
  GemmRecord::ResultCodes codes{
      rule.rowwise, *engine.Quantize(result, rule, {true, false}, arguments, nullptr), {}};
  codes.values = *engine.Dequantize(codes.codes, Usage::kRowwise, result.dtype(), nullptr);
  record.result_codes = std::move(codes);
  return record;
}

const char* const kRules[] = {
    R"("mxfp8")",
    R"("fp8_current")",
    R"("fp8_block")",
    R"("nvfp4")",
    R"({"format":"fp8_tensor","element":"f8_e5m2"})",
    R"({"format":"fp8_tensor","overflow":"nan"})",
    R"({"format":"mxfp8","element":"f6_e2m3"})",
    R"({"format":"mxfp8","scale_rule":"floor"})",
    R"({"format":"mxfp8","element_rounding":"nearest_away"})",
    R"({"format":"nvfp4","element_rounding":"stochastic"})",
    R"({"format":"nvfp4","4over6":"mae","e4m3_max":256})",
    R"({"format":"nvfp4","row_scaled":true})",
    R"({"format":"nvfp4","scale_rule":"single_level"})",
};

/// Values over many orders of magnitude, with zeros, the largest and the smallest numbers.
Tensor Results(DType dtype, float magnitude) {
  std::vector<float> values =
      ToValues(Generated(Distribution::kLogNormalOutliers, 3, DType::kF32, {32, 128}));
  for (size_t i = 0; i < values.size(); ++i) {
    // f16 has them all.
    values[i] = std::clamp(values[i] * (i % 7 == 0 ? 0 : magnitude), -6e4f, 6e4f);
  }
  return FromValues(dtype, {32, 128}, values);
}

TEST(ResultCodes, WhatQuantizersGiveIsWithin) {
  const auto engine = MakeCpuEngine({});
  for (const char* rule : kRules) {
    const Quantizer quantizer = RuleFor(rule);
    for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
      for (const float magnitude : {1.0f, 0x1p-12f, 0x1p+9f}) {
        SCOPED_TRACE(absl::StrCat(rule, " ", std::string(DTypeName(dtype)), " ", magnitude));
        const GemmRecord record = Quantized(*engine, Results(dtype, magnitude), quantizer);
        const auto check = CheckResultCodes(*engine, record, record.result_codes->values, nullptr);
        ASSERT_TRUE(check.ok()) << check.status();
        EXPECT_TRUE(check->pass) << check->violation_count << " " << check->worst_ratio;
        EXPECT_GT(check->worst_ratio, 0.5);  // Some values lie near the middle of two codes.
      }
    }
  }
}

/// The record with one code moved to the next magnitude, or the one before, and its value with it.
GemmRecord WithCodeMoved(Engine& engine, GemmRecord record, int64_t at, int by) {
  QuantizedCopy& copy = *record.result_codes->codes.rowwise;
  copy.data = *Tensor::FromBytes(copy.data.dtype(), copy.data.shape(), copy.data.bytes());
  auto* const bytes = reinterpret_cast<uint8_t*>(copy.data.data());
  const bool is_packed = copy.element == DType::kF4E2M1x2;
  if (is_packed) {
    bytes[at / 2] = static_cast<uint8_t>(bytes[at / 2] + (at % 2 == 0 ? by : by * 16));
  } else {
    bytes[at] = static_cast<uint8_t>(bytes[at] + by);
  }
  record.result_codes->values = *engine.Dequantize(record.result_codes->codes, Usage::kRowwise,
                                                   record.result.d.dtype(), nullptr);
  return record;
}

TEST(ResultCodes, TheNextCodeIsOutside) {
  const auto engine = MakeCpuEngine({});
  // Of a block 6, 2.1 and -1.05: the last two lie between codes of FP8, and of FP4, and none near
  // their middles.
  std::vector<float> values(32 * 128, 0.0f);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = i % 16 == 0 ? 6.0f : i % 16 == 1 ? 2.1f : -1.05f;
  }
  const Tensor result = FromValues(DType::kF32, {32, 128}, values);
  for (const char* rule : kRules) {
    const bool is_stochastic = std::string(rule).find("stochastic") != std::string::npos;
    for (const auto& [at, by] : {std::pair{17, 1}, {17, -1}, {18, 1}, {18, -1}}) {
      SCOPED_TRACE(absl::StrCat(rule, " ", at, " ", by));
      const GemmRecord record = Quantized(*engine, result, RuleFor(rule));
      // A stochastic rounding may have taken either neighbour; two codes away is neither.
      const GemmRecord moved = WithCodeMoved(*engine, record, at, is_stochastic ? 2 * by : by);
      const BoundCheck check =
          *CheckResultCodes(*engine, moved, moved.result_codes->values, nullptr);
      EXPECT_FALSE(check.pass);
      EXPECT_EQ(check.violation_count, 1);
    }
  }
}

TEST(ResultCodes, ValuesAreThoseOfTheCodes) {
  const auto engine = MakeCpuEngine({});
  const GemmRecord record = Quantized(*engine, Results(DType::kBF16, 1), RuleFor(R"("mxfp8")"));
  std::vector<float> values = ToValues(record.result_codes->values);
  values[1] += std::abs(values[1]) / 64;  // Two ulps of bf16.
  const BoundCheck check =
      *CheckResultCodes(*engine, record, FromValues(DType::kBF16, {32, 128}, values), nullptr);
  EXPECT_EQ(check.violation_count, 1);
}

TEST(ResultCodes, NanAndInfinity) {
  const auto engine = MakeCpuEngine({});
  std::vector<float> values(64, 1.0f);
  values[3] = std::nanf("");
  values[40] = INFINITY;
  const Tensor result = FromValues(DType::kBF16, {2, 32}, values);
  for (const char* rule : {R"("fp8_current")", R"({"format":"fp8_tensor","overflow":"nan"})"}) {
    GemmRecord record = Quantized(*engine, result, RuleFor(rule));
    EXPECT_TRUE(CheckResultCodes(*engine, record, record.result_codes->values, nullptr)->pass);
    // A number for the NaN.
    reinterpret_cast<uint8_t*>(record.result_codes->codes.rowwise->data.data())[3] = 0x38;
    record.result_codes->values =
        *engine->Dequantize(record.result_codes->codes, Usage::kRowwise, DType::kBF16, nullptr);
    EXPECT_EQ(
        CheckResultCodes(*engine, record, record.result_codes->values, nullptr)->violation_count,
        1);
  }
}

TEST(ResultCodes, RunsAreHeldToThem) {
  const std::string recipe =
      R"(custom:rules=[{"tensor_type":"output","quantizer":"mxfp8"},)"
      R"({"tensor_type":"grad_input","quantizer":"fp8_current"},)"
      R"({"layer_name":"elsewhere","quantizer":"nvfp4"},{"quantizer":"fp8_current"}])";
  LayerRunRequest request = RequestOf({"fp8_current"}, "sm90");
  request.variants[0].recipe = *Recipe::Parse(recipe);
  request.step.x = Generated(Distribution::kNormal, 1, DType::kBF16, {32, 64});
  request.step.parameters["weight"] = Generated(Distribution::kNormal, 2, DType::kBF16, {96, 64});
  request.step.parameters["bias"] = Generated(Distribution::kNormal, 4, DType::kBF16, {96});
  request.step.grad_output = Generated(Distribution::kNormal, 3, DType::kBF16, {32, 96});
  request.requirement = Requirement::kBound;
  LayerRunRequest budget = request;
  budget.error_budget = true;
  const absl::Status refused = Plan::Create(budget).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("error_budget is true: it measures GEMMs"),
                    HasSubstr("has a rule for output")));
  const RunReport report = RunOk(request);
  EXPECT_TRUE(report.verdict.pass);
  const VariantReport& variant = report.variants[0];
  EXPECT_THAT(variant.notes, Contains(HasSubstr("rules[2] of the recipe")));
  EXPECT_THAT(variant.notes, Contains(HasSubstr("fits no module of the layer")));
  EXPECT_EQ(variant.outputs.size(), 4u);  // y, dx, dw, db.
  for (const OutputReport& output : variant.outputs) {
    SCOPED_TRACE(output.tensor);
    ASSERT_TRUE(output.bound.has_value());
    EXPECT_TRUE(output.bound->pass) << output.bound->worst_ratio;
    const bool is_result = output.tensor == "y" || output.tensor == "dx";
    EXPECT_EQ(output.bound->bound.derivation.find("of its codes") != std::string::npos, is_result);
    // Three bits of mantissa leave most elements of a result away from the exact product.
    const int64_t count = output.value.element_count();
    EXPECT_EQ(output.against_exact.parity.mismatch_count > count / 2, is_result);
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
