// Whatever the quantizers of this build write is explained: every recipe with each value of each of
// its knobs, every role, usage and layout of scales.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/quantize/quantizer.h"
#include "kernels/quantize/recipe/recipe.h"
#include "kernels/quantize/scale_layout.h"
#include "kernels/validate/explain/explain_codes.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::Contains;
using ::testing::StartsWith;

/// bf16 values whose blocks have amaxes of many sizes, so that 32 of any shape are distinct. Every
/// fourth block of 32 x 32 holds 6, whose scale is a power of two under every format of blocks, and
/// ties of E2M1, E4M3 and E5M2; its largest is 2688, so that NVFP4's tensor scale is 1.
const Tensor& Source(int64_t rows, int64_t columns) {
  static auto& made = *new std::map<std::pair<int64_t, int64_t>, Tensor>;
  Tensor& source = made[{rows, columns}];
  if (source.has_value()) return source;
  std::mt19937_64 random(17);
  const auto uniform = [&] { return static_cast<float>(random() >> 40) * 0x1p-24f; };
  std::vector<float> values(static_cast<size_t>(rows * columns));
  std::vector<float> sizes(static_cast<size_t>(rows / 32 * (columns / 32)));
  for (float& size : sizes) size = 0.5f + 64 * uniform() * uniform();
  constexpr float kTies[] = {2.5f, -5, 1.25f, 3.5f, 1.0625f, -1.125f, 1.1875f, 2.25f};
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      const int64_t block = row / 32 * (columns / 32) + column / 32;
      float& value = values[row * columns + column];
      value = sizes[block] * (uniform() + uniform() + uniform() + uniform() - 2);
      if (block % 4 != 3) continue;
      const int64_t at = row % 32 * 32 + column % 32;
      value = (row + column) % 16 == 0 ? 6.0f : kTies[at * 7 % 8];
    }
  }
  values[0] = 2688;
  return source = FromValues(DType::kBF16, {rows, columns}, values);
}

/// Of one direction, what the recipe says.
struct Direction {
  QuantizerSpec spec;
  Usage usage;
  ScaleLayout layout = ScaleLayout::kLogical;
  bool transposed() const {
    return usage == Usage::kColumnwise && spec.format != QuantizerFormat::kMxfp8;
  }
  /// The name before a rule's formula.
  std::string ScaleRule() const {
    if (spec.scaling == Scaling::kDelayed) return "given";
    const std::string rule(ScaleRuleName(ResolveScaleRule(spec.scale_rule, spec.format)));
    if (spec.four_over_six != FourOverSix::kNone) {
      return absl::StrCat(
          "two_level, nvfp4_4over6_err_mode=", std::string(FourOverSixName(spec.four_over_six)),
          ", nvfp4_4over6_e4m3_max=", spec.e4m3_max);
    }
    const bool has_source_maximum =
        spec.traits().scales == ScaleKind::kF32 || spec.traits().scales == ScaleKind::kLine;
    return absl::StrCat(rule, has_source_maximum ? " or maximum" : "",
                        spec.power_2_scale ? ", power of two" : "",
                        spec.row_scaled ? ", row_scaled_activation=true" : "");
  }
  std::string Block() const {
    const int length = BlockLength(spec.format);
    const std::string turned = transposed() ? " of the transpose" : "";
    if (spec.format == QuantizerFormat::kFp8Rowwise) return "one per row" + turned;
    if (length == 1) return "tensor" + turned;
    if (spec.block_dim == 2) {
      const bool is_replicated = spec.traits().is_micro || layout == ScaleLayout::kPackedUe8m0;
      return absl::StrCat(length, "x", length, is_replicated ? " replicated" : "", turned);
    }
    if (spec.format == QuantizerFormat::kMxfp8 && usage == Usage::kColumnwise) return "32x1";
    return absl::StrCat("1x", length, turned,
                        spec.hadamard ? ", Hadamard-transformed (disable_rht=false)" : "");
  }
  std::string Element() const {
    return spec.element == DType::kF4E2M1x2 ? "f4_e2m1" : std::string(DTypeName(spec.element));
  }
};

