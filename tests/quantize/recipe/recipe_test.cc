// Recipes: defaults and knobs against docs/recipes.md section 1 and docs/quantizers.md sections
// 3 and 10.2, and what is refused.
#include "kernels/quantize/recipe/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;

Recipe Parsed(std::string_view text) {
  auto recipe = Recipe::Parse(text);
  EXPECT_TRUE(recipe.ok()) << recipe.status();
  return *std::move(recipe);
}

constexpr TensorRole kRoles[] = {TensorRole::kInput, TensorRole::kWeight, TensorRole::kGradOutput};

TEST(Recipe, Bf16QuantizesNothing) {
  const Recipe recipe = Parsed("bf16");
  EXPECT_FALSE(recipe.is_quantized());
  for (const TensorRole role : kRoles) {
    EXPECT_FALSE(recipe.QuantizerFor(role).rowwise.is_quantized());
  }
  EXPECT_EQ(recipe.activation_dtype(), std::nullopt);
  EXPECT_EQ(recipe.backward_override(), BackwardOverride::kNone);
}

TEST(Recipe, Fp8CurrentDefaults) {
  const Recipe recipe = Parsed("fp8_current");
  EXPECT_TRUE(recipe.is_quantized());
  const QuantizerSpec forward = {.format = QuantizerFormat::kFp8Tensor, .element = DType::kF8E4M3};
  const QuantizerSpec backward = {.format = QuantizerFormat::kFp8Tensor, .element = DType::kF8E5M2};
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    EXPECT_EQ(recipe.QuantizerFor(TensorRole::kInput).spec(usage), forward);
    EXPECT_EQ(recipe.QuantizerFor(TensorRole::kWeight).spec(usage), forward);
    EXPECT_EQ(recipe.QuantizerFor(TensorRole::kGradOutput).spec(usage), backward);
  }
  EXPECT_FALSE(recipe.UsesSplitAccumulator(GemmRole::kFprop));
  EXPECT_TRUE(recipe.UsesSplitAccumulator(GemmRole::kDgrad));
  EXPECT_TRUE(recipe.UsesSplitAccumulator(GemmRole::kWgrad));
}

TEST(Recipe, EveryKnobReachesTheQuantizer) {
  const auto spec = [](std::string_view text, TensorRole role) {
    return Parsed(text).QuantizerFor(role).rowwise;
  };
  const auto grad = TensorRole::kGradOutput, weight = TensorRole::kWeight,
             input = TensorRole::kInput;
  EXPECT_EQ(spec("fp8_current:fp8_format=e4m3", grad).element, DType::kF8E4M3);
  EXPECT_EQ(spec("fp8_current:scale_rule=reciprocal", input).scale_rule, ScaleRule::kReciprocal);
  EXPECT_EQ(spec("fp8_current:element_rounding=nearest_away", input).element_rounding,
            ElementRounding::kNearestAway);
  EXPECT_EQ(spec("fp8_current:overflow=nan", input).overflow, Overflow::kNan);
  for (const char* name : {"fp8_delayed", "fp8_current", "fp8_block", "mxfp8"}) {
    EXPECT_EQ(spec(name, weight).flush_subnormals, FlushSubnormals::kShardedUpdate);
    EXPECT_EQ(spec(std::string(name) + ":flush_subnormals=never", weight).flush_subnormals,
              FlushSubnormals::kNever);
  }
  EXPECT_EQ(spec("mxfp8:flush_subnormals=always", grad).flush_subnormals, FlushSubnormals::kAlways);
  EXPECT_EQ(spec(R"(hybrid:weight={"rowwise":{"format":"mxfp8","flush_subnormals":"always"},)"
                 R"("columnwise":"bf16"},fprop=mxfp8)",
                 weight)
                .flush_subnormals,
            FlushSubnormals::kAlways);
  for (const TensorRole role : kRoles) {
    EXPECT_TRUE(spec("fp8_current:power_2_scales=true", role).power_2_scale);
    EXPECT_EQ(spec("fp8_current:amax_epsilon=1e-3", role).amax_epsilon, 1e-3f);
    EXPECT_EQ(spec("fp8_current:power_2_scales_input=true", role).power_2_scale, role == input);
    EXPECT_EQ(spec("fp8_current:power_2_scales_weight=true", role).power_2_scale, role == weight);
    EXPECT_EQ(spec("fp8_current:power_2_scales_grad=true", role).power_2_scale, role == grad);
    EXPECT_EQ(spec("fp8_current:power_2_scales=true,power_2_scales_grad=false", role).power_2_scale,
              role != grad);
    EXPECT_EQ(spec("fp8_current:amax_epsilon=2,amax_epsilon_input=3", role).amax_epsilon,
              role == input ? 3 : 2);
    EXPECT_EQ(spec("fp8_current:amax_epsilon_weight=0.5", role).amax_epsilon,
              role == weight ? 0.5f : 0);
    EXPECT_EQ(spec("fp8_current:amax_epsilon_grad=0.5", role).amax_epsilon,
              role == grad ? 0.5f : 0);
  }
  const Recipe split = Parsed(
      "fp8_current:split_accumulator_fprop=true,split_accumulator_dgrad=false,split_accumulator_"
      "wgrad=false");
  EXPECT_TRUE(split.UsesSplitAccumulator(GemmRole::kFprop));
  EXPECT_FALSE(split.UsesSplitAccumulator(GemmRole::kDgrad));
  EXPECT_FALSE(split.UsesSplitAccumulator(GemmRole::kWgrad));
}

