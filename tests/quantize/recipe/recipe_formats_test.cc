// The recipes of docs/quantizers.md sections 2 and 4 to 7: each knob in the quantizer that it
// changes, hybrid and custom in all their forms, and what is refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "kernels/quantize/recipe/recipe.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;

constexpr auto kInput = TensorRole::kInput, kWeight = TensorRole::kWeight,
               kGrad = TensorRole::kGradOutput;
constexpr TensorRole kRoles[] = {kInput, kWeight, kGrad};
constexpr auto kRow = Usage::kRowwise, kColumn = Usage::kColumnwise;

Recipe Parsed(std::string_view text) {
  auto recipe = Recipe::Parse(text);
  EXPECT_TRUE(recipe.ok()) << recipe.status();
  return recipe.ok() ? *std::move(recipe) : *Recipe::Parse("bf16");
}

QuantizerSpec SpecOf(std::string_view text, TensorRole role, Usage usage = kRow) {
  return Parsed(text).QuantizerFor(role).spec(usage);
}

std::string MessageOf(std::string_view text) {
  const auto recipe = Recipe::Parse(text);
  EXPECT_EQ(recipe.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(recipe.status().message());
}

std::vector<bool> SplitsOf(std::string_view text) {
  const Recipe recipe = Parsed(text);
  return {recipe.UsesSplitAccumulator(GemmRole::kFprop),
          recipe.UsesSplitAccumulator(GemmRole::kDgrad),
          recipe.UsesSplitAccumulator(GemmRole::kWgrad)};
}

const std::vector<bool> kFastForward = {false, true, true};
const std::vector<bool> kAlwaysSplit = {true, true, true};

TEST(Fp8Delayed, DefaultsAndKnobs) {
  const Recipe recipe = Parsed("fp8_delayed");
  EXPECT_TRUE(recipe.is_delayed());
  EXPECT_FALSE(Parsed("fp8_current").is_delayed());
  const DelayedScalingOptions& options = recipe.delayed_scaling();
  EXPECT_EQ(options.margin, 0);
  EXPECT_EQ(options.amax_history_len, 1024);
  EXPECT_EQ(options.algorithm, AmaxAlgorithm::kMax);
  EXPECT_EQ(options.update, ScaleUpdate::kFused);
  EXPECT_TRUE(options.reduce_amax);
  EXPECT_EQ(SplitsOf("fp8_delayed"), kFastForward);
  for (const TensorRole role : kRoles) {
    const QuantizerSpec spec = SpecOf("fp8_delayed", role);
    EXPECT_EQ(spec.format, QuantizerFormat::kFp8Tensor);
    EXPECT_EQ(spec.scaling, Scaling::kDelayed);
    EXPECT_EQ(spec.element, role == kGrad ? DType::kF8E5M2 : DType::kF8E4M3);
    EXPECT_EQ(SpecOf("fp8_delayed", role, kColumn), spec);
  }
  const DelayedScalingOptions changed =
      Parsed(
          "fp8_delayed:margin=-3,amax_history_len=16,amax_compute_algo=most_recent,update=unfused,"
          "reduce_amax=false")
          .delayed_scaling();
  EXPECT_EQ(changed, (DelayedScalingOptions{-3, 16, AmaxAlgorithm::kMostRecent,
                                            ScaleUpdate::kUnfused, false}));
  EXPECT_EQ(SpecOf("fp8_delayed:fp8_format=e4m3", kGrad).element, DType::kF8E4M3);
}

TEST(Fp8Block, DefaultsAndKnobs) {
  for (const TensorRole role : kRoles) {
    QuantizerSpec expected;
    expected.format = QuantizerFormat::kFp8Block;
    expected.power_2_scale = true;
    expected.block_dim = role == kWeight ? 2 : 1;
    EXPECT_EQ(SpecOf("fp8_block", role), expected);
    EXPECT_EQ(SpecOf("fp8_block", role, kColumn), expected);
    EXPECT_FALSE(SpecOf("fp8_block:power_2_scales=false", role).power_2_scale);
    EXPECT_EQ(SpecOf("fp8_block:amax_epsilon=0.5", role).amax_epsilon, 0.5f);
    EXPECT_EQ(SpecOf("fp8_block:fp8_format=hybrid", role).element,
              role == kGrad ? DType::kF8E5M2 : DType::kF8E4M3);
    EXPECT_EQ(SpecOf("fp8_block:w_block_dim=1,x_block_dim=2", role).block_dim,
              role == kInput ? 2 : 1);
    EXPECT_EQ(SpecOf("fp8_block:w_block_dim=1,grad_block_dim=2", role).block_dim,
              role == kGrad ? 2 : 1);
  }
  EXPECT_EQ(SplitsOf("fp8_block"), kAlwaysSplit);
}

TEST(Fp8Block, GroupsOfOtherLengthsAreFormats) {
  for (const TensorRole role : kRoles) {
    QuantizerSpec expected = SpecOf("fp8_block", role);
    EXPECT_EQ(SpecOf("fp8_block:group_size=128", role), expected);
    expected.format = QuantizerFormat::kFp8Block32;
    EXPECT_EQ(SpecOf("fp8_block:group_size=32", role), expected);
    expected.format = QuantizerFormat::kFp8Block64;
    EXPECT_EQ(SpecOf("fp8_block:group_size=64", role), expected);
    expected.format = QuantizerFormat::kFp8Block256;
    EXPECT_EQ(SpecOf("fp8_block:group_size=256", role, kColumn), expected);
  }
}

TEST(Fp8, E5m2InEveryRole) {
  for (const TensorRole role : kRoles) {
    for (const char* recipe : {"fp8_current", "fp8_rowwise", "fp8_block", "mxfp8"}) {
      QuantizerSpec expected = SpecOf(recipe, role);
      expected.element = DType::kF8E5M2;
      EXPECT_EQ(SpecOf(absl::StrCat(recipe, ":fp8_format=e5m2"), role), expected) << recipe;
    }
  }
}

TEST(Mxfp8, DefaultsAndKnobs) {
  for (const TensorRole role : kRoles) {
    QuantizerSpec expected;
    expected.format = QuantizerFormat::kMxfp8;
    EXPECT_EQ(SpecOf("mxfp8", role), expected);
    EXPECT_EQ(SpecOf("mxfp8", role, kColumn), expected);
    EXPECT_EQ(SpecOf("mxfp8:fp8_format=hybrid", role).element,
              role == kGrad ? DType::kF8E5M2 : DType::kF8E4M3);
    EXPECT_EQ(SpecOf("mxfp8:enable_2d_quantization=true", role).block_dim, role == kWeight ? 2 : 1);
    EXPECT_EQ(SpecOf("mxfp8:scale_rule=floor", role).scale_rule, ScaleRule::kFloor);
    EXPECT_EQ(SpecOf("mxfp8:scale_rule=ceil", role).scale_rule, ScaleRule::kCeil);
    EXPECT_EQ(SpecOf("mxfp8:scale_rule=even", role).scale_rule, ScaleRule::kEven);
    EXPECT_EQ(SpecOf("mxfp8:scale_rule=nearest", role).scale_rule, ScaleRule::kNearest);
    EXPECT_EQ(SpecOf("mxfp8:scale_rule=round_up", role), expected);
    EXPECT_EQ(SpecOf("mxfp8:element_rounding=nearest_away", role).element_rounding,
              ElementRounding::kNearestAway);
    EXPECT_EQ(SpecOf("mxfp8:overflow=nan", role).overflow, Overflow::kNan);
  }
}

TEST(Nvfp4, DefaultsAreTheTableOfSlots) {
  for (const TensorRole role : kRoles) {
    QuantizerSpec expected;
    expected.format = QuantizerFormat::kNvfp4;
    expected.element = DType::kF4E2M1x2;
    expected.block_dim = role == kWeight ? 2 : 1;
    if (role == kGrad) expected.element_rounding = ElementRounding::kStochastic;
    EXPECT_EQ(SpecOf("nvfp4", role), expected);
    expected.hadamard = role != kWeight;
    EXPECT_EQ(SpecOf("nvfp4", role, kColumn), expected);
    EXPECT_EQ(Parsed("nvfp4").RoundsStochastically(role), role == kGrad);
    EXPECT_FALSE(SpecOf("nvfp4:disable_rht=true", role, kColumn).hadamard);
    EXPECT_FALSE(Parsed("nvfp4:disable_stochastic_rounding=true").RoundsStochastically(role));
    EXPECT_TRUE(Parsed("nvfp4:element_rounding=stochastic").RoundsStochastically(role));
    EXPECT_EQ(SpecOf("nvfp4:disable_2d_quantization=true", role).block_dim, 1);
    EXPECT_EQ(SpecOf("nvfp4:disable_rht=true,row_scaled_activation=true", role).row_scaled,
              role == kInput);
    EXPECT_EQ(SpecOf("nvfp4:scale_rule=single_level", role).scale_rule, ScaleRule::kSingleLevel);
  }
}

TEST(Nvfp4, FourOverSixByScopeErrorAndBound) {
  struct Case {
    const char* text;
    bool input, weight;
    FourOverSix mode;
    int bound;
  };
  const Case cases[] = {
      {"nvfp4", false, false, FourOverSix::kNone, 448},
      {"nvfp4:nvfp4_4over6=weights", false, true, FourOverSix::kMae, 256},
      {"nvfp4:nvfp4_4over6=activations,disable_rht=true,nvfp4_4over6_e4m3_max=448", true, false,
       FourOverSix::kMae, 448},
      {"nvfp4:nvfp4_4over6=all,disable_rht=true,nvfp4_4over6_err_mode=mse", true, true,
       FourOverSix::kMse, 256},
  };
  for (const Case& one : cases) {
    for (const TensorRole role : kRoles) {
      const bool covered = role == kInput ? one.input : role == kWeight && one.weight;
      const QuantizerSpec spec = SpecOf(one.text, role);
      EXPECT_EQ(spec.four_over_six, covered ? one.mode : FourOverSix::kNone) << one.text;
      EXPECT_EQ(spec.e4m3_max, covered ? one.bound : 448) << one.text;
    }
  }
}

TEST(Hybrid, TakesEachDirectionFromItsGemm) {
  const Recipe recipe = Parsed("hybrid:fprop=mxfp8,dgrad=nvfp4,wgrad=fp8_block");
  EXPECT_EQ(recipe.QuantizerFor(kInput).rowwise, SpecOf("mxfp8", kInput));
  EXPECT_EQ(recipe.QuantizerFor(kWeight).rowwise, SpecOf("mxfp8", kWeight));
  EXPECT_EQ(recipe.QuantizerFor(kGrad).rowwise, SpecOf("nvfp4", kGrad, kRow));
  EXPECT_EQ(recipe.QuantizerFor(kWeight).columnwise, SpecOf("nvfp4", kWeight, kColumn));
  EXPECT_EQ(recipe.QuantizerFor(kInput).columnwise, SpecOf("fp8_block", kInput, kColumn));
  EXPECT_EQ(recipe.QuantizerFor(kGrad).columnwise, SpecOf("fp8_block", kGrad, kColumn));
  EXPECT_EQ(recipe.ShortText(), "hybrid:fprop=mxfp8,dgrad=nvfp4,wgrad=fp8_block");
  EXPECT_TRUE(recipe.RoundsStochastically(kGrad));
  EXPECT_EQ(SplitsOf("hybrid:fprop=fp8_block,dgrad=mxfp8,wgrad=fp8_block"), kAlwaysSplit);
  EXPECT_EQ(SplitsOf("hybrid:fprop=fp8_current"), kFastForward);
  // The same format everywhere is the recipe itself.
  for (const std::string name : {"fp8_current", "fp8_block", "mxfp8", "nvfp4"}) {
    const Recipe same = Parsed("hybrid:fprop=" + name + ",dgrad=" + name + ",wgrad=" + name);
    for (const TensorRole role : kRoles) {
      EXPECT_EQ(same.QuantizerFor(role), Parsed(name).QuantizerFor(role)) << name;
    }
    EXPECT_EQ(SplitsOf(same.ShortText()), SplitsOf(name));
  }
}

TEST(Hybrid, WithoutKnobsQuantizesNothing) {
  EXPECT_FALSE(Parsed("hybrid").is_quantized());
  EXPECT_FALSE(Parsed("custom").is_quantized());
  const Recipe forward = Parsed("hybrid:fprop=mxfp8");
  EXPECT_TRUE(forward.is_quantized());
  EXPECT_TRUE(forward.QuantizerFor(kInput).rowwise.is_quantized());
  EXPECT_FALSE(forward.QuantizerFor(kInput).columnwise.is_quantized());
  EXPECT_FALSE(forward.QuantizerFor(kGrad).rowwise.is_quantized());
}

TEST(Hybrid, ComponentsHaveKnobsAsJson) {
  const std::string text =
      R"(hybrid:fprop={"name": "fp8_current", "knobs": {"power_2_scales": true, "amax_epsilon": 0.5,)"
      R"( "fp8_format": "hybrid"}},dgrad={"name":"mxfp8"},columnwise_source=rowwise_dequantized)";
  const Recipe recipe = Parsed(text);
  EXPECT_TRUE(recipe.QuantizerFor(kWeight).rowwise.power_2_scale);
  EXPECT_EQ(recipe.QuantizerFor(kWeight).rowwise.amax_epsilon, 0.5f);
  EXPECT_EQ(recipe.QuantizerFor(kWeight).columnwise.format, QuantizerFormat::kMxfp8);
  EXPECT_EQ(recipe.QuantizerFor(kInput).columnwise_source, ColumnwiseSource::kRowwiseDequantized);
  // Canonical: what differs from the defaults, keys sorted, names where nothing does.
  EXPECT_EQ(
      recipe.ShortText(),
      R"(hybrid:fprop={"knobs":{"amax_epsilon":"0.5","power_2_scales":"true"},"name":"fp8_current"},)"
      R"(dgrad=mxfp8,columnwise_source=rowwise_dequantized)");
  EXPECT_EQ(Parsed(recipe.ShortText()).Digest(), recipe.Digest());
  EXPECT_EQ(Parsed(recipe.CanonicalText()).Digest(), recipe.Digest());
}

TEST(Hybrid, RolesOverrideGemms) {
  const Recipe recipe =
      Parsed(R"(hybrid:fprop=nvfp4,dgrad=nvfp4,wgrad=nvfp4,)"
             R"(weight={"rowwise": {"name": "nvfp4", "knobs": {"disable_2d_quantization": true}},)"
             R"( "columnwise_source": "rowwise_dequantized"})");
  EXPECT_EQ(recipe.QuantizerFor(kWeight).rowwise.block_dim, 1);
  EXPECT_EQ(recipe.QuantizerFor(kWeight).columnwise.block_dim, 2);
  EXPECT_EQ(recipe.QuantizerFor(kWeight).columnwise_source, ColumnwiseSource::kRowwiseDequantized);
  EXPECT_EQ(recipe.QuantizerFor(kInput).columnwise_source, ColumnwiseSource::kOriginal);
  EXPECT_EQ(Parsed(recipe.ShortText()).Digest(), recipe.Digest());
}

TEST(Custom, TheFirstRuleThatFits) {
  const std::string text =
      R"(custom:rules=[{"tensor_type": "weight", "quantizer": {"format": "mxfp8", "block_dim": 2}},)"
      R"({"module_type": "grouped_linear", "quantizer": "mxfp8"},)"
      R"({"tensor_type": "grad_output", "rowwise": "mxfp8", "columnwise": "nvfp4"},)"
      R"({"module_type": "linear", "rowwise": "mxfp8", "columnwise": "nvfp4",)"
      R"( "columnwise_source": "original"}])";
  const Recipe recipe = Parsed(text);
  EXPECT_EQ(recipe.QuantizerFor(kWeight),
            Parsed("mxfp8:enable_2d_quantization=true").QuantizerFor(kWeight));
  EXPECT_EQ(recipe.QuantizerFor(kGrad).rowwise, SpecOf("mxfp8", kGrad));
  EXPECT_EQ(recipe.QuantizerFor(kGrad).columnwise, SpecOf("nvfp4", kGrad, kColumn));
  EXPECT_EQ(recipe.QuantizerFor(kInput).columnwise, SpecOf("nvfp4", kInput, kColumn));
  EXPECT_EQ(SplitsOf(text), kFastForward);
  EXPECT_EQ(Parsed(recipe.ShortText()).Digest(), recipe.Digest());
}

TEST(Custom, ModuleTypesHaveRulesOfTheirOwn) {
  const Recipe recipe =
      Parsed(R"(custom:rules=[{"module_type": "grouped_linear", "quantizer": "nvfp4"},)"
             R"({"module_type": "linear", "tensor_type": "weight", "quantizer": "fp8_block"},)"
             R"({"tensor_type": "weight", "quantizer": "mxfp8"}, {"quantizer": "fp8_block"}])");
  const Recipe grouped = recipe.ForModule({ModuleType::kGroupedLinear});
  for (const TensorRole role : {kInput, kWeight, kGrad}) {
    EXPECT_EQ(grouped.QuantizerFor(role), Parsed("nvfp4").QuantizerFor(role));
    EXPECT_EQ(recipe.QuantizerFor(role), Parsed("fp8_block").QuantizerFor(role));
    EXPECT_EQ(grouped.ForModule({}).QuantizerFor(role), recipe.QuantizerFor(role));
  }
  EXPECT_TRUE(grouped.RoundsStochastically(kGrad));
  EXPECT_FALSE(recipe.RoundsStochastically(kGrad));
  EXPECT_EQ(grouped.Digest(), recipe.Digest());
  const Recipe experts_alone =
      Parsed(R"(custom:rules=[{"module_type":"grouped_linear","quantizer":"mxfp8"},)"
             R"({"quantizer":"bf16"}])");
  EXPECT_FALSE(experts_alone.is_quantized());
  EXPECT_TRUE(experts_alone.ForModule({ModuleType::kGroupedLinear}).is_quantized());
}

TEST(Hybrid, DelayedScalingByDirection) {
  const Recipe recipe = Parsed(
      R"(hybrid:fprop={"name":"fp8_delayed","knobs":{"margin":2}},dgrad=mxfp8,wgrad=fp8_current)");
  EXPECT_TRUE(recipe.is_delayed());
  EXPECT_EQ(recipe.delayed_scaling().margin, 2);
  EXPECT_EQ(recipe.QuantizerFor(kWeight).delayed_directions(), std::vector<Usage>{kRow});
  EXPECT_EQ(recipe.QuantizerFor(kInput).delayed_directions(), std::vector<Usage>{kRow});
  EXPECT_TRUE(recipe.QuantizerFor(kGrad).delayed_directions().empty());
  const Recipe all = Parsed("hybrid:fprop=fp8_delayed,dgrad=fp8_delayed,wgrad=fp8_delayed");
  for (const TensorRole role : kRoles) {
    EXPECT_EQ(all.QuantizerFor(role), Parsed("fp8_delayed").QuantizerFor(role));
    EXPECT_EQ(all.QuantizerFor(role).delayed_directions(), std::vector<Usage>{kRow});
  }
  const Recipe turned = Parsed(
      "hybrid:fprop=fp8_delayed,dgrad=fp8_delayed,wgrad=fp8_delayed,"
      "columnwise_source=rowwise_dequantized");
  EXPECT_EQ(turned.QuantizerFor(kGrad).delayed_directions(), (std::vector<Usage>{kRow, kColumn}));
  const Recipe by_name = Parsed(
      R"(custom:rules=[{"layer_name":"fc1","quantizer":"fp8_delayed"},{"quantizer":"bf16"}])");
  EXPECT_TRUE(by_name.is_delayed());
  EXPECT_FALSE(by_name.is_quantized());
  EXPECT_EQ(Parsed(recipe.ShortText()).Digest(), recipe.Digest());
}

TEST(Custom, IdentityWithAnElement) {
  const Recipe recipe = Parsed(
      R"(custom:rules=[{"tensor_type":"weight","rowwise":{"format":"identity","element":"bfloat16"}},)"
      R"({"tensor_type":"input","rowwise":{"element":"bf16","format":"identity"}},)"
      R"({"quantizer":{"format":"identity"}}])");
  EXPECT_EQ(recipe.QuantizerFor(kInput).rowwise.element, DType::kBF16);
  EXPECT_TRUE(recipe.QuantizerFor(kWeight).rowwise.casts());
  EXPECT_FALSE(recipe.QuantizerFor(kWeight).columnwise.makes_copy());
  EXPECT_EQ(recipe.QuantizerFor(kGrad), Quantizer());
  EXPECT_TRUE(recipe.is_quantized());
  EXPECT_FALSE(Parsed(R"(custom:rules=[{"quantizer":{"format":"identity"}}])").is_quantized());
  EXPECT_EQ(recipe.ShortText(),
            R"(custom:rules=[{"rowwise":{"element":"bf16","format":"identity"},)"
            R"("tensor_type":"weight"},{"rowwise":{"element":"bf16","format":"identity"},)"
            R"("tensor_type":"input"},{"quantizer":{"format":"identity"}}])");
  EXPECT_EQ(Parsed(recipe.ShortText()).Digest(), recipe.Digest());
}

TEST(Custom, ADirectionAlone) {
  const Recipe forward = Parsed(R"(custom:rules=[{"tensor_type":"grad_output","quantizer":"bf16"},)"
                                R"({"rowwise":"mxfp8"}])");
  for (const TensorRole role : {kInput, kWeight}) {
    EXPECT_EQ(forward.QuantizerFor(role).rowwise, SpecOf("mxfp8", role));
    EXPECT_EQ(forward.QuantizerFor(role).columnwise, QuantizerSpec());
  }
  for (const TensorRole role : kRoles) {
    EXPECT_EQ(forward.QuantizerFor(role), Parsed("hybrid:fprop=mxfp8").QuantizerFor(role));
  }
  EXPECT_EQ(forward.ShortText(),
            R"(custom:rules=[{"quantizer":"bf16","tensor_type":"grad_output"},)"
            R"({"rowwise":"mxfp8"}])");
  const Recipe wgrad = Parsed(R"(custom:rules=[{"tensor_type":"weight","quantizer":"bf16"},)"
                              R"({"columnwise":{"format":"fp8_tensor"}}])");
  EXPECT_EQ(wgrad.QuantizerFor(kGrad).columnwise.format, QuantizerFormat::kFp8Tensor);
  for (const TensorRole role : kRoles) {
    EXPECT_EQ(wgrad.QuantizerFor(role).rowwise, QuantizerSpec());
  }
  EXPECT_EQ(Parsed(wgrad.ShortText()).Digest(), wgrad.Digest());
}

TEST(Custom, RulesByTheNamesOfLayersAndModules) {
  const Recipe recipe =
      Parsed(R"(custom:rules=[{"module_path":"dec?der.*.fc1","quantizer":"mxfp8"},)"
             R"({"layer_name":"*.mlp","tensor_type":"grad_output","quantizer":"nvfp4"},)"
             R"({"layer_name":"head","quantizer":"fp8_block"},)"
             R"({"module_type":"linear","quantizer":"nvfp4"}])");
  EXPECT_TRUE(recipe.DependsOnModule());
  struct Case {
    ModulePlace place;
    const char* same;
  };
  const Case cases[] = {
      {{ModuleType::kLinear, "decoder.0.mlp", "fc1"}, "mxfp8"},
      {{ModuleType::kLinear, "decoder", "0.fc1"}, "mxfp8"},
      {{ModuleType::kLinear, "decoder.0.fc1", ""}, "mxfp8"},
      {{ModuleType::kLinear, "decoder.fc1", ""}, "nvfp4"},
      {{ModuleType::kLinear, "deccoder.0.mlp", "fc1"}, "nvfp4"},
      {{ModuleType::kLinear, "decoder.0.mlp", "fc12"}, "nvfp4"},
      {{ModuleType::kLinear, "decoder.0.mlp", "fc2"}, "nvfp4"},
      {{ModuleType::kLinear, "head", ""}, "fp8_block"},
      {{ModuleType::kGroupedLinear, "head", ""}, "fp8_block"},
      {{ModuleType::kLinear, "heads", ""}, "nvfp4"},
      {{}, "nvfp4"},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.place.Text());
    const Recipe there = recipe.ForModule(one.place);
    EXPECT_TRUE(there.CheckModule().ok()) << there.CheckModule();
    EXPECT_EQ(there.Digest(), recipe.Digest());
    for (const TensorRole role : kRoles) {
      EXPECT_EQ(there.QuantizerFor(role), Parsed(one.same).QuantizerFor(role));
    }
  }
  const Recipe experts = recipe.ForModule({ModuleType::kGroupedLinear, "moe.mlp", ""});
  EXPECT_THAT(std::string(experts.CheckModule().message()),
              HasSubstr("custom: no rule fits input of a grouped_linear \"moe.mlp\""));
  EXPECT_TRUE(experts.CheckRole(kGrad).ok());
  EXPECT_FALSE(experts.CheckRole(kWeight).ok());
  EXPECT_EQ(experts.QuantizerFor(kWeight), Quantizer());
  EXPECT_EQ(recipe.ShortText(),
            R"(custom:rules=[{"module_path":"dec?der.*.fc1","quantizer":"mxfp8"},)"
            R"({"layer_name":"*.mlp","quantizer":"nvfp4","tensor_type":"grad_output"},)"
            R"({"layer_name":"head","quantizer":"fp8_block"},)"
            R"({"module_type":"linear","quantizer":"nvfp4"}])");
  EXPECT_EQ(Parsed(recipe.ShortText()).Digest(), recipe.Digest());
}