std::string Listed(const CodesExplanation& explanation) {
  std::string text;
  for (const CodesCandidate& c : explanation.candidates) {
    absl::StrAppend(&text, c.code_matches, "/", c.code_count, " ", c.scale_matches, "/",
                    c.scale_count, " ", c.element, " | ", c.block, " | ", c.scale_rule, " | ",
                    c.element_rule, "\n");
  }
  return absl::StrCat(text, absl::StrJoin(explanation.conclusion, "\n"));
}

/// Of a candidate's scale rules, without their formulas.
std::vector<std::string> NamesOf(const CodesCandidate& candidate) {
  std::vector<std::string> names = absl::StrSplit(candidate.scale_rule, "; also ");
  for (std::string& name : names) name.resize(std::min(name.find(": "), name.size()));
  return names;
}

void ExpectExplained(const CodesExplanation& explanation, const Direction& direction) {
  const QuantizerSpec& spec = direction.spec;
  // A single scale gives its rule away, but is no evidence for it (docs/quantizers.md section 1.6).
  EXPECT_EQ(explanation.is_established, TraitsOf(spec.format).has_many_scales());
  const CodesCandidate* right = nullptr;
  for (const CodesCandidate& candidate : explanation.candidates) {
    if (!candidate.is_entire() || candidate.element != direction.Element()) continue;
    const std::vector<std::string> blocks = absl::StrSplit(candidate.block, " or ");
    const std::vector<std::string> rules = NamesOf(candidate);
    if (std::find(blocks.begin(), blocks.end(), direction.Block()) == blocks.end() ||
        std::find(rules.begin(), rules.end(), direction.ScaleRule()) == rules.end()) {
      continue;
    }
    // nearest_away is nearest_even where no tie tells them apart.
    std::string rounding(ElementRoundingName(spec.element_rounding));
    const auto& untold = candidate.evidence.untold_roundings;
    if (std::find(untold.begin(), untold.end(), rounding) != untold.end())
      rounding = "nearest_even";
    const bool may_be_nan = candidate.evidence.overflow_count > 0;
    const char* overflow =
        may_be_nan && spec.overflow == Overflow::kNan ? "overflow to NaN" : "saturate";
    if (!absl::StrContains(candidate.element_rule, absl::StrCat(", ", rounding)) ||
        !absl::StrContains(candidate.element_rule, overflow)) {
      continue;
    }
    right = &candidate;
  }
  ASSERT_NE(right, nullptr) << direction.Element() << " " << direction.Block() << " "
                            << direction.ScaleRule() << "\n"
                            << Listed(explanation);
  EXPECT_EQ(right->is_established, explanation.is_established) << Listed(explanation);
  // Nothing of another shape or element.
  for (const CodesCandidate& candidate : explanation.candidates) {
    if (!candidate.is_entire()) continue;
    EXPECT_EQ(candidate.element, right->element) << Listed(explanation);
    EXPECT_EQ(candidate.block, right->block) << Listed(explanation);
  }
  // Each way is one row.
  std::set<std::string> rows;
  for (const CodesCandidate& c : explanation.candidates) {
    for (const std::string& rule : NamesOf(c)) {
      const std::string row = absl::StrCat(c.element, "|", c.block, "|", rule, "|", c.element_rule);
      EXPECT_TRUE(rows.insert(row).second) << row;
    }
  }
}