TEST(Recipe, KnobsOfAllRecipes) {
  for (const RecipeDescription& description : AllRecipes()) {
    // fp8_delayed has no override, and what layers do not take none of the two.
    const bool has_override =
        std::any_of(description.knobs.begin(), description.knobs.end(),
                    [](const KnobDescription& knob) { return knob.name == "backward_override"; });
    if (description.name == "fp8_delayed" || !has_override) continue;
    const Recipe recipe =
        Parsed(description.name + ":backward_override=dequant,activation_dtype=f16");
    EXPECT_EQ(recipe.backward_override(), BackwardOverride::kDequantized);
    EXPECT_EQ(recipe.activation_dtype(), DType::kF16);
    EXPECT_EQ(recipe.knobs().at("backward_override"), "dequantized");
  }
}

TEST(Recipe, ActivationDTypesHaveTheNamesOfOtherLibraries) {
  for (const char* name : {"bf16", "bfloat16", "torch.bfloat16", "BF16"}) {
    EXPECT_EQ(Parsed(std::string("mxfp8:activation_dtype=") + name).activation_dtype(),
              DType::kBF16);
  }
  EXPECT_FALSE(Recipe::Parse("mxfp8:activation_dtype=float64").ok());
}

TEST(Recipe, TextsRoundTrip) {
  const Recipe recipe =
      Parsed("fp8_current:power_2_scales=true,backward_override=unquant,amax_epsilon=0.10");
  EXPECT_EQ(recipe.ShortText(),
            "fp8_current:backward_override=high_precision,power_2_scales=true,amax_epsilon=0.1");
  EXPECT_EQ(Parsed(recipe.ShortText()).CanonicalText(), recipe.CanonicalText());
  EXPECT_EQ(Parsed(recipe.CanonicalText()).CanonicalText(), recipe.CanonicalText());
  EXPECT_EQ(Recipe::Create(recipe.name(), recipe.knobs())->Digest(), recipe.Digest());
  EXPECT_EQ(Parsed("fp8_current").ShortText(), "fp8_current");
  EXPECT_THAT(recipe.CanonicalText(), HasSubstr("power_2_scales_grad=true"));
  EXPECT_NE(Parsed("fp8_current").Digest(), recipe.Digest());
  EXPECT_EQ(recipe.Digest().size(), 64u);
  EXPECT_EQ(Parsed("fp8_current:amax_epsilon=-0").CanonicalText(),
            Parsed("fp8_current").CanonicalText());
}

TEST(Recipe, WithBackwardOverride) {
  const Recipe recipe = Parsed("fp8_current").WithBackwardOverride(BackwardOverride::kDequantized);
  EXPECT_EQ(recipe.ShortText(), "fp8_current:backward_override=dequantized");
  EXPECT_EQ(recipe.Digest(), Parsed("fp8_current:backward_override=dequantized").Digest());
}

