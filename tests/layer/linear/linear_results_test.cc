// Rules of a custom recipe for y and dx (docs/quantizers.md section 7.3): the values of codes that
// this file makes by itself, what the rules leave alone, and what they do not go with.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/tensor_values.h"
#include "tests/layer/layer_cases.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using Floats = std::vector<float>;

/// A custom recipe of these rules before one for all operands.
std::string Rules(const std::vector<std::string>& rules, const std::string& operands,
                  const std::string& mode = "none") {
  std::string list;
  for (const std::string& rule : rules) absl::StrAppend(&list, rule, ",");
  return absl::StrCat("custom:backward_override=", mode, ",rules=[", list, "{\"quantizer\":\"",
                      operands, "\"}]");
}
std::string RuleOf(const std::string& role, const std::string& quantizer) {
  return absl::StrCat(R"({"tensor_type":")", role, R"(","quantizer":)", quantizer, "}");
}

// ---- FP8 by hand, from the widths of the formats alone

/// The magnitudes of a format with so many bits, by code, up to the largest finite one.
Floats Magnitudes(int mantissa_bits, int bias, float largest) {
  Floats values;
  for (int code = 0; values.empty() || values.back() != largest; ++code) {
    const int exponent = code >> mantissa_bits, mantissa = code % (1 << mantissa_bits);
    const float fraction = static_cast<float>(mantissa) / static_cast<float>(1 << mantissa_bits);
    values.push_back(exponent == 0 ? std::ldexp(fraction, 1 - bias)
                                   : std::ldexp(1 + fraction, exponent - bias));
  }
  return values;
}
const Floats kE4m3 = Magnitudes(3, 7, 448), kE5m2 = Magnitudes(2, 15, 57344);

/// The nearest value of the format, the even code of two, by looking at all of them.
float Nearest(float x, const Floats& magnitudes) {
  size_t best = 0;
  for (size_t code = 1; code < magnitudes.size(); ++code) {
    const double distance = std::abs(double{std::abs(x)} - magnitudes[code]);
    const double least = std::abs(double{std::abs(x)} - magnitudes[best]);
    if (distance < least || (distance == least && code % 2 == 0)) best = code;
  }
  return std::copysign(magnitudes[best], x);
}

float ToBf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000u);
}

/// Per-tensor current scaling to `magnitudes` and back to bf16.
Floats ThroughTensorScale(const Floats& x, const Floats& magnitudes) {
  float amax = 0;
  for (const float value : x) amax = std::max(amax, std::abs(value));
  const float scale = magnitudes.back() / amax, scale_inv = 1 / scale;
  Floats values;
  for (const float value : x)
    values.push_back(ToBf16(Nearest(value * scale, magnitudes) * scale_inv));
  return values;
}

/// Blocks of 32 along the rows under the least power of two that keeps them below the largest
/// value.
Floats ThroughMxfp8(const Floats& x, const Floats& magnitudes) {
  Floats values;
  for (size_t block = 0; block < x.size(); block += 32) {
    float amax = 0;
    for (size_t i = 0; i < 32; ++i) amax = std::max(amax, std::abs(x[block + i]));
    int exponent = -127;
    while (std::ldexp(double{magnitudes.back()}, exponent) < amax) ++exponent;
    for (size_t i = 0; i < 32; ++i) {
      values.push_back(
          std::ldexp(Nearest(std::ldexp(x[block + i], -exponent), magnitudes), exponent));
    }
  }
  return values;
}

void ExpectValues(const Tensor& tensor, const Floats& expected) {
  const Floats found = ToValues(tensor);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(found[i]), std::bit_cast<uint32_t>(expected[i])) << i;
  }
}

const std::string kOperands[] = {"bf16", "mxfp8", "fp8_current", "fp8_block"};

