// The steps of other libraries that no stored tensor shows: vLLM's rule by hand, zeros, what is
// refused, and knobs of recipes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "kernels/quantize/recipe/recipe_json.h"

namespace quantgate {
namespace QG_TEST_FILE {

// vLLM's rule has no stored case: by hand from its text, one block of 16 in a tensor of two.
TEST(LibrarySteps, VllmGivesTheBitsOfItsText) {
  const QuantizerSpec spec = {.format = QuantizerFormat::kNvfp4,
                              .element = DType::kF4E2M1x2,
                              .scale_rule = ScaleRule::kVllm,
                              .zero_sign = SignOfZero::kDrop};
  for (const float largest : {0.7f, 448.0f, 3.0e-5f}) {
    std::vector<float> values(256, 0.0f);
    for (size_t i = 0; i < 240; ++i) {
      values[i] = largest * (static_cast<float>(i * 37 % 101) - 50) / 61.0f;
    }
    const Tensor source =
        *Tensor::FromBytes(DType::kF32, {16, 16}, std::as_bytes(std::span(values)));
    const auto quantized = QuantizeCpu(source, spec, {true, false}, {}, {});
    ASSERT_TRUE(quantized.ok()) << quantized.status();
    const auto* codes = quantized->rowwise->data.as<uint8_t>();
    float amax = 0;
    for (const float value : values) amax = std::max(amax, std::abs(value));
    const float reciprocal = 1.0f / amax;
    const float tensor = 2688.0f * reciprocal;
    for (size_t row = 0; row < 16; ++row) {
      float of_block = 0;
      for (size_t i = 0; i < 16; ++i) {
        of_block = std::max(of_block, std::abs(values[row * 16 + i]));
      }
      const float sixth = of_block * (1.0f / 6.0f);
      const uint8_t code = EncodeFloat<E4M3>(tensor * sixth);
      EXPECT_EQ(quantized->rowwise->scale_inv.as<uint8_t>()[row], code);
      const float inverse = 1.0f / tensor;
      const float step = DecodeFloat<E4M3>(code) * inverse;
      const float factor = code == 0 ? 0.0f : 1.0f / step;
      for (size_t i = 0; i < 16; ++i) {
        const float scaled = values[row * 16 + i] * factor + 0.0f;
        EXPECT_EQ(codes[row * 8 + i / 2] >> (i % 2 * 4) & 15, EncodeFloat<E2M1>(scaled))
            << row << " " << i;
      }
    }
  }
}

/// scale_inv and the first code of a tensor of one value.
std::pair<float, uint8_t> OfOneValue(float value, const char* quantizer) {
  const auto rule = ParseQuantizerRuleText(quantizer);
  EXPECT_TRUE(rule.ok()) << rule.status();
  const std::vector<float> values(4, value);
  const Tensor source = *Tensor::FromBytes(DType::kF32, {2, 2}, std::as_bytes(std::span(values)));
  const auto quantized = QuantizeCpu(source, rule->spec, {true, false}, {}, {});
  EXPECT_TRUE(quantized.ok()) << quantized.status();
  return {*quantized->rowwise->scale_inv.as<float>(), *quantized->rowwise->data.as<uint8_t>()};
}

TEST(LibrarySteps, ZerosHaveTheScaleThatIsAskedFor) {
  using Result = std::pair<float, uint8_t>;
  EXPECT_EQ(OfOneValue(0, R"({"format": "fp8_tensor", "scale_rule": "inverse"})"), Result(1, 0));
  EXPECT_EQ(OfOneValue(0, R"({"format": "fp8_tensor", "zero_scale": "dtype_epsilon"})"),
            Result(0x1p-23f, 0));
  // 0 / 0 is NaN.
  EXPECT_EQ(OfOneValue(0, R"({"format": "fp8_tensor", "scale_rule": "inverse",
                              "element_operation": "divide", "zero_scale": "none"})"),
            Result(0, 0x7F));
  EXPECT_EQ(OfOneValue(-0.0f, R"({"format": "fp8_tensor"})"), Result(1, 0x80));
  EXPECT_EQ(OfOneValue(-0.0f, R"({"format": "fp8_tensor", "zero_sign": "drop"})"), Result(1, 0));
  EXPECT_EQ(OfOneValue(0, R"({"format": "fp8_tensor", "zero_sign": "negative"})"), Result(1, 0x80));
}

TEST(LibrarySteps, FieldsThatARuleDoesNotHaveAreRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"format": "mxfp8", "scale_dtype": "source"})",
       "quantizer.scale_dtype is source: not a field of mxfp8"},
      {R"({"format": "nvfp4", "element_operation": "divide"})",
       "quantizer.element_operation is divide: not a field of nvfp4"},
      {R"({"format": "mxfp8", "operation_dtype": "source"})",
       "quantizer.operation_dtype is source: not a field of mxfp8"},
      {R"({"format": "nvfp4", "zero_scale": "none"})",
       "quantizer.zero_scale is none: not a field of nvfp4"},
      {R"({"format": "fp8_tensor", "scale_rule": "inverse", "power_2_scale": true})",
       "quantizer.power_2_scale is true: scale_rule inverse has none"},
      {R"({"format": "fp8_block", "scale_rule": "qwix", "zero_scale": "none"})",
       "quantizer.zero_scale is none: scale_rule qwix says how each step is rounded"},
      {R"({"format": "fp8_block", "scale_rule": "qwix", "amax_epsilon": 1})",
       "quantizer.amax_epsilon is 1: scale_rule qwix has a floor of its own"},
      {R"({"format": "fp8_block", "scale_rule": "float64", "scale_dtype": "source"})",
       "quantizer.scale_dtype is source: scale_rule float64 rounds to fp32"},
      {R"({"format": "fp8_block", "scale_rule": "float64", "zero_scale": "none"})",
       "quantizer.zero_scale is none: under scale_rule float64 no amax is below 1e-12"},
      {R"({"format": "mxfp8", "element": "f8_e5m2", "scale_rule": "modelopt"})",
       "quantizer.element is f8_e5m2: the library of scale_rule modelopt has f8_e4m3 or "
       "f4_e2m1x2"},
      {R"({"format": "nvfp4", "scale_rule": "vllm", "row_scaled": true})",
       "quantizer.row_scaled is true: it does not go with scale_rule vllm"},
      {R"({"format": "nvfp4", "zero_sign": "drop", "element_rounding": "stochastic"})",
       "quantizer.element_rounding is stochastic: it does not go with zero_sign drop"},
      {R"({"format": "nvfp4", "element_rounding": "nearest_zero", "row_scaled": true})",
       "quantizer.row_scaled is true: it does not go with element_rounding nearest_zero"},
  };
  for (const auto& [json, message] : cases) {
    const auto rule = ParseQuantizerRuleText(json);
    ASSERT_TRUE(rule.ok()) << json << ": " << rule.status();
    EXPECT_EQ(std::string(CheckQuantizer(rule->spec).message()), message);
  }
  for (const char* json : {R"({"format": "identity", "zero_sign": "drop"})",
                           R"({"format": "fp8_tensor", "zero_sign": "flip"})",
                           R"({"format": "fp8_tensor", "scale_dtype": "bf16"})"}) {
    EXPECT_FALSE(ParseQuantizerRuleText(json).ok()) << json;
  }
}