TEST(Custom, RulesThatDependOnTheModuleAreJudgedThere) {
  const Recipe linear = Parsed(R"(custom:rules=[{"module_type":"linear","quantizer":"mxfp8"}])");
  EXPECT_TRUE(linear.CheckModule().ok());
  EXPECT_THAT(std::string(linear.ForModule({ModuleType::kGroupedLinear}).CheckModule().message()),
              HasSubstr("custom: no rule fits input of a grouped_linear; end with one that fits"));
  const Recipe mixed =
      Parsed(R"(custom:rules=[{"module_type":"grouped_linear","tensor_type":"weight",)"
             R"("quantizer":"nvfp4"},{"quantizer":"mxfp8"}])");
  EXPECT_TRUE(mixed.CheckModule().ok());
  EXPECT_THAT(std::string(mixed.ForModule({ModuleType::kGroupedLinear}).CheckModule().message()),
              HasSubstr("custom: grouped_linear: fprop reads input rowwise (mxfp8) and weight "
                        "rowwise (nvfp4); both sides of a GEMM must have one scaling mode"));
}

TEST(Custom, QuantizersByTheirFields) {
  const Recipe recipe = Parsed(
      R"(custom:rules=[{"tensor_type":"input","quantizer":{"format":"nvfp4","4over6":"mse",)"
      R"("e4m3_max":256}},{"quantizer":{"format":"nvfp4","block_dim":1,)"
      R"("element_rounding":"nearest_away","scale_rule":"two_level","overflow":"saturate"}}])");
  EXPECT_EQ(recipe.QuantizerFor(kInput).rowwise.four_over_six, FourOverSix::kMse);
  EXPECT_EQ(recipe.QuantizerFor(kInput).rowwise.e4m3_max, 256);
  EXPECT_EQ(recipe.QuantizerFor(kGrad).rowwise.element_rounding, ElementRounding::kNearestAway);
  EXPECT_EQ(recipe.ShortText(),
            R"(custom:rules=[{"quantizer":{"4over6":"mse","e4m3_max":256,"format":"nvfp4"},)"
            R"("tensor_type":"input"},{"quantizer":{"element_rounding":"nearest_away",)"
            R"("format":"nvfp4"}}])");
  const Recipe narrow =
      Parsed(R"(custom:rules=[{"quantizer":{"format":"mxfp8","element":"f6_e2m3"}}])");
  EXPECT_EQ(narrow.QuantizerFor(kWeight).rowwise.element, DType::kF6E2M3);
  const Recipe block = Parsed(
      R"(custom:rules=[{"quantizer":{"format":"fp8_block","power_2_scale":true,"amax_epsilon":0.1}}])");
  EXPECT_EQ(block.QuantizerFor(kWeight).rowwise.amax_epsilon, 0.1f);
  EXPECT_THAT(block.ShortText(), HasSubstr(R"("amax_epsilon":0.1,)"));
}

