// Operands that a layer is given as codes: read as they are, in the direction that each GEMM reads,
// derived where the format permits, and refused by name elsewhere.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/layer/layer_step.h"
#include "tests/engine/tensor_values.h"
#include "tests/layer/layer_cases.h"
#include "tests/layer/linear/hand_codes.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

constexpr int64_t kM = 32, kN = 64, kK = 160;
const ExecutionContext kContext;

/// A recipe, and what hand-made codes of each role are under it.
struct RuleCase {
  std::string recipe;
  HandRule x, weight, grad_output;
};

std::vector<RuleCase> RuleCases() {
  const HandRule tensor{QuantizerFormat::kFp8Tensor, DType::kF8E4M3, 1};
  const HandRule gradient{QuantizerFormat::kFp8Tensor, DType::kF8E5M2, 1};
  const HandRule rows{QuantizerFormat::kFp8Block, DType::kF8E4M3, 1};
  const HandRule tiles{QuantizerFormat::kFp8Block, DType::kF8E4M3, 2};
  const HandRule mx{QuantizerFormat::kMxfp8, DType::kF8E4M3, 1};
  const HandRule mx_tiles{QuantizerFormat::kMxfp8, DType::kF8E4M3, 2};
  const HandRule nv{QuantizerFormat::kNvfp4, DType::kF4E2M1x2, 1};
  const HandRule nv_tiles{QuantizerFormat::kNvfp4, DType::kF4E2M1x2, 2};
  // Hand-made codes have no tensor scale.
  const std::string plain =
      "nvfp4:scale_rule=single_level,disable_rht=true,disable_stochastic_rounding=true";
  return {{"fp8_current", tensor, tensor, gradient},
          {"fp8_delayed", tensor, tensor, gradient},
          {"fp8_current:fp8_format=e4m3", tensor, tensor, tensor},
          {"fp8_block", rows, tiles, rows},
          {"fp8_block:x_block_dim=2,w_block_dim=1,grad_block_dim=1", tiles, rows, rows},
          {"mxfp8", mx, mx, mx},
          {"mxfp8:enable_2d_quantization=true", mx, mx_tiles, mx},
          {plain, nv, nv_tiles, nv},
          {plain + ",disable_2d_quantization=true", nv, nv, nv}};
}

struct Operands {
  explicit Operands(const RuleCase& rule)
      : x(rule.x, kM, kK, 1),
        weight(rule.weight, kN, kK, 2),
        grad_output(rule.grad_output, kM, kN, 3) {}
  HandTensor x, weight, grad_output;
};

/// The request that gives all three as codes, with their rowwise values beside them.
LayerRequest RequestOf(const Operands& operands) {
  LayerRequest request;
  request.x = FromValues(DType::kF32, {kM, kK}, operands.x.rowwise);
  request.parameters["weight"] = FromValues(DType::kF32, {kN, kK}, operands.weight.rowwise);
  request.grad_output = FromValues(DType::kF32, {kM, kN}, operands.grad_output.rowwise);
  request.codes = {{"x", operands.x.codes},
                   {"weight", operands.weight.codes},
                   {"grad_output", operands.grad_output.codes}};
  return request;
}

std::vector<float> Fprop(const std::vector<float>& x, const std::vector<float>& weight) {
  return SumsOf(
      kM, kN, kK, [&](int64_t m, int64_t k) { return x[m * kK + k]; },
      [&](int64_t k, int64_t n) { return weight[n * kK + k]; });
}
std::vector<float> Dgrad(const std::vector<float>& dy, const std::vector<float>& weight) {
  return SumsOf(
      kM, kK, kN, [&](int64_t m, int64_t n) { return dy[m * kN + n]; },
      [&](int64_t n, int64_t k) { return weight[n * kK + k]; });
}
std::vector<float> Wgrad(const std::vector<float>& dy, const std::vector<float>& x) {
  return SumsOf(
      kN, kK, kM, [&](int64_t n, int64_t m) { return dy[m * kN + n]; },
      [&](int64_t m, int64_t k) { return x[m * kK + k]; });
}