TEST(LibrarySteps, KnobsOfRecipesAreTheFieldsOfQuantizers) {
  const auto spec = [](const char* text) {
    const auto recipe = Recipe::Parse(text);
    EXPECT_TRUE(recipe.ok()) << recipe.status();
    return recipe->QuantizerFor(TensorRole::kInput).rowwise;
  };
  const auto of_json = [](const char* json) { return ParseQuantizerRuleText(json)->spec; };
  EXPECT_EQ(spec("fp8_current:scale_rule=inverse,scale_dtype=source,element_operation=divide,"
                 "operation_dtype=source,zero_scale=dtype_epsilon,zero_sign=drop"),
            of_json(R"({"format": "fp8_tensor", "scale_rule": "inverse", "scale_dtype": "source",
                        "element_operation": "divide", "operation_dtype": "source",
                        "zero_scale": "dtype_epsilon", "zero_sign": "drop"})"));
  EXPECT_EQ(spec("mxfp4:scale_rule=modelopt,element_rounding=nearest_zero,zero_sign=negative"),
            of_json(R"({"format": "mxfp8", "element": "f4_e2m1x2", "scale_rule": "modelopt",
                        "element_rounding": "nearest_zero", "zero_sign": "negative"})"));
  EXPECT_EQ(spec("mxfp6_e2m3"), of_json(R"({"format": "mxfp8", "element": "f6_e2m3"})"));
  EXPECT_EQ(spec("mxfp6_e3m2"), of_json(R"({"format": "mxfp8", "element": "f6_e3m2"})"));
  EXPECT_EQ(spec("nvfp4:disable_rht=true,disable_stochastic_rounding=true,scale_rule=modelopt,"
                 "zero_sign=drop"),
            of_json(R"({"format": "nvfp4", "scale_rule": "modelopt", "zero_sign": "drop"})"));
  // What came after the first digests is named in them only where it says something.
  const Recipe plain = *Recipe::Parse("fp8_current");
  EXPECT_FALSE(absl::StrContains(plain.CanonicalText(), "zero_sign"));
  EXPECT_EQ(Recipe::Parse("fp8_current:zero_sign=keep")->CanonicalText(), plain.CanonicalText());
  const Recipe changed = *Recipe::Parse("fp8_current:zero_sign=drop");
  EXPECT_TRUE(absl::StrContains(changed.CanonicalText(), ",zero_sign=drop"));
  EXPECT_EQ(Recipe::Parse(changed.CanonicalText())->CanonicalText(), changed.CanonicalText());
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