TEST(LinearResults, OutputAndGradInputAreTheValuesOfTheirCodes) {
  const LayerRequest request = LinearCase();
  for (const std::string& operands : kOperands) {
    SCOPED_TRACE(operands);
    const LayerResult plain = RunCase(request, Rules({}, operands));
    const Floats y = ToValues(OutputOf(plain, "y")), dx = ToValues(OutputOf(plain, "dx"));
    const LayerResult blocks =
        RunCase(request,
                Rules({RuleOf("output", "\"mxfp8\""),
                       RuleOf("grad_input", R"({"name":"mxfp8","knobs":{"fp8_format":"hybrid"}})")},
                      operands));
    ExpectValues(OutputOf(blocks, "y"), ThroughMxfp8(y, kE4m3));
    ExpectValues(OutputOf(blocks, "dx"), ThroughMxfp8(dx, kE5m2));
    // fp8_current has E5M2 for gradients.
    const LayerResult scaled = RunCase(request, Rules({RuleOf("output", "\"fp8_current\""),
                                                       RuleOf("grad_input", "\"fp8_current\"")},
                                                      operands));
    ExpectValues(OutputOf(scaled, "y"), ThroughTensorScale(y, kE4m3));
    ExpectValues(OutputOf(scaled, "dx"), ThroughTensorScale(dx, kE5m2));
    for (const LayerResult* result : {&blocks, &scaled}) {
      for (const char* name : {"dw", "db"}) {
        EXPECT_TRUE(SameBits(OutputOf(*result, name), OutputOf(plain, name))) << name;
      }
    }
  }
}

TEST(LinearResults, ARuleForOneResultLeavesTheOther) {
  const LayerRequest request = LinearCase();
  const LayerResult plain = RunCase(request, Rules({}, "mxfp8"));
  const LayerResult result = RunCase(request, Rules({RuleOf("grad_input", "\"mxfp8\"")}, "mxfp8"));
  EXPECT_TRUE(SameBits(OutputOf(result, "y"), OutputOf(plain, "y")));
  EXPECT_FALSE(SameBits(OutputOf(result, "dx"), OutputOf(plain, "dx")));
  // The first rule that fits, also of results.
  ExpectSameOutputs(
      RunCase(request, Rules({RuleOf("grad_input", "\"bf16\""), RuleOf("grad_input", "\"mxfp8\"")},
                             "mxfp8")),
      plain);
}

TEST(LinearResults, AnOverrideKeepsTheOutputsRuleAndDropsGradInputs) {
  const LayerRequest request = LinearCase();
  const std::vector<std::string> rules = {RuleOf("output", "\"mxfp8\""),
                                          RuleOf("grad_input", "\"mxfp8\"")};
  for (const std::string mode : {"high_precision", "dequantized"}) {
    SCOPED_TRACE(mode);
    const LayerResult plain = RunCase(request, Rules({}, "fp8_current", mode));
    const LayerResult result = RunCase(request, Rules(rules, "fp8_current", mode));
    ExpectValues(OutputOf(result, "y"), ThroughMxfp8(ToValues(OutputOf(plain, "y")), kE4m3));
    EXPECT_TRUE(SameBits(OutputOf(result, "dx"), OutputOf(plain, "dx")));
    EXPECT_THAT(result.notes, Contains(HasSubstr("grad_input is not quantized under "
                                                 "backward_override=" +
                                                 mode)));
    EXPECT_THAT(plain.notes, Not(Contains(HasSubstr("grad_input"))));
  }
}

TEST(LinearResults, AreRecorded) {
  const LayerResult result =
      RunCase(LinearCase(),
              Rules({RuleOf("output", "\"mxfp8\""), RuleOf("grad_input", "\"mxfp8\"")}, "bf16"));
  ASSERT_EQ(result.quantizations.size(), 2u);
  const std::pair<std::string, TensorRole> expected[] = {{"y", TensorRole::kOutput},
                                                         {"dx", TensorRole::kGradInput}};
  for (size_t i = 0; i < 2; ++i) {
    const QuantizationRecord& record = result.quantizations[i];
    EXPECT_EQ(record.tensor, expected[i].first);
    EXPECT_EQ(record.role, expected[i].second);
    EXPECT_EQ(record.usages, (Usages{true, false}));
    EXPECT_THAT(record.quantizer, HasSubstr("f8_e4m3"));
  }
}