/// Quantizes by `quantizer` and explains each direction of a spec and layout that is not in `seen`.
void Walk(const Quantizer& quantizer, std::vector<std::pair<Direction, ScaleLayout>>& seen) {
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    const Direction direction{quantizer.spec(usage), usage};
    const QuantizerSpec& spec = direction.spec;
    if (!spec.is_quantized()) continue;
    const int length = BlockLength(spec.format);
    const bool has_wide_tiles = spec.block_dim == 2 && length >= 64;
    // At least 32 blocks of distinct amaxes, and more than one along a line.
    const Tensor& source = has_wide_tiles ? Source(32, 40 * length)
                           : length > 128 ? Source(288, 288)
                                          : Source(192, 256);
    QuantizeArguments arguments;
    arguments.seed = 7;
    if (spec.scaling == Scaling::kDelayed) arguments.scale = *Tensor::FromScalar(24.0f);
    const Usages both = {true, true};
    ASSERT_TRUE(CheckQuantization(source.dtype(), source.shape(), quantizer, both).ok());
    const QuantizedTensor quantized = *QuantizeCpu(source, quantizer, both, arguments, {});
    const QuantizedCopy& copy = *quantized.copy(usage);
    ExplainCodesRequest request;
    request.source = source;
    // What columnwise codes are of, where they are of rowwise ones.
    if (usage == Usage::kColumnwise &&
        quantizer.columnwise_source == ColumnwiseSource::kRowwiseDequantized) {
      request.source = *DequantizeCpu(quantized, Usage::kRowwise, source.dtype(), {});
    }
    request.codes = copy.data;
    request.amax = copy.amax;
    const ScaleArray array = {copy.format, copy.block_dim, usage, source.rows(), source.columns()};
    for (const ScaleLayout layout : kScaleLayouts) {
      if (layout != ScaleLayout::kLogical && !ScaleArrayTypeOf(array, layout).ok()) continue;
      const bool has_f32 = spec.traits().scales == ScaleKind::kF32;
      if (HoldsE8m0(layout) && has_f32 && !spec.power_2_scale) continue;
      // A layout of scales depends neither on their rule nor on the elements.
      const auto is_same = [&](const std::pair<Direction, ScaleLayout>& known) {
        const QuantizerSpec& other = known.first.spec;
        if (known.second != layout || known.first.usage != usage) return false;
        if (layout == ScaleLayout::kLogical) return other == spec;
        return other.format == spec.format && other.block_dim == spec.block_dim;
      };
      if (std::any_of(seen.begin(), seen.end(), is_same)) continue;
      seen.emplace_back(direction, layout);
      SCOPED_TRACE(absl::StrCat(QuantizerText(quantizer), "; ", std::string(UsageName(usage)), ", ",
                                std::string(ScaleLayoutName(layout))));
      request.scale_layout = layout;
      request.scale_inv =
          layout == ScaleLayout::kLogical
              ? copy.scale_inv
              : *ConvertScales(copy.scale_inv, array, ScaleLayout::kLogical, layout);
      const auto explanation = ExplainCodes(request, {});
      ASSERT_TRUE(explanation.ok()) << explanation.status();
      ExpectExplained(*explanation, {spec, usage, layout});
    }
  }
}

void WalkRecipe(const Recipe& recipe, std::vector<std::pair<Direction, ScaleLayout>>& seen) {
  SCOPED_TRACE(recipe.ShortText());
  for (const TensorRole role : {TensorRole::kInput, TensorRole::kWeight, TensorRole::kGradOutput}) {
    Walk(recipe.QuantizerFor(role), seen);
  }
}

/// Some values go with another knob alone.
const char* NeededBeside(const std::string& recipe, const std::string& setting) {
  const bool is_nvfp4 = recipe == "nvfp4", needs_no_power_2 = recipe == "fp8_block";
  if (absl::StartsWith(setting, "nvfp4_4over6=") || setting == "row_scaled_activation=true") {
    return ",disable_rht=true";
  }
  if (setting == "x_block_dim=2" || setting == "grad_block_dim=2") return ",w_block_dim=1";
  for (const char* library : {"=torchao_two_level", "=torchao_single_level", "=compressed_tensors",
                              "=modelopt", "=qwix", "=vllm", "=nearest_zero"}) {
    if (absl::EndsWith(setting, library) && is_nvfp4) {
      return ",disable_rht=true,disable_stochastic_rounding=true";
    }
  }
  if (absl::StartsWith(setting, "zero_sign=") && is_nvfp4) {
    return ",disable_rht=true,disable_stochastic_rounding=true";
  }
  if (setting == "scale_rule=inverse" || setting == "scale_rule=qwix") {
    return needs_no_power_2 ? ",power_2_scales=false" : "";
  }
  if (absl::StartsWith(setting, "nvfp4_4over6_e")) return ",nvfp4_4over6=all,disable_rht=true";
  return "";
}

