// The list of a custom recipe as a whole: rules for results, which rules decide nothing in given
// modules, and that rules are judged for modules that are there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/quantize/recipe/recipe.h"

namespace quantgate {
namespace QG_TEST_FILE {

using enum TensorRole;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string Custom(const std::string& rules) { return absl::StrCat("custom:rules=[", rules, "]"); }

Recipe Parsed(const std::string& text) {
  auto recipe = Recipe::Parse(text);
  EXPECT_TRUE(recipe.ok()) << recipe.status();
  return recipe.ok() ? *std::move(recipe) : *Recipe::Parse("bf16");
}

std::string MessageOf(const std::string& text) {
  const auto recipe = Recipe::Parse(text);
  EXPECT_EQ(recipe.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(recipe.status().message());
}

const std::vector<TensorRole> kAll = {kInput, kWeight, kGradOutput, kOutput, kGradInput};
RuledModule Linear(const std::string& layer, const std::string& unit = "") {
  return {{ModuleType::kLinear, layer, unit}, kAll};
}

TEST(ResultRules, AreThoseThatNameTheResult) {
  const Recipe all = Parsed(Custom(R"({"quantizer":"mxfp8"})"));
  for (const TensorRole role : {kOutput, kGradInput}) {
    EXPECT_FALSE(all.QuantizerFor(role).rowwise.is_quantized()) << TensorRoleName(role);
  }
  const Recipe recipe = Parsed(Custom(R"({"tensor_type":"output","quantizer":"fp8_current"},)"
                                      R"({"tensor_type":"grad_input","rowwise":"fp8_current"},)"
                                      R"({"quantizer":"mxfp8"})"));
  // As TE's recipes fill the slots: the output as an input, the grad_input as a grad_output.
  EXPECT_EQ(recipe.QuantizerFor(kOutput).rowwise.format, QuantizerFormat::kFp8Tensor);
  EXPECT_EQ(recipe.QuantizerFor(kOutput).rowwise.element, DType::kF8E4M3);
  EXPECT_EQ(recipe.QuantizerFor(kGradInput).rowwise.element, DType::kF8E5M2);
  for (const TensorRole role : {kOutput, kGradInput}) {
    EXPECT_FALSE(recipe.QuantizerFor(role).columnwise.makes_copy());
  }
  EXPECT_EQ(recipe.QuantizerFor(kInput).rowwise.format, QuantizerFormat::kMxfp8);
}

TEST(ResultRules, AreNotOperands) {
  const Recipe recipe = Parsed(Custom(R"({"tensor_type":"output","quantizer":"mxfp8"},)"
                                      R"({"quantizer":"bf16"})"));
  EXPECT_FALSE(recipe.is_quantized());
  EXPECT_FALSE(ParseTensorRole("output").ok());
  EXPECT_EQ(TensorRoleName(kOutput), "output");
  EXPECT_EQ(TensorRoleName(kGradInput), "grad_input");
}

TEST(ResultRules, Nvfp4RoundsGradInputsStochasticallyAndTransformsNeither) {
  const Recipe recipe = Parsed(Custom(R"({"tensor_type":"output","quantizer":"nvfp4"},)"
                                      R"({"tensor_type":"grad_input","quantizer":"nvfp4"},)"
                                      R"({"quantizer":"bf16"})"));
  EXPECT_FALSE(recipe.RoundsStochastically(kOutput));
  EXPECT_TRUE(recipe.RoundsStochastically(kGradInput));
  EXPECT_FALSE(recipe.QuantizerFor(kOutput).rowwise.hadamard);
}

TEST(ResultRules, TextsRoundTrip) {
  const Recipe recipe = Parsed(Custom(R"({"quantizer":"mxfp8","tensor_type":"grad_input"},)"
                                      R"({"quantizer":"bf16"})"));
  EXPECT_THAT(recipe.CanonicalText(),
              HasSubstr(R"({"quantizer":"mxfp8","tensor_type":"grad_input"})"));
  EXPECT_EQ(Parsed(recipe.CanonicalText()).Digest(), recipe.Digest());
  EXPECT_EQ(Recipe::ParseStored(recipe.CanonicalText())->CanonicalText(), recipe.CanonicalText());
}

TEST(ResultRules, RefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"tensor_type":"output","columnwise":"mxfp8"})",
       "output has the values of its rowwise codes, and nothing reads columnwise ones"},
      {R"({"tensor_type":"grad_input","rowwise":"mxfp8","columnwise":"mxfp8"})", "columnwise"},
      {R"({"tensor_type":"output","quantizer":"mxfp8","columnwise_source":"original"})",
       "columnwise_source"},
      {R"({"tensor_type":"output","quantizer":"fp8_delayed"})", "output has no delayed scaling"},
      {R"({"tensor_type":"grad_input","rowwise":"fp8_delayed"})",
       "grad_input has no delayed scaling"},
      {R"({"tensor_type":"output","quantizer":{"format":"identity","element":"f16"}})",
       "output stays in the activation dtype"},
      {R"({"tensor_type":"output","quantizer":{"format":"nvfp4","hadamard":true}})", "output: "},
      {R"({"tensor_type":"y","quantizer":"mxfp8"})",
       "must be one of input, weight, grad_output, output, grad_input"},
  };
  for (const auto& [rule, message] : cases) {
    EXPECT_THAT(MessageOf(Custom(absl::StrCat(rule, R"(,{"quantizer":"bf16"})"))),
                HasSubstr(message))
        << rule;
  }
}