// What an MLP's activation reads is fc1's output as its rule makes it.
TEST(LinearResults, OfAModuleInALayer) {
  const LayerRequest mlp = LayerNormMlpCase(ActivationKind::kGelu);
  const auto find = [](const LayerResult& result, const std::string& name) {
    for (const NamedTensor& tensor : result.intermediates) {
      if (tensor.name == name) return tensor.tensor;
    }
    return Tensor();
  };
  const LayerResult plain = RunCase(mlp, Rules({}, "mxfp8"));
  const LayerResult result = RunCase(
      mlp, Rules({R"({"module_path":"fc1","tensor_type":"output","quantizer":"mxfp8"})",
                  R"({"module_path":"fc2","tensor_type":"grad_input","quantizer":"mxfp8"})"},
                 "mxfp8"));
  ExpectValues(find(result, "fc1.y"), ThroughMxfp8(ToValues(find(plain, "fc1.y")), kE4m3));
  EXPECT_FALSE(SameBits(OutputOf(result, "y"), OutputOf(plain, "y")));
  const Floats fc2_dx = ToValues(find(result, "fc2.dx"));
  EXPECT_EQ(fc2_dx, ThroughMxfp8(fc2_dx, kE4m3));
}

// nvfp4 rounds gradients stochastically: dx draws numbers of its own, and no operand's change.
TEST(LinearResults, DrawNumbersOfTheirOwn) {
  LayerRequest request = LinearCase();
  request.seed = 3;
  const std::string operands = "nvfp4";
  const LayerResult plain = RunCase(request, Rules({}, operands));
  const std::string recipe = Rules({RuleOf("grad_input", "\"nvfp4\"")}, operands);
  const LayerResult result = RunCase(request, recipe);
  EXPECT_TRUE(SameBits(OutputOf(result, "y"), OutputOf(plain, "y")));
  EXPECT_TRUE(SameBits(OutputOf(result, "dw"), OutputOf(plain, "dw")));
  EXPECT_FALSE(SameBits(OutputOf(result, "dx"), OutputOf(plain, "dx")));
  EXPECT_TRUE(SameBits(OutputOf(result, "dx"), OutputOf(RunCase(request, recipe), "dx")));
  std::vector<uint32_t> calls;
  for (const QuantizationRecord& record : result.quantizations) {
    if (record.draw.has_value()) calls.push_back(record.draw->call_id);
  }
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_NE(calls[0], calls[1]);
}

TEST(LinearResults, AnEmptyBatchHasNone) {
  LayerRequest request = LinearCase();
  request.x = *Tensor::Allocate(DType::kBF16, {0, request.x.columns()});
  request.grad_output = *Tensor::Allocate(DType::kBF16, {0, 96});
  const LayerResult result = RunCase(
      request, Rules({RuleOf("output", "\"fp8_current\""), RuleOf("grad_input", "\"fp8_current\"")},
                     "bf16"));
  EXPECT_EQ(OutputOf(result, "y").element_count(), 0);
  EXPECT_EQ(OutputOf(result, "dx").element_count(), 0);
}

std::string RefusalOf(const LayerRequest& request, const std::string& recipe) {
  const absl::Status status = CheckLayer(request, *Recipe::Parse(recipe));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(LinearResults, AreRefusedWhereTheyHaveNoMeaning) {
  LayerRequest unfused = LayerNormLinearCase(NormKind::kRmsNorm);
  unfused.layer.fused = false;
  ASSERT_TRUE(unfused.parameters.contains("bias"));
  EXPECT_THAT(RefusalOf(unfused, Rules({RuleOf("output", "\"mxfp8\"")}, "mxfp8")),
              HasSubstr("layer.fused is false"));
  EXPECT_TRUE(
      CheckLayer(unfused, *Recipe::Parse(Rules({RuleOf("grad_input", "\"mxfp8\"")}, "mxfp8")))
          .ok());
  LayerRequest odd = LinearCase();
  odd.parameters["weight"] = Generated(Distribution::kNormal, 1, DType::kF32, {80, 64});
  odd.parameters.erase("bias");
  odd.grad_output = Tensor();
  EXPECT_THAT(RefusalOf(odd, Rules({RuleOf("output", "\"mxfp8\"")}, "bf16")), HasSubstr("y is"));
  LayerRequest divided = LinearCase();
  divided.parallel = std::make_shared<const ParallelStep>();
  EXPECT_THAT(RefusalOf(divided, Rules({RuleOf("output", "\"mxfp8\"")}, "bf16")),
              HasSubstr("a rule for output goes with one rank"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