/// f32 results of exact sums.
LayerResult RunExact(const LayerRequest& request, const std::string& recipe) {
  const auto engine = MakeCpuEngine({});
  auto result =
      RunLayer(*engine, request, *Recipe::Parse(recipe), *Arithmetic::Parse("exact"), nullptr);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : LayerResult{};
}

std::vector<float> ValuesOfOutput(const LayerResult& result, const std::string& name) {
  return ToValues(OutputOf(result, name));
}

TEST(GivenCodes, EachGemmReadsItsDirectionOfEveryFormatAsItIs) {
  for (const RuleCase& rule : RuleCases()) {
    SCOPED_TRACE(rule.recipe);
    const Operands o(rule);
    const LayerResult result = RunExact(RequestOf(o), rule.recipe);
    ASSERT_FALSE(result.outputs.empty());
    EXPECT_EQ(ValuesOfOutput(result, "y"), Fprop(o.x.rowwise, o.weight.rowwise));
    EXPECT_EQ(ValuesOfOutput(result, "dx"), Dgrad(o.grad_output.rowwise, o.weight.columnwise));
    EXPECT_EQ(ValuesOfOutput(result, "dw"), Wgrad(o.grad_output.columnwise, o.x.columnwise));
    EXPECT_TRUE(result.quantizations.empty());
  }
}

// Scales that are powers of two quantize these integers without loss, so that what is quantized has
// its own values in both directions.
TEST(GivenCodes, OfOneRoleAloneStandBesideQuantizedOnes) {
  const std::string recipe = "fp8_current:power_2_scales=true";
  for (const std::string name : {"x", "weight", "grad_output"}) {
    SCOPED_TRACE(name);
    Operands o(RuleCases().front());
    LayerRequest request = RequestOf(o);
    request.codes = {{name, request.codes.at(name)}};
    if (name != "x") o.x.columnwise = o.x.rowwise;
    if (name != "weight") o.weight.columnwise = o.weight.rowwise;
    if (name != "grad_output") o.grad_output.columnwise = o.grad_output.rowwise;
    const LayerResult result = RunExact(request, recipe);
    ASSERT_FALSE(result.outputs.empty());
    EXPECT_EQ(ValuesOfOutput(result, "y"), Fprop(o.x.rowwise, o.weight.rowwise));
    EXPECT_EQ(ValuesOfOutput(result, "dx"), Dgrad(o.grad_output.rowwise, o.weight.columnwise));
    EXPECT_EQ(ValuesOfOutput(result, "dw"), Wgrad(o.grad_output.columnwise, o.x.columnwise));
    EXPECT_EQ(result.quantizations.size(), 2u);
    for (const QuantizationRecord& record : result.quantizations) EXPECT_NE(record.tensor, name);
  }
}

TEST(GivenCodes, UnderDequantizedBackwardReadsTheRowwiseValues) {
  for (const RuleCase& rule : RuleCases()) {
    if (rule.recipe == "fp8_delayed") continue;  // It has no override.
    SCOPED_TRACE(rule.recipe);
    const Operands o(rule);
    const std::string join = rule.recipe.find(':') == std::string::npos ? ":" : ",";
    const LayerResult result =
        RunExact(RequestOf(o), absl::StrCat(rule.recipe, join, "backward_override=dequantized"));
    ASSERT_FALSE(result.outputs.empty());
    EXPECT_EQ(ValuesOfOutput(result, "y"), Fprop(o.x.rowwise, o.weight.rowwise));
    EXPECT_EQ(ValuesOfOutput(result, "dx"), Dgrad(o.grad_output.rowwise, o.weight.rowwise));
    EXPECT_EQ(ValuesOfOutput(result, "dw"), Wgrad(o.grad_output.rowwise, o.x.rowwise));
    EXPECT_THAT(result.notes,
                Contains(AllOf(HasSubstr("grad_output"), HasSubstr("dequantized reads"))));
  }
}