TEST(Recipe, RefusesWithRecipeKnobValueAndChoices) {
  struct Case {
    const char* text;
    const char* message;
  };
  const Case cases[] = {
      {"fp9",
       "name is \"fp9\": unknown recipe; known: bf16, fp8_delayed, fp8_current, fp8_block, mxfp8, "
       "mxfp6_e2m3, mxfp6_e3m2, mxfp4, nvfp4, fp8_rowwise, int8, int4, nf4, bnb_fp4, hybrid, "
       "custom"},
      {"", "name is \"\": unknown recipe"},
      {"bf16:fp8_format=e4m3",
       "knobs[\"fp8_format\"] is \"e4m3\": a knob of fp8_delayed, fp8_current, fp8_block, mxfp8, "
       "fp8_rowwise, not of bf16; knobs of bf16: backward_override"},
      {"bf16:overflow=nan",
       "knobs[\"overflow\"] is \"nan\": a knob of fp8_delayed, fp8_current, fp8_block, mxfp8, "
       "mxfp6_e2m3, mxfp6_e3m2, mxfp4, nvfp4, fp8_rowwise, "
       "not of bf16; 0.1.0 ignored it: leave it out; knobs of bf16: backward_override, "
       "activation_dtype"},
      {"fp8_delayed:flush_subnormals=always",
       "knobs[\"flush_subnormals\"] is \"always\": must be one of sharded_update|never; a whole "
       "tensor's scale is given"},
      {"nvfp4:flush_subnormals=never",
       "knobs[\"flush_subnormals\"] is \"never\": a knob of fp8_delayed, fp8_current, fp8_block, "
       "mxfp8, fp8_rowwise, not of nvfp4"},
      {"bf16:scale_rule=reciprocal", "not of bf16; 0.1.0 ignored it: leave it out; knobs of"},
      {"bf16:scale_rule=divide",
       "knobs[\"scale_rule\"] is \"divide\": a knob of fp8_delayed, fp8_current, fp8_block, "
       "mxfp8, "},
      {"int8:backward_override=none", "knobs[\"backward_override\"] is \"none\": a knob of bf16, "},
      // 0.1.0 had no int8.
      {"int8:backward_override=none", "not of int8; knobs of int8: scale_rule"},
      // 0.1.0 refused values that no recipe had.
      {"bf16:element_rounding=nope", "not of bf16; knobs of bf16: backward_override"},
      {"bf16:element_rounding=nearest_zero", "not of bf16; knobs of bf16: backward_override"},
      {"hybrid:fprop={\"name\": \"bf16\", \"knobs\": {\"overflow\": \"nan\"}}",
       "not of bf16; 0.1.0 ignored it: leave it out; knobs of bf16: backward_override"},
      {"nvfp4:nvfp4_4over6_err_mode=mse",
       "knobs[\"nvfp4_4over6_err_mode\"] is \"mse\": has no effect while nvfp4_4over6 is none; "
       "give "
       "that too; 0.1.0 ignored it: leave it out"},
      {"nvfp4:nvfp4_4over6_e4m3_max=448", "has no effect while nvfp4_4over6 is none"},
      {"fp8_current:margin=0",
       "knobs[\"margin\"] is \"0\": a knob of fp8_delayed, not of fp8_current; knobs of "
       "fp8_current: backward_override"},
      {"fp8_current:colour=red",
       "knobs[\"colour\"] is \"red\": unknown knob; knobs of fp8_current: backward_override"},
      {"fp8_delayed:fp8_format=e5m2",
       "knobs[\"fp8_format\"] is \"e5m2\": must be one of hybrid|e4m3; pure E5M2 is of recipes "
       "with a scale from the tensor's own amax"},
      {"fp8_current:power_2_scales=1",
       "knobs[\"power_2_scales\"] is \"1\": must be one of false|true"},
      {"fp8_current:power_2_scales_grad=yes", "knobs[\"power_2_scales_grad\"] is \"yes\""},
      {"fp8_current:amax_epsilon=-1",
       "knobs[\"amax_epsilon\"] is \"-1\": must be one of float >= 0"},
      {"fp8_current:amax_epsilon=nan", "is \"nan\": must be one of float >= 0"},
      {"fp8_current:amax_epsilon=inf", "is \"inf\""},
      {"fp8_current:amax_epsilon=1e99", "is \"1e99\""},
      {"fp8_current:amax_epsilon=1x", "is \"1x\""},
      {"fp8_current:amax_epsilon=", "is \"\""},
      {"fp8_current:backward_override=off",
       "is \"off\": must be one of none|high_precision|dequantized"},
      {"bf16:activation_dtype=f8_e4m3",
       "knobs[\"activation_dtype\"] is \"f8_e4m3\": must be one of input|f32|bf16|f16"},
      {"fp8_current:", "no key=value after the colon"},
      {"fp8_current:fp8_format", "\"fp8_format\" is not key=value"},
      {"fp8_current:=1", "is not key=value"},
      {"fp8_current:overflow=nan,", "is not key=value"},
      {"fp8_current:overflow=nan,overflow=nan", "knobs[\"overflow\"] is \"nan\": is given twice"},
  };
  for (const Case& c : cases) {
    const auto recipe = Recipe::Parse(c.text);
    EXPECT_EQ(recipe.status().code(), absl::StatusCode::kInvalidArgument) << c.text;
    EXPECT_THAT(std::string(recipe.status().message()), HasSubstr(c.message));
  }
}