TEST(UnusedRules, OnlyCustomRecipesHaveRules) {
  const RuledModule modules[] = {Linear("a")};
  EXPECT_THAT(Parsed("mxfp8").UnusedRules(modules, "layer"), IsEmpty());
  EXPECT_THAT(Parsed("hybrid:fprop=mxfp8").UnusedRules(modules, "layer"), IsEmpty());
  EXPECT_THAT(Parsed("custom").UnusedRules(modules, "layer"), IsEmpty());
}

TEST(UnusedRules, SayWhy) {
  const Recipe recipe =
      Parsed(Custom(R"({"layer_name":"a","quantizer":"mxfp8"},)"
                    R"({"layer_name":"c*","quantizer":"mxfp8"},)"
                    R"({"module_path":"a","tensor_type":"weight","quantizer":"bf16"},)"
                    R"({"quantizer":"fp8_block"},)"
                    R"({"tensor_type":"weight","quantizer":"bf16"},)"
                    R"({"module_type":"grouped_linear","quantizer":"bf16"},)"
                    R"({"layer_name":"b","tensor_type":"output","quantizer":"mxfp8"})"));
  const RuledModule modules[] = {Linear("a"), Linear("b")};
  EXPECT_THAT(
      recipe.UnusedRules(modules, "session"),
      ElementsAre(
          R"(rules[1] of the recipe, {"layer_name":"c*","quantizer":"mxfp8"}, )"
          "fits no module of the session",
          R"(rules[2] of the recipe, {"module_path":"a","quantizer":"bf16","tensor_type":"weight"}, )"
          "decides nothing: rules before it fit all that it fits",
          R"(rules[4] of the recipe, {"quantizer":"bf16","tensor_type":"weight"}, )"
          "decides nothing: rules before it fit all that it fits",
          R"(rules[5] of the recipe, {"module_type":"grouped_linear","quantizer":"bf16"}, )"
          "fits no module of the session"));
  // Without the module that a rule is for, it is that rule's turn.
  const RuledModule other[] = {Linear("b")};
  const std::vector<std::string> sentences = recipe.UnusedRules(other, "layer");
  ASSERT_EQ(sentences.size(), 5u);
  EXPECT_THAT(sentences[0], HasSubstr("rules[0]"));
  EXPECT_THAT(sentences[0], HasSubstr("fits no module of the layer"));
}

TEST(UnusedRules, ATensorThatIsNotThere) {
  // An operation quantize that no module reads has an input alone.
  const Recipe recipe =
      Parsed(Custom(R"({"module_path":"q","tensor_type":"weight","quantizer":"bf16"},)"
                    R"({"quantizer":"mxfp8"})"));
  const RuledModule modules[] = {{{ModuleType::kLinear, "", "q"}, {kInput}}};
  EXPECT_THAT(recipe.UnusedRules(modules, "layer"),
              ElementsAre(HasSubstr("fits no tensor of the layer that is quantized")));
}

// A list that depends on the module is judged for modules that are there. What is refused of one
// module is none of another's business.
TEST(RulesOfAbsentModules, AreNotJudged) {
  const std::string bad[] = {
      R"("tensor_type":"weight","quantizer":{"format":"nvfp4","hadamard":true})",
      R"("tensor_type":"weight","quantizer":"bf16")",
  };
  for (const std::string& rule : bad) {
    SCOPED_TRACE(rule);
    const Recipe recipe = Parsed(
        Custom(absl::StrCat(R"({"layer_name":"absent",)", rule, R"(},{"quantizer":"mxfp8"})")));
    EXPECT_TRUE(recipe.ForModule({ModuleType::kLinear, "here", ""}).CheckModule().ok());
    EXPECT_EQ(recipe.ForModule({ModuleType::kLinear, "absent", ""}).CheckModule().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(RulesOfAbsentModules, DelayedScalingUnderAnOverride) {
  const std::string rules =
      R"(rules=[{"layer_name":"absent","quantizer":"fp8_delayed"},{"quantizer":"mxfp8"}])";
  const Recipe recipe = Parsed(absl::StrCat("custom:backward_override=dequantized,", rules));
  EXPECT_TRUE(recipe.ForModule({ModuleType::kLinear, "here", ""}).CheckModule().ok());
  const absl::Status status = recipe.ForModule({ModuleType::kLinear, "absent", ""}).CheckModule();
  EXPECT_THAT(std::string(status.message()), HasSubstr("delayed scaling has no backward override"));
  // Where every module has it, it is refused when the recipe is made.
  EXPECT_THAT(
      MessageOf("custom:backward_override=dequantized,rules=[{\"quantizer\":\"fp8_delayed\"}]"),
      HasSubstr("delayed scaling has no backward override"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