TEST(GivenCodes, ADirectionIsDerivedWhereTheFormatPermits) {
  // What can be turned: per-tensor FP8 of all roles, tiles of fp8_block and nvfp4.
  const std::map<std::string, std::vector<std::string>> derived = {
      {"fp8_current", {"x", "weight", "grad_output"}},
      {"fp8_block", {"weight"}},
      {"fp8_block:x_block_dim=2,w_block_dim=1,grad_block_dim=1", {"x"}},
      {"nvfp4:scale_rule=single_level,disable_rht=true,disable_stochastic_rounding=true",
       {"weight"}}};
  size_t count = 0;
  for (const RuleCase& rule : RuleCases()) {
    const auto found = derived.find(rule.recipe);
    if (found == derived.end()) continue;
    ++count;
    SCOPED_TRACE(rule.recipe);
    Operands o(rule);
    LayerRequest request = RequestOf(o);
    for (const std::string& name : found->second) {
      request.codes.at(name).columnwise.reset();
      HandTensor& tensor = name == "x" ? o.x : name == "weight" ? o.weight : o.grad_output;
      tensor.columnwise = tensor.rowwise;
    }
    const LayerResult result = RunExact(request, rule.recipe);
    ASSERT_FALSE(result.outputs.empty());
    EXPECT_EQ(ValuesOfOutput(result, "dx"), Dgrad(o.grad_output.rowwise, o.weight.columnwise));
    EXPECT_EQ(ValuesOfOutput(result, "dw"), Wgrad(o.grad_output.columnwise, o.x.columnwise));
  }
  EXPECT_EQ(count, derived.size());
}

/// What the check says of the request under the recipe.
std::string RefusalText(const LayerRequest& request, const std::string& recipe) {
  const absl::Status status = CheckLayer(request, *Recipe::Parse(recipe));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_TRUE(RefusalOf(status).has_value()) << status;
  return std::string(status.message());
}

TEST(GivenCodes, AMissingDirectionThatCannotBeDerivedIsRefusedByName) {
  const std::map<std::string, std::string> fields = {
      {"x", "x"}, {"weight", "parameters[weight]"}, {"grad_output", "grad_output"}};
  for (const RuleCase& rule : RuleCases()) {
    if (rule.recipe != "mxfp8" && rule.recipe.find("disable_2d") == std::string::npos) continue;
    SCOPED_TRACE(rule.recipe);
    const Operands o(rule);
    for (const auto& [name, field] : fields) {
      LayerRequest request = RequestOf(o);
      request.codes.at(name).columnwise.reset();
      EXPECT_THAT(RefusalText(request, rule.recipe),
                  AllOf(HasSubstr(absl::StrCat(field, " is without columnwise codes: ")),
                        HasSubstr(name == "weight" ? "dgrad reads them" : "wgrad reads them"),
                        HasSubstr("cannot be made from rowwise ones")));
      request = RequestOf(o);
      request.codes.at(name).rowwise.reset();
      EXPECT_THAT(RefusalText(request, rule.recipe),
                  AllOf(HasSubstr(absl::StrCat(field, " is without rowwise codes: ")),
                        HasSubstr("rowwise codes cannot be made from columnwise ones")));
    }
  }
}

TEST(GivenCodes, ADirectionThatNoGemmReadsMayBeMissing) {
  const RuleCase rule = {"mxfp8", HandRule{}, HandRule{}, HandRule{}};
  const Operands o(rule);
  LayerRequest request = RequestOf(o);
  request.requires_grad = {.x = true, .weight = false, .bias = false, .norm = false};
  request.codes.at("x").columnwise.reset();
  request.codes.at("grad_output").columnwise.reset();
  const LayerResult result = RunExact(request, rule.recipe);
  EXPECT_EQ(ValuesOfOutput(result, "dx"), Dgrad(o.grad_output.rowwise, o.weight.columnwise));
}