bool DoTheSame(const Recipe& a, const Recipe& b) {
  const auto delayed = [](const Recipe& recipe) {
    const DelayedScalingOptions& d = recipe.delayed_scaling();
    return std::tuple(d.margin, d.amax_history_len, d.algorithm, d.update, d.reduce_amax);
  };
  for (const TensorRole role : kRoles) {
    if (a.QuantizerFor(role) != b.QuantizerFor(role)) return false;
  }
  for (const GemmRole gemm : {GemmRole::kFprop, GemmRole::kDgrad, GemmRole::kWgrad}) {
    if (a.UsesSplitAccumulator(gemm) != b.UsesSplitAccumulator(gemm)) return false;
  }
  return a.backward_override() == b.backward_override() &&
         a.activation_dtype() == b.activation_dtype() && delayed(a) == delayed(b);
}

/// The knobs that hybrid and custom have beyond the common ones are JSON, tested with them.
TEST(AllRecipes, EveryListedKnobHasAnEffect) {
  // What else has to be given, first of all nothing.
  const std::pair<std::string_view, std::string_view> others[] = {
      {"", ""},
      {"int8", "zero_point=integer,"},
      {"int4", "zero_point=integer,"},
      {"int4", "scale_rule=gguf,"},
      {"fp8_block", "w_block_dim=1,"},
      {"fp8_block", "power_2_scales=false,"},
      {"nvfp4", "disable_rht=true,"},
      {"nvfp4", "disable_rht=true,disable_stochastic_rounding=true,"},
      {"nvfp4", "disable_rht=true,nvfp4_4over6=all,"}};
  int tried = 0;
  for (const RecipeDescription& description : AllRecipes()) {
    if (description.is_composed) continue;
    for (const KnobDescription& knob : description.knobs) {
      std::vector<std::string> values = absl::StrSplit(knob.values, '|');
      if (knob.values == "float >= 0") values = {"0.5"};
      if (knob.values.starts_with("integer")) values = {"7"};
      for (const std::string& value : values) {
        if (value == Parsed(description.name).knobs().at(knob.name)) continue;
        bool has_effect = false;
        for (const auto& [recipe, given] : others) {
          if (!recipe.empty() && recipe != description.name) continue;
          const std::string text = absl::StrCat(description.name, ":", std::string(given));
          const Recipe without = Parsed(text.substr(0, text.size() - 1));
          const auto with = Recipe::Parse(absl::StrCat(text, knob.name, "=", value));
          has_effect |= with.ok() && !DoTheSame(*with, without);
        }
        EXPECT_TRUE(has_effect) << description.name << ":" << knob.name << "=" << value;
        ++tried;
      }
    }
  }
  EXPECT_GT(tried, 30);
}