/// Whether a setting gives a step of another library, which only library_rules_test holds to it.
bool IsLibraryStep(const Recipe& recipe) {
  for (const TensorRole role : {TensorRole::kInput, TensorRole::kWeight, TensorRole::kGradOutput}) {
    const Quantizer& quantizer = recipe.QuantizerFor(role);
    if (quantizer.rowwise.has_library_steps() || quantizer.columnwise.has_library_steps()) {
      return true;
    }
  }
  return false;
}

class ExplainRecipes : public testing::TestWithParam<std::string> {};

TEST_P(ExplainRecipes, EveryValueOfEveryKnobIsExplained) {
  const auto& all = AllRecipes();
  const auto described = std::find_if(all.begin(), all.end(), [](const RecipeDescription& recipe) {
    return recipe.name == GetParam();
  });
  std::vector<std::pair<Direction, ScaleLayout>> seen;
  WalkRecipe(*Recipe::Parse(described->name), seen);
  for (const KnobDescription& knob : described->knobs) {
    if (!absl::StrContains(knob.values, "|")) continue;
    for (const absl::string_view value : absl::StrSplit(knob.values, '|')) {
      const std::string setting = absl::StrCat(knob.name, "=", value);
      const std::string text =
          absl::StrCat(described->name, ":", setting, NeededBeside(described->name, setting));
      const auto recipe = Recipe::Parse(text);
      ASSERT_TRUE(recipe.ok()) << text << ": " << recipe.status();
      if (!IsLibraryStep(*recipe)) WalkRecipe(*recipe, seen);
    }
  }
  EXPECT_GE(seen.size(), described->name == "fp8_delayed" ? 4u : 8u);
}

std::vector<std::string> PlainRecipes() {
  std::vector<std::string> names;
  for (const RecipeDescription& recipe : AllRecipes()) {
    if (recipe.is_composed || recipe.is_codes_only) continue;
    if (Recipe::Parse(recipe.name)->is_quantized()) {
      names.push_back(recipe.name);
    }
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, ExplainRecipes, testing::ValuesIn(PlainRecipes()),
                         [](const auto& recipe) { return recipe.param; });

// What only composed recipes have: narrow elements, tiles for every role, directions that differ,
// codes of codes.
TEST(ExplainComposedRecipes, AreExplained) {
  std::vector<std::pair<Direction, ScaleLayout>> seen;
  for (const char* rule :
       {R"({"format":"mxfp8","element":"f6_e2m3"})", R"({"format":"mxfp8","element":"f6_e3m2"})",
        R"({"format":"mxfp8","element":"f4_e2m1x2","scale_rule":"floor"})",
        R"({"format":"mxfp8","element":"f4_e2m1x2","block_dim":2})",
        R"({"format":"mxfp8","element":"f6_e2m3","block_dim":2,"scale_rule":"even"})"}) {
    WalkRecipe(*Recipe::Parse(absl::StrCat("custom:rules=[{\"quantizer\":", rule, "}]")), seen);
  }
  for (const char* text :
       {"hybrid:fprop=mxfp8,dgrad=mxfp8,wgrad=nvfp4",
        "hybrid:fprop=mxfp8,dgrad=mxfp8,wgrad=mxfp8,columnwise_source=rowwise_dequantized",
        "hybrid:fprop=nvfp4,dgrad=mxfp8,wgrad=mxfp8,columnwise_source=rowwise_dequantized",
        "nvfp4:row_scaled_activation=true,disable_rht=true",
        "nvfp4:element_rounding=stochastic,scale_rule=single_level"}) {
    const auto recipe = Recipe::Parse(text);
    ASSERT_TRUE(recipe.ok()) << recipe.status();
    WalkRecipe(*recipe, seen);
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