TEST(GivenCodes, OfAnotherFormatAreRefusedNamingBoth) {
  const std::map<std::string, std::string> fields = {
      {"x", "x"}, {"weight", "parameters[weight]"}, {"grad_output", "grad_output"}};
  const std::map<std::string, std::string> roles = {
      {"x", "input"}, {"weight", "weight"}, {"grad_output", "grad_output"}};
  for (const RuleCase& given : RuleCases()) {
    const Operands o(given);
    for (const auto& [name, field] : fields) {
      for (const char* recipe : {"bf16", "fp8_block:w_block_dim=1,x_block_dim=2", "mxfp8",
                                 "fp8_current", "nvfp4:disable_rht=true"}) {
        const TensorRole role = name == "x"        ? TensorRole::kInput
                                : name == "weight" ? TensorRole::kWeight
                                                   : TensorRole::kGradOutput;
        const QuantizerFormat wanted = Recipe::Parse(recipe)->QuantizerFor(role).rowwise.format;
        if (wanted == given.x.format) continue;
        SCOPED_TRACE(absl::StrCat(given.recipe, " ", name, " under ", recipe));
        LayerRequest request = RequestOf(o);
        request.codes = {{name, request.codes.at(name)}};
        EXPECT_THAT(RefusalText(request, recipe),
                    AllOf(HasSubstr(absl::StrCat(field, " is given as ")),
                          HasSubstr(absl::StrCat("reads ", roles.at(name), " rowwise "))));
      }
    }
  }
}

TEST(GivenCodes, OfAnotherElementOrBlockAreRefused) {
  const HandRule e5m2{QuantizerFormat::kMxfp8, DType::kF8E5M2, 1};
  const HandRule tiles{QuantizerFormat::kMxfp8, DType::kF8E4M3, 2};
  for (const HandRule& rule : {e5m2, tiles}) {
    const Operands o({"mxfp8", rule, rule, rule});
    LayerRequest request = RequestOf(o);
    request.codes = {{"x", request.codes.at("x")}};
    EXPECT_THAT(RefusalText(request, "mxfp8"),
                AllOf(HasSubstr("x is given as mxfp8 ("),
                      HasSubstr("reads input rowwise as mxfp8 (f8_e4m3, block_dim 1)")));
  }
}