/// The knobs of each recipe, by the table of docs/recipes.md section 1: "all but a, b and c" or
/// names in the first column, `knob=...` in the second.
std::map<std::string, std::set<std::string>> DocumentedKnobs() {
  std::ifstream file(QUANTGATE_SOURCE_DIR "/docs/recipes.md");
  std::map<std::string, std::set<std::string>> knobs;
  bool is_inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("| recipe | knobs")) is_inside = true;
    if (!is_inside) continue;
    if (line.empty()) break;
    const std::vector<std::string> cells =
        absl::StrSplit(absl::StrReplaceAll(line, {{"\\|", ","}}), '|');
    if (cells.size() != 4) {
      ADD_FAILURE() << line;
      continue;
    }
    std::set<std::string> named;
    for (const auto word : absl::StrSplit(cells[1], absl::ByAnyChar(" ,`"), absl::SkipEmpty())) {
      named.emplace(word);
    }
    const bool is_all = named.contains("all");
    // Every other piece between backquotes is quoted.
    const std::vector<std::string> pieces = absl::StrSplit(cells[2], '`');
    for (const RecipeDescription& recipe : AllRecipes()) {
      if (named.contains(recipe.name) == is_all) continue;
      std::set<std::string>& own = knobs[recipe.name];
      for (size_t i = 1; i < pieces.size(); i += 2) {
        const size_t equals = pieces[i].find('=');
        if (equals != std::string::npos) own.insert(pieces[i].substr(0, equals));
      }
    }
  }
  return knobs;
}

TEST(AllRecipes, KnobsThatTheTableDoesNotGiveARecipeAreRefusedWhateverTheirValue) {
  const auto documented = DocumentedKnobs();
  std::map<std::string, std::set<std::string>> values;  // Every recipe's default, by knob.
  for (const auto& [name, knobs] : documented) {
    const Recipe recipe = Parsed(name);
    for (const std::string& knob : knobs) {
      const auto& resolved = recipe.knobs();
      ASSERT_TRUE(resolved.contains(knob)) << name << " " << knob;
      values[knob].insert(resolved.at(knob));
    }
  }
  int refused = 0;
  for (const RecipeDescription& recipe : AllRecipes()) {
    ASSERT_TRUE(documented.contains(recipe.name)) << recipe.name;
    const std::set<std::string>& own = documented.at(recipe.name);
    std::set<std::string> listed;
    for (const KnobDescription& knob : recipe.knobs) listed.insert(knob.name);
    EXPECT_EQ(listed, own) << recipe.name;
    for (const auto& [knob, defaults] : values) {
      for (const std::string& value : defaults) {
        const absl::Status status = Recipe::Create(recipe.name, {{knob, value}}).status();
        if (own.contains(knob)) {
          const bool is_default = value == Parsed(recipe.name).knobs().at(knob);
          EXPECT_TRUE(status.ok() || !is_default) << status;
          continue;
        }
        ++refused;
        EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << recipe.name << ":" << knob;
        EXPECT_THAT(std::string(status.message()),
                    HasSubstr(absl::StrCat("knobs[\"", knob, "\"]")));
        EXPECT_THAT(std::string(status.message()),
                    AllOf(HasSubstr(absl::StrCat(", not of ", recipe.name, "; ")),
                          HasSubstr(absl::StrCat("; knobs of ", recipe.name, ": "))));
      }
    }
  }
  EXPECT_GT(refused, 300);
}