TEST(Refused, ByName) {
  struct Case {
    const char* text;
    const char* message;
  };
  const Case cases[] = {
      {"fp8_delayed:fp8_format=e5m2", "pure E5M2 is of recipes with a scale from the tensor's own"},
      {"fp8_block:group_size=128,w_block_dim=1,group_size=16", "given twice"},
      {"fp8_block:group_size=16", "knobs[\"group_size\"] is \"16\": must be one of 128|32|64|256"},
      {"fp8_block:group_size=64,x_block_dim=2",
       "fp8_block: fprop reads input rowwise (64x64 blocks) and weight rowwise (64x64 blocks); "
       "2-D by 2-D blocks are refused: one side must have 1x64 blocks"},
      {"fp8_delayed:backward_override=dequantized",
       "knobs[\"backward_override\"] is \"dequantized\": must be one of none; delayed scaling has "
       "no "
       "backward override"},
      {"fp8_delayed:margin=1.5",
       "knobs[\"margin\"] is \"1.5\": must be one of integer -100 to 100"},
      {"fp8_delayed:amax_history_len=0", "must be one of integer 1 to 1048576"},
      {"fp8_block:x_block_dim=2",
       "fp8_block: fprop reads input rowwise (128x128 blocks) and weight rowwise (128x128 "
       "blocks); 2-D by 2-D blocks are refused: one side must have 1x128 blocks"},
      {"fp8_block:grad_block_dim=2", "fp8_block: dgrad reads grad_output rowwise (128x128"},
      {"fp8_block:w_block_dim=1,x_block_dim=2,grad_block_dim=2",
       "fp8_block: wgrad reads grad_output columnwise (128x128"},
      {"fp8_block:x_block_dim=3", "knobs[\"x_block_dim\"] is \"3\": must be one of 1|2"},
      {"mxfp8:scale_rule=divide",
       "knobs[\"scale_rule\"] is \"divide\": must be one of round_up|floor|ceil|even|nearest"},
      {"mxfp8:element_rounding=stochastic", "must be one of nearest_even|nearest_away"},
      {"nvfp4:nvfp4_4over6=all",
       "knobs[\"nvfp4_4over6\"] is \"all\": needs disable_rht=true: 4over6 does not go "
       "with the Hadamard transform"},
      {"nvfp4:nvfp4_4over6=activations", "needs disable_rht=true"},
      {"nvfp4:nvfp4_4over6=weights,element_rounding=stochastic",
       "nvfp4: weight: quantizer.4over6 is mae: it compares codes rounded to nearest even, "
       "and "
       "element_rounding is stochastic"},
      {"nvfp4:row_scaled_activation=true",
       "knobs[\"row_scaled_activation\"] is \"true\": needs disable_rht=true"},
      {"nvfp4:row_scaled_activation=true,disable_rht=true,element_rounding=stochastic",
       "nvfp4: input: quantizer.row_scaled is true: it does not go with stochastic "
       "rounding"},
      {"nvfp4:nvfp4_4over6_e4m3_max=300", "must be one of 256|448"},
      {"hybrid:fprop=fp8_delayed,dgrad={\"name\":\"fp8_delayed\",\"knobs\":{\"margin\":1}}",
       "knobs[\"margin\"] is \"1\": the quantizers of a recipe with delayed scaling have "
       "one "
       "value of it, and another has \"0\""},
      {"custom:rules=[{\"layer_name\":\"a\",\"quantizer\":\"fp8_delayed\"},{\"quantizer\":{"
       "\"name\":"
       "\"fp8_delayed\",\"knobs\":{\"update\":\"unfused\"}}}]",
       "knobs[\"update\"] is \"unfused\": the quantizers of a recipe with delayed scaling"},
      {"hybrid:fprop=fp8_delayed,backward_override=dequantized",
       "knobs[\"backward_override\"] is \"dequantized\": delayed scaling has no backward override"},
      {"hybrid:fprop=fp8_delayed,weight={\"rowwise\":\"mxfp8\"}",
       "hybrid: fprop reads input rowwise (fp8_tensor) and weight rowwise (mxfp8)"},
      {"hybrid:fprop=hybrid", "knobs[\"fprop\"] is hybrid: does not go into another recipe"},
      {"hybrid:fprop=fp9", "knobs[\"fprop\"].name is \"fp9\": unknown recipe"},
      {"hybrid:fprop={\"name\":\"mxfp8\",\"knobs\":{\"activation_dtype\":\"bf16\"}}",
       "knobs[\"fprop\"].knobs[\"activation_dtype\"] is \"bf16\": belongs to the whole recipe"},
      {"hybrid:fprop=mxfp8,weight={\"rowwise\":\"fp8_block\"}",
       "hybrid: fprop reads input rowwise (mxfp8) and weight rowwise (fp8_block); both "
       "sides of a GEMM must have one scaling mode"},
      {"hybrid:dgrad=mxfp8,weight={\"columnwise\":\"bf16\"}",
       "hybrid: dgrad reads grad_output rowwise (mxfp8) and weight columnwise (not "
       "quantized); no GEMM multiplies codes by high precision"},
      {"hybrid:wgrad=nvfp4,input={\"columnwise\":{\"name\":\"nvfp4\",\"knobs\":{\"disable_rht\":"
       "true}}}",
       "hybrid: wgrad reads grad_output columnwise (Hadamard) and input columnwise (no "
       "Hadamard); a Hadamard transform cancels only where both sides have it"},
      {"hybrid:dgrad=nvfp4,weight={\"columnwise\":{\"format\":\"nvfp4\",\"hadamard\":true}}",
       "hybrid: weight: hadamard true; weights are never transformed"},
      {"hybrid:columnwise_source=rowwise", "must be one of original|rowwise_dequantized"},
      {"hybrid:input={\"diagonal\":\"mxfp8\"}",
       "unknown key \"diagonal\"; known: columnwise, columnwise_source, rowwise"},
      {"hybrid:input=mxfp8", "knobs[\"input\"] is \"mxfp8\": not valid JSON"},
      {"hybrid:fprop={", "not valid JSON"},
      {"hybrid:fprop={\"name\":\"mxfp8\",\"name\":\"bf16\"}",
       "the key \"name\" stands twice in one object"},
      {"custom:rules=[{\"quantizer\":{\"name\":\"mxfp8\",\"knobs\":{\"overflow\":\"nan\","
       "\"overflow\":\"saturate\"}}}]",
       "the key \"overflow\" stands twice in one object"},
      {"custom:rules=[{\"tensor_type\":\"input\",\"quantizer\":\"mxfp8\"},"
       "{\"quantizer\":\"mxfp8\",\"quantizer\":\"bf16\"}]",
       "the key \"quantizer\" stands twice in one object"},
      {"custom:rules=[]", "knobs[\"rules\"] is \"[]\": must be a list of 1 to 64 rules"},
      {"custom:rules=[{\"tensor_type\":\"weight\",\"quantizer\":\"mxfp8\"}]",
       "no rule fits input of a linear; end with one that fits everything"},
      {"custom:rules=[{\"layer_name\":\"fc 1\",\"quantizer\":\"mxfp8\"}]",
       "knobs[\"rules\"][0].layer_name is \"fc 1\": must be a name"},
      {"custom:rules=[{\"module_path\":5,\"quantizer\":\"mxfp8\"}]",
       "knobs[\"rules\"][0].module_path is 5: must be a name"},
      {"custom:rules=[{\"tensor_type\":\"bias\",\"quantizer\":\"mxfp8\"}]",
       "knobs[\"rules\"][0].tensor_type is \"bias\": must be one of input, weight, "
       "grad_output"},
      {"custom:rules=[{\"module_type\":\"conv\",\"quantizer\":\"mxfp8\"}]",
       "knobs[\"rules\"][0].module_type is \"conv\": must be one of linear, grouped_linear"},
      {"custom:rules=[{\"rowwise\":\"mxfp8\",\"quantizer\":\"mxfp8\"}]",
       "a rule has either \"quantizer\" or \"rowwise\", \"columnwise\" or both"},
      {"custom:rules=[{\"columnwise_source\":\"original\"}]", "a rule has either \"quantizer\" or"},
      {"custom:rules=[{\"tensor_type\":\"weight\",\"rowwise\":\"mxfp8\"},{\"quantizer\":\"mxfp8\"}"
       "]",
       "custom: dgrad reads grad_output rowwise (mxfp8) and weight columnwise (not quantized)"},
      {"custom:rules=[{\"tensor_type\":\"input\",\"columnwise\":\"mxfp8\"},"
       "{\"quantizer\":\"mxfp8\"}]",
       "custom: fprop reads input rowwise (not quantized) and weight rowwise (mxfp8)"},
      {"custom:rules=[{\"quantizer\":{\"format\":\"mxfp8\",\"colour\":1}}]",
       "unknown key \"colour\"; known: 4over6, amax_epsilon, block_dim"},
      {"custom:rules=[{\"quantizer\":{\"format\":\"mxfp8\",\"block_dim\":\"2\"}}]",
       "[0].quantizer.block_dim is \"2\": must be a small whole number"},
      {"custom:rules=[{\"quantizer\":{\"format\":\"fp7\"}}]",
       "[0].quantizer.format is \"fp7\": must be one of identity, fp8_tensor, fp8_block, mxfp8, "
       "nvfp4"},
      {"custom:rules=[{\"quantizer\":{\"format\":\"mxfp8\",\"power_2_scale\":true}}]",
       "custom: input: quantizer.power_2_scale is true: not a field of mxfp8"},
      {"custom:rules=[{\"quantizer\":{\"format\":\"nvfp4\",\"hadamard\":true}}]",
       "custom: input: quantizer.rowwise.hadamard is true"},
      {"custom:rules=[{\"quantizer\":{\"format\":\"identity\",\"element\":\"u8\"}}]",
       "knobs[\"rules\"][0].quantizer.element is \"u8\": identity casts to f32, bf16 or f16"},
      {"custom:rules=[{\"quantizer\":{\"format\":\"identity\",\"element\":\"f8_e4m3\"}}]",
       "[0].quantizer.element is \"f8_e4m3\": identity casts to f32, bf16 or f16"},
      {"hybrid:fprop={\"format\":\"identity\",\"element\":\"f16\"},"
       "weight={\"rowwise\":{\"format\":\"identity\",\"element\":\"bf16\"}}",
       "hybrid: fprop reads input rowwise (f16) and weight rowwise (bf16); no GEMM multiplies two "
       "high-precision types"},
      {"custom:rules=[{\"tensor_type\":\"input\",\"quantizer\":{\"format\":\"identity\","
       "\"element\":\"f16\"}},{\"quantizer\":\"mxfp8\"}]",
       "custom: fprop reads input rowwise (not quantized) and weight rowwise (mxfp8)"},
      {"custom:rules=[{\"quantizer\":{\"overflow\":\"saturate\",\"format\":\"identity\"}}]",
       "quantizer.overflow is \"saturate\": not a field of identity"},
      {"hybrid:weight={\"rowwise\":{\"format\":\"identity\",\"scale_rule\":\"divide\"}}",
       "knobs[\"weight\"].rowwise.scale_rule is \"divide\": not a field of identity"},
      {"hybrid:fprop={\"format\":\"identity\",\"element_rounding\":\"nearest_away\"}",
       "knobs[\"fprop\"].element_rounding is \"nearest_away\": not a field of identity"},
      {"custom:rules=5", "must be a list of 1 to 64 rules"},
  };
  for (const Case& one : cases) EXPECT_THAT(MessageOf(one.text), HasSubstr(one.message));
}

TEST(Refused, JsonIsBounded) {
  const std::string deep(20 << 10, '[');
  EXPECT_THAT(MessageOf("custom:rules=" + deep),
              HasSubstr("JSON of 20480 bytes; a knob has at most 16384"));
  EXPECT_THAT(MessageOf("custom:rules=" + deep.substr(0, 16000)),
              HasSubstr("nested deeper than 16"));
  std::string many = "[";
  for (int i = 0; i < 65; ++i) many += "{\"quantizer\":\"bf16\"},";
  many.back() = ']';
  EXPECT_THAT(MessageOf("custom:rules=" + many), HasSubstr("a list of 1 to 64 rules"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