TEST(GivenCodes, OfAnotherTensorScaleAreRefused) {
  const Operands o(RuleCase{"mxfp8", HandRule{}, HandRule{}, HandRule{}});
  // A Hadamard transform needs bf16, and these operands are f32.
  const std::string two_level = "nvfp4:disable_rht=true";
  const std::string single_level = two_level + ",scale_rule=single_level";
  const auto given = [&](const std::string& made_by, auto&& change) {
    LayerRequest request = RequestOf(o);
    QuantizedTensor codes =
        *QuantizeCpu(request.x, Recipe::Parse(made_by)->QuantizerFor(TensorRole::kInput),
                     {true, true}, {}, kContext);
    change(codes);
    request.codes = {{"x", codes}};
    return request;
  };
  const auto keep = [](QuantizedTensor&) {};
  for (const std::string& recipe : {two_level, single_level}) {
    const absl::Status status = CheckLayer(given(recipe, keep), *Recipe::Parse(recipe));
    EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_THAT(RefusalText(given(single_level, keep), two_level),
              AllOf(HasSubstr("x is without amax_rowwise: recipe nvfp4:"),
                    HasSubstr(" gives input a tensor scale, which is of the amax")));
  EXPECT_THAT(RefusalText(given(two_level, keep), single_level),
              AllOf(HasSubstr("x is with amax_rowwise: recipe nvfp4:"),
                    HasSubstr(" gives input no tensor scale")));
  const auto drop = [](QuantizedTensor& codes) { codes.columnwise->amax = Tensor(); };
  EXPECT_THAT(RefusalText(given(two_level, drop), two_level),
              HasSubstr("x is without amax_columnwise: "));
  const auto to_256 = [](QuantizedTensor& codes) { codes.rowwise->e4m3_max = 256; };
  EXPECT_THAT(RefusalText(given(two_level, to_256), two_level),
              AllOf(HasSubstr("x is with e4m3_max 256: recipe nvfp4:"),
                    HasSubstr(" gives input an e4m3_max of 448")));
}

TEST(GivenCodes, HighPrecisionRefusesWhatItReadsTheOriginalOf) {
  const RuleCase rule = {"mxfp8", HandRule{}, HandRule{}, HandRule{}};
  const Operands o(rule);
  const std::string recipe = "mxfp8:backward_override=high_precision";
  const std::map<std::string, std::string> readers = {
      {"x",
       "x is given as mxfp8 (f8_e4m3, block_dim 1): under "
       "backward_override=high_precision wgrad reads the original"},
      {"weight",
       "parameters[weight] is given as mxfp8 (f8_e4m3, block_dim 1): under "
       "backward_override=high_precision dgrad reads the original"},
      {"grad_output",
       "grad_output is given as mxfp8 (f8_e4m3, block_dim 1): under "
       "backward_override=high_precision dgrad reads the original"}};
  for (const auto& [name, text] : readers) {
    LayerRequest request = RequestOf(o);
    request.codes = {{name, request.codes.at(name)}};
    EXPECT_THAT(RefusalText(request, recipe), HasSubstr(text));
  }
  // Where no GEMM reads the original, codes do.
  LayerRequest request = RequestOf(o);
  request.grad_output = Tensor();
  request.codes.erase("grad_output");
  EXPECT_EQ(ValuesOfOutput(RunExact(request, recipe), "y"), Fprop(o.x.rowwise, o.weight.rowwise));
}

TEST(GivenCodes, WhatALayerReadsInHighPrecisionIsRefused) {
  const auto quantized = [](const Tensor& tensor, TensorRole role) {
    return *QuantizeCpu(tensor, Recipe::Parse("mxfp8")->QuantizerFor(role), {true, true}, {},
                        kContext);
  };
  LayerRequest norm = LayerNormLinearCase(NormKind::kLayerNorm);
  norm.codes["x"] = quantized(norm.x, TensorRole::kInput);
  EXPECT_THAT(RefusalText(norm, "mxfp8"),
              AllOf(HasSubstr("x is given as mxfp8"), HasSubstr("high precision")));
  LayerRequest bias = LinearCase();
  bias.codes["bias"] = quantized(bias.x, TensorRole::kInput);
  EXPECT_THAT(RefusalText(bias, "mxfp8"),
              AllOf(HasSubstr("parameters[bias] is given as"), HasSubstr("only weights")));
  LayerRequest chain = ResidualChainCase();
  chain.codes["grad_output"] = quantized(chain.grad_output, TensorRole::kGradOutput);
  EXPECT_THAT(RefusalText(chain, "mxfp8"),
              AllOf(HasSubstr("grad_output is given as"), HasSubstr("the last operation")));
  LayerRequest grouped = GroupedLinearCase();
  grouped.codes["x"] = quantized(grouped.x, TensorRole::kInput);
  EXPECT_THAT(RefusalText(grouped, "mxfp8"),
              AllOf(HasSubstr("x is given as"), HasSubstr("rows of each expert")));
  LayerRequest calibration = LinearCase();
  calibration.codes["weight"] = *QuantizeCpu(
      calibration.parameters.at("weight"),
      Recipe::Parse("fp8_current")->QuantizerFor(TensorRole::kWeight), {true, true}, {}, kContext);
  calibration.calibrate = true;
  EXPECT_THAT(RefusalText(calibration, "fp8_delayed"), HasSubstr("a calibration reads it"));
}

/// Codes as the layer itself would make them.
void GiveCodes(const std::string& recipe_text, LayerRequest& request) {
  const Recipe recipe = *Recipe::Parse(recipe_text);
  const auto give = [&](const std::string& name, const Tensor& tensor, TensorRole role) {
    // f32 operands are cast to the activation dtype before they are quantized, weights are not.
    request.codes[name] =
        *QuantizeCpu(tensor, recipe.QuantizerFor(role), {true, true}, {}, kContext);
  };
  if (request.layer.kind == LayerKind::kLinear) {
    give("x", request.x, TensorRole::kInput);
    if (request.grad_output.has_value()) {
      give("grad_output", request.grad_output, TensorRole::kGradOutput);
    }
  }
  for (const auto& [name, tensor] : request.parameters) {
    if (name.find("weight") != std::string::npos) give(name, tensor, TensorRole::kWeight);
  }
}

TEST(GivenCodes, OfAQuantizerGiveTheBitsOfTheTensorsThatTheyWereMadeFrom) {
  for (const char* recipe :
       {"fp8_current", "fp8_current:power_2_scales=true,fp8_format=e4m3", "fp8_block",
        "fp8_block:w_block_dim=1,x_block_dim=2", "mxfp8",
        "mxfp8:enable_2d_quantization=true,fp8_format=hybrid",
        "nvfp4:disable_stochastic_rounding=true",
        "nvfp4:disable_stochastic_rounding=true,disable_rht=true,row_scaled_activation=true",
        "nvfp4:disable_stochastic_rounding=true,disable_rht=true,nvfp4_4over6=all",
        "hybrid:fprop=mxfp8,dgrad=fp8_block,wgrad=mxfp8"}) {
    for (LayerRequest request :
         {LinearCase(), LayerNormMlpCase(ActivationKind::kSwiglu), GroupedLinearCase()}) {
      SCOPED_TRACE(absl::StrCat(recipe, " ", std::string(LayerKindName(request.layer.kind))));
      // The bias gradient sums the values of a grad_output that is given as codes.
      request.requires_grad.bias = false;
      // No GEMM takes the row scales of a wgrad's b.
      if (std::string(recipe).find("row_scaled") != std::string::npos) {
        request.grad_output = Tensor();
      }
      const LayerResult reference = RunCase(request, recipe);
      GiveCodes(recipe, request);
      const LayerResult subject = RunCase(request, recipe);
      ExpectSameOutputs(subject, reference);
    }
  }
}

TEST(GivenCodes, TheBiasGradientSumsTheValues) {
  const RuleCase rule = {"mxfp8", HandRule{}, HandRule{}, HandRule{}};
  const Operands o(rule);
  LayerRequest request = RequestOf(o);
  request.parameters["bias"] = FromValues(DType::kF32, {kN}, std::vector<float>(kN, 0.0f));
  std::vector<float> expected(kN);
  for (int64_t m = 0; m < kM; ++m) {
    for (int64_t n = 0; n < kN; ++n) expected[n] += o.grad_output.rowwise[m * kN + n];
  }
  EXPECT_EQ(ValuesOfOutput(RunExact(request, rule.recipe), "db"), expected);
}

TEST(GivenCodes, LeaveTheStateOfDelayedScalingAsItIs) {
  const RuleCase rule = RuleCases()[1];
  ASSERT_EQ(rule.recipe, "fp8_delayed");
  const LayerResult result = RunExact(RequestOf(Operands(rule)), "fp8_delayed:amax_history_len=4");
  ASSERT_EQ(result.state.size(), 6u);
  for (const NamedTensor& state : result.state) {
    SCOPED_TRACE(state.name);
    const bool is_scale = state.name.ends_with(".scale");
    EXPECT_EQ(ToValues(state.tensor), std::vector<float>(is_scale ? 1 : 4, is_scale ? 1.0f : 0.0f));
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