/// What 0.1.0 wrote, and the digests that its reports hold.
TEST(AllRecipes, StoredTextsAreRead) {
  const std::string text =
      "bf16:activation_dtype=input,backward_override=none,element_rounding=nearest_even,"
      "overflow=saturate,scale_rule=divide";
  EXPECT_EQ(Parsed("bf16").CanonicalText(), text);
  ASSERT_TRUE(Recipe::ParseStored(text).ok());
  EXPECT_EQ(Recipe::ParseStored(text)->CanonicalText(), text);
  for (const std::string_view stored :
       {"bf16:overflow=nan", "bf16:scale_rule=reciprocal,element_rounding=nearest_away"}) {
    const auto recipe = Recipe::ParseStored(stored);
    ASSERT_TRUE(recipe.ok()) << recipe.status();
    EXPECT_EQ(recipe->CanonicalText(), text);
  }
  const auto nvfp4 =
      Recipe::ParseStored("nvfp4:nvfp4_4over6_e4m3_max=448,nvfp4_4over6_err_mode=mse");
  ASSERT_TRUE(nvfp4.ok()) << nvfp4.status();
  EXPECT_EQ(nvfp4->CanonicalText(), Parsed("nvfp4").CanonicalText());
  // Within other recipes too.
  const std::pair<std::string_view, std::string_view> composed[] = {
      {R"(hybrid:fprop={"knobs":{"overflow":"nan"},"name":"bf16"},dgrad=mxfp8,wgrad=mxfp8)",
       "hybrid:dgrad=mxfp8,wgrad=mxfp8"},
      {R"(custom:rules=[{"quantizer":{"knobs":{"nvfp4_4over6_err_mode":"mse"},"name":"nvfp4"}}])",
       R"(custom:rules=[{"quantizer":"nvfp4"}])"}};
  for (const auto& [old_text, now] : composed) {
    EXPECT_FALSE(Recipe::Parse(old_text).ok());
    const auto recipe = Recipe::ParseStored(old_text);
    ASSERT_TRUE(recipe.ok()) << recipe.status();
    EXPECT_EQ(recipe->CanonicalText(), Parsed(now).CanonicalText());
  }
  EXPECT_FALSE(Recipe::ParseStored("bf16:colour=red").ok());
  EXPECT_FALSE(Recipe::ParseStored("mxfp8:overflow=nope").ok());
}

/// Recipes with knobs that came after 0.1.0 keep the texts that it wrote, taken from what it
/// stored.
TEST(AllRecipes, LaterKnobsAreLeftOutWhileTheyHaveTheirDefaults) {
  const std::string text =
      "fp8_current:activation_dtype=input,amax_epsilon=0,amax_epsilon_grad=0,amax_epsilon_input=0,"
      "amax_epsilon_weight=0,backward_override=none,element_rounding=nearest_even,fp8_format="
      "hybrid,"
      "overflow=saturate,power_2_scales=false,power_2_scales_grad=false,power_2_scales_input=false,"
      "power_2_scales_weight=false,scale_rule=divide,split_accumulator_dgrad=true,"
      "split_accumulator_fprop=false,split_accumulator_wgrad=true";
  const Recipe plain = Parsed("fp8_current");
  EXPECT_EQ(plain.CanonicalText(), text);
  EXPECT_EQ(Recipe::ParseStored(text)->CanonicalText(), text);
  EXPECT_EQ(plain.knobs().at("flush_subnormals"), "sharded_update");
  EXPECT_EQ(plain.CanonicalKnobs().count("flush_subnormals"), 0u);
  EXPECT_EQ(Parsed("fp8_current:flush_subnormals=sharded_update").Digest(), plain.Digest());
  const Recipe never = Parsed("fp8_current:flush_subnormals=never");
  EXPECT_THAT(never.CanonicalText(),
              HasSubstr("element_rounding=nearest_even,flush_subnormals=never,"));
  EXPECT_NE(never.Digest(), plain.Digest());
  EXPECT_EQ(never.ShortText(), "fp8_current:flush_subnormals=never");
  EXPECT_EQ(Recipe::ParseStored(never.CanonicalText())->CanonicalText(), never.CanonicalText());
}

TEST(AllRecipes, DefaultsAreWhatCreateUses) {
  for (const RecipeDescription& description : AllRecipes()) {
    const Recipe recipe = Parsed(description.name);
    for (const KnobDescription& knob : description.knobs) {
      EXPECT_FALSE(knob.summary.empty());
      // A default that names another knob is that one's value: power_2_scales_input.
      const bool inherits = knob.name.starts_with(knob.default_value + "_");
      EXPECT_EQ(recipe.knobs().at(knob.name),
                inherits ? recipe.knobs().at(knob.default_value) : knob.default_value);
    }
  }
}

TEST(Roles, NamesRoundTrip) {
  for (const TensorRole role : kRoles) EXPECT_EQ(*ParseTensorRole(TensorRoleName(role)), role);
  EXPECT_FALSE(ParseTensorRole("dy").ok());
  EXPECT_EQ(GemmRoleName(GemmRole::kWgrad), "wgrad");
  EXPECT_EQ(*ParseBackwardOverride("default"), BackwardOverride::kNone);
  EXPECT_FALSE(ParseBackwardOverride("").ok());
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
