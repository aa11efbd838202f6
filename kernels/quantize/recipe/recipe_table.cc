#include "kernels/quantize/recipe/recipe_table.h"

#include <charconv>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace quantgate {
namespace {

using Choices = std::vector<std::string_view>;

const Choices kFalseTrue = {"false", "true"};
const Choices kTrueFalse = {"true", "false"};
const Choices kFlushChoices = {"sharded_update", "never", "always"};

Knob Choice(std::string_view name, Choices choices, std::string_view summary) {
  return {name, KnobKind::kChoice, std::move(choices), summary};
}

Knob BackwardOverrideKnob() {
  Knob knob = Choice(
      "backward_override", {"none", "high_precision", "dequantized"},
      "operands of dgrad and wgrad: quantized, the originals, or the dequantized rowwise copies");
  knob.synonyms = {{"default", "none"}, {"unquant", "high_precision"}, {"dequant", "dequantized"}};
  return knob;
}

Knob ActivationKnob() {
  return Choice("activation_dtype", {"input", "f32", "bf16", "f16"},
                "dtype of activations and high-precision GEMMs; input: the dtype of x");
}

Knob OptionalChoice(std::string_view name, Choices choices, std::string_view summary) {
  Knob knob = Choice(name, std::move(choices), summary);
  knob.is_later = true;
  return knob;
}

/// The index of scale_rule in CommonKnobs.
constexpr size_t kScaleRuleKnob = 2;

/// The knobs that every recipe of one format has.
std::vector<Knob> CommonKnobs(Choices scale_rules, std::string_view scale_summary,
                              Choices roundings = {"nearest_even", "nearest_away", "nearest_zero"},
                              Choices overflows = {"saturate", "nan"}) {
  return {
      BackwardOverrideKnob(),
      ActivationKnob(),
      Choice("scale_rule", std::move(scale_rules), scale_summary),
      Choice("element_rounding", std::move(roundings), "rounding of the element cast"),
      Choice("overflow", std::move(overflows),
             "elements beyond the largest finite value: to it, or to NaN (E5M2: infinity)"),
      OptionalChoice("zero_sign", {"keep", "drop", "drop_rounded", "negative"},
                     "zeros keep their sign or are +0, also what rounds to zero, or are -0"),
  };
}

std::vector<Knob> Fp32ScaleKnobs() {
  std::vector<Knob> knobs =
      CommonKnobs({"divide", "reciprocal", "reciprocal_product", "inverse", "float64", "qwix"},
                  "fp32 scale: max / amax, by the rounded reciprocal of max, max * (1 / amax), "
                  "from scale_inv = "
                  "amax / max, in binary64, or Qwix's");
  knobs.push_back(OptionalChoice("scale_dtype", {"f32", "source"},
                                 "what the steps of the scale are rounded to"));
  knobs.push_back(OptionalChoice("element_operation", {"multiply", "divide", "reciprocal"},
                                 "x * scale, x / scale_inv or x * (1 / scale_inv)"));
  knobs.push_back(OptionalChoice("operation_dtype", {"f32", "source"},
                                 "what that is rounded to before the cast"));
  knobs.push_back(OptionalChoice("zero_scale", {"one", "dtype_epsilon", "none"},
                                 "scale_inv of zeros: 1, the scale dtype's epsilon, or what the "
                                 "operations give"));
  return knobs;
}

/// The knobs of bf16. Those about codes, with the values that 0.1.0 took and ignored, are read of
/// what it stored.
std::vector<Knob> Bf16Knobs() {
  std::vector<Knob> knobs =
      CommonKnobs({"divide", "reciprocal"}, "", {"nearest_even", "nearest_away"});
  std::erase_if(knobs, [](const Knob& knob) { return knob.is_later; });
  for (Knob& knob : knobs) {
    knob.is_void = knob.name != "backward_override" && knob.name != "activation_dtype";
  }
  return knobs;
}

Knob Fp8FormatKnob(Choices choices) {
  return Choice("fp8_format", std::move(choices),
                "hybrid: e4m3 forward, e5m2 gradients; e4m3, e5m2: both");
}

Knob EpsilonKnob() {
  return {"amax_epsilon", KnobKind::kNonNegativeFloat, {"0"}, "floor of the amax"};
}

Knob FlushSubnormalsKnob(Choices choices) {
  Knob knob = Choice("flush_subnormals", std::move(choices),
                     "where scales are made with subnormals as 0: in weights from sharded masters");
  knob.is_later = true;
  return knob;
}

Knob IntegerKnob(std::string_view name, std::string_view default_value, int64_t minimum,
                 int64_t maximum, std::string_view summary) {
  Knob knob = {name, KnobKind::kInteger, {default_value}, summary};
  knob.minimum = minimum;
  knob.maximum = maximum;
  return knob;
}

/// A knob and its _input, _weight and _grad variants.
void AddPerTensor(std::vector<Knob>& knobs, const Knob& common,
                  std::vector<std::string_view> names) {
  knobs.push_back(common);
  for (const std::string_view name : names) {
    Knob knob = common;
    knob.name = name;
    knob.inherits = common.name;
    knobs.push_back(knob);
  }
}

RecipeEntry Fp8Delayed() {
  std::vector<Knob> knobs =
      CommonKnobs({"divide"}, "fp32 scale: max / amax, by the rule of `update`");
  knobs[0].choices = {"none"};
  knobs[0].synonyms = {{"default", "none"}};
  knobs[0].reason = "delayed scaling has no backward override";
  knobs.push_back(Fp8FormatKnob({"hybrid", "e4m3"}));
  knobs.back().reason = "pure E5M2 is of recipes with a scale from the tensor's own amax";
  knobs.push_back(IntegerKnob("margin", "0", -kDelayedMarginMax, kDelayedMarginMax,
                              "scales stay this many powers of two below the maximum"));
  knobs.push_back(IntegerKnob("amax_history_len", "1024", 1, kAmaxHistoryLengthMax,
                              "steps that the maximum looks back over"));
  knobs.push_back(
      Choice("amax_compute_algo", {"max", "most_recent"}, "what of the history counts"));
  knobs.push_back(Choice("update", {"fused", "unfused"},
                         "the kernel's update, or torch's: they differ at amax 0 and NaN"));
  knobs.push_back(Choice("reduce_amax", kTrueFalse,
                         "maximum over the ranks before the update; one rank: none"));
  knobs.push_back(FlushSubnormalsKnob({"sharded_update", "never"}));
  knobs.back().reason = "a whole tensor's scale is given, and its inverse keeps subnormals";
  return {RecipeKind::kBase, "fp8_delayed",
          "FP8 with one scale per tensor, from the amaxes of earlier steps", std::move(knobs)};
}

RecipeEntry Fp8Current() {
  std::vector<Knob> knobs = Fp32ScaleKnobs();
  knobs.push_back(Fp8FormatKnob({"hybrid", "e4m3", "e5m2"}));
  AddPerTensor(knobs, Choice("power_2_scales", kFalseTrue, "scales rounded down to a power of two"),
               {"power_2_scales_input", "power_2_scales_weight", "power_2_scales_grad"});
  AddPerTensor(knobs, EpsilonKnob(),
               {"amax_epsilon_input", "amax_epsilon_weight", "amax_epsilon_grad"});
  knobs.push_back(Choice("split_accumulator_fprop", kFalseTrue,
                         "fprop adds partial sums in fp32 every 128 of K"));
  knobs.push_back(Choice("split_accumulator_dgrad", kTrueFalse, "the same of dgrad"));
  knobs.push_back(Choice("split_accumulator_wgrad", kTrueFalse, "the same of wgrad"));
  knobs.push_back(FlushSubnormalsKnob(kFlushChoices));
  return {RecipeKind::kBase, "fp8_current",
          "FP8 with one scale per tensor, from the tensor's own amax", std::move(knobs)};
}

RecipeEntry Fp8Rowwise() {
  RecipeEntry entry = Fp8Current();
  entry.name = "fp8_rowwise";
  entry.summary = "FP8 with one fp32 scale per row of each operand of a GEMM";
  return entry;
}

RecipeEntry Fp8Block() {
  std::vector<Knob> knobs = Fp32ScaleKnobs();
  knobs.push_back(Fp8FormatKnob({"e4m3", "hybrid", "e5m2"}));
  knobs.push_back(Choice("power_2_scales", kTrueFalse, "scales rounded down to a power of two"));
  knobs.push_back(EpsilonKnob());
  knobs.push_back(Choice("x_block_dim", {"1", "2"}, "blocks of x: 1x128 or 128x128"));
  knobs.push_back(Choice("w_block_dim", {"2", "1"}, "blocks of the weight"));
  knobs.push_back(Choice("grad_block_dim", {"1", "2"}, "blocks of grad_output"));
  knobs.push_back(FlushSubnormalsKnob(kFlushChoices));
  knobs.push_back(OptionalChoice("group_size", {"128", "32", "64", "256"},
                                 "elements of a block, and of a tile on a side"));
  return {RecipeKind::kBase, "fp8_block", "FP8 with fp32 scales of 1x128 or 128x128 blocks",
          std::move(knobs)};
}

/// The knobs of MX recipes. `libraries` are the rules of those that have the element.
std::vector<Knob> MxKnobs(Choices libraries, Choices overflows) {
  Choices rules = {"round_up",      "floor",         "ceil",         "even",        "nearest",
                   "torchao_rceil", "torchao_floor", "torchao_ceil", "torchao_even"};
  rules.insert(rules.end(), libraries.begin(), libraries.end());
  std::vector<Knob> knobs = CommonKnobs(
      std::move(rules),
      "E8M0 scale from amax / max; rceil is round_up, whose scales are torchao's of every "
      "block without NaN and Inf; those named by a library have its scaling of elements, too",
      {"nearest_even", "nearest_away", "nearest_zero"}, std::move(overflows));
  knobs[kScaleRuleKnob].synonyms = {{"rceil", "round_up"}};
  return knobs;
}

Knob MxTilesKnob() {
  return Choice("enable_2d_quantization", kFalseTrue, "32x32 blocks for weights in place of 1x32");
}

RecipeEntry Mxfp8() {
  std::vector<Knob> knobs =
      MxKnobs({"compressed_tensors", "modelopt", "qwix"}, {"saturate", "nan"});
  knobs.push_back(Fp8FormatKnob({"e4m3", "hybrid", "e5m2"}));
  knobs.push_back(MxTilesKnob());
  knobs.push_back(FlushSubnormalsKnob(kFlushChoices));
  return {RecipeKind::kBase, "mxfp8", "FP8 with E8M0 scales of 1x32 blocks", std::move(knobs)};
}

/// mxfp8 with a narrower element, the same for all roles.
RecipeEntry NarrowMx(std::string_view name, std::string_view summary, Choices libraries) {
  std::vector<Knob> knobs = MxKnobs(std::move(libraries), {"saturate"});
  knobs.push_back(MxTilesKnob());
  return {RecipeKind::kBase, name, summary, std::move(knobs)};
}

RecipeEntry Nvfp4() {
  std::vector<Knob> knobs =
      CommonKnobs({"two_level", "two_level_clamped", "single_level", "torchao_two_level",
                   "torchao_single_level", "compressed_tensors", "modelopt", "qwix", "vllm"},
                  "E4M3 block scales under a tensor scale, the same never below the smallest, or "
                  "without a tensor scale; those of a library need disable_rht=true and "
                  "disable_stochastic_rounding=true",
                  {"nearest_even", "nearest_away", "stochastic", "nearest_zero"}, {"saturate"});
  knobs.push_back(
      Choice("disable_rht", kFalseTrue, "no Hadamard transform of columnwise x and grad_output"));
  knobs.push_back(
      Choice("disable_stochastic_rounding", kFalseTrue, "grad_output rounded as the others"));
  knobs.push_back(
      Choice("disable_2d_quantization", kFalseTrue, "1x16 blocks for weights in place of 16x16"));
  knobs.push_back(Choice("row_scaled_activation", kFalseTrue,
                         "one tensor scale per row of x; needs disable_rht=true"));
  knobs.push_back(Choice("nvfp4_4over6", {"none", "weights", "activations", "all"},
                         "blocks whose largest code is 4 where that errs less than 6"));
  knobs.push_back(Choice("nvfp4_4over6_e4m3_max", {"256", "448"},
                         "largest block scale under 4over6; 448 without"));
  knobs.back().needs = "nvfp4_4over6";
  knobs.push_back(
      Choice("nvfp4_4over6_err_mode", {"mae", "mse"}, "the error that 4over6 compares"));
  knobs.back().needs = "nvfp4_4over6";
  return {RecipeKind::kBase, "nvfp4", "FP4 with E4M3 scales of 1x16 blocks and a tensor scale",
          std::move(knobs)};
}

/// The knobs of a format of levels, which no layer takes: those of layers have no effect.
std::vector<Knob> LevelKnobs(Choices scale_rules, Choices groups) {
  std::vector<Knob> knobs = {BackwardOverrideKnob(), ActivationKnob()};
  for (Knob& knob : knobs) knob.is_void = true;
  knobs.push_back(Choice("scale_rule", std::move(scale_rules),
                         "the library whose steps make scales, zero points and codes"));
  knobs.push_back(
      Choice("group", std::move(groups), "what has one scale: elements along the rows"));
  return knobs;
}

/// The knobs of integers. `elements`: "usual", and those of the format.
std::vector<Knob> IntegerKnobs(Choices scale_rules, Choices groups, Choices zero_points,
                               Choices elements) {
  std::vector<Knob> knobs = LevelKnobs(std::move(scale_rules), std::move(groups));
  knobs.push_back(Choice("zero_point", std::move(zero_points),
                         "usual: what the rule has first, most of all zero as level 0; a code; "
                         "or a number that is added"));
  knobs.push_back(
      Choice("element", std::move(elements), "unsigned codes; usual: what the rule has first"));
  knobs.push_back(Choice("operation_dtype", {"f32", "source"},
                         "what scale_rule torchao rounds its operations on elements to"));
  return knobs;
}

RecipeEntry Int8() {
  return {RecipeKind::kBase, "int8",
          "integers of 8 bits with fp32 scales of rows, of the tensor or of groups; not of layers",
          IntegerKnobs({"torchao", "compressed_tensors", "modelopt", "quanto", "bitsandbytes",
                        "bitnet", "gguf", "qwix"},
                       {"row", "tensor", "32", "64", "128", "256"}, {"usual", "integer"},
                       {"usual", "u8"})};
}

RecipeEntry Int4() {
  return {RecipeKind::kBase, "int4",
          "integers of 4 bits with fp32 scales of groups, of rows or of the tensor; not of layers",
          IntegerKnobs(
              {"torchao", "compressed_tensors", "modelopt", "quanto", "tinygemm", "gguf", "qwix"},
              {"128", "32", "64", "256", "row", "tensor"}, {"usual", "integer", "float"},
              {"usual", "u4x2"})};
}

RecipeEntry TableOfLevels(std::string_view name, std::string_view summary, Choices scale_rules) {
  return {RecipeKind::kBase, name, summary,
          LevelKnobs(std::move(scale_rules),
                     {"64", "32", "128", "256", "512", "1024", "2048", "4096"})};
}

RecipeEntry Hybrid() {
  const auto rule = [](std::string_view name, std::string_view summary) {
    return Knob{name, KnobKind::kRule, {"bf16"}, summary};
  };
  const auto direction = [](std::string_view name, std::string_view summary) {
    return Knob{name, KnobKind::kDirection, {"gemm"}, summary};
  };
  return {
      RecipeKind::kHybrid,
      "hybrid",
      "a recipe per GEMM, or a quantizer per role and direction",
      {BackwardOverrideKnob(), ActivationKnob(), rule("fprop", "quantizes x and weight rowwise"),
       rule("dgrad", "quantizes grad_output rowwise, weight columnwise"),
       rule("wgrad", "quantizes x and grad_output columnwise"),
       direction("input", "x by direction, in place of by GEMM"),
       direction("weight", "the weight by direction"),
       direction("grad_output", "grad_output by direction"),
       Choice("columnwise_source", {"original", "rowwise_dequantized"},
              "what columnwise copies are quantized from")}};
}

RecipeEntry Custom() {
  return {RecipeKind::kCustom,
          "custom",
          "a list of rules from roles and modules to quantizers, the first that fits",
          {BackwardOverrideKnob(),
           ActivationKnob(),
           {"rules", KnobKind::kRules, {R"([{"quantizer":"bf16"}])"}, "the rules, as JSON"}}};
}

}  // namespace

const std::vector<RecipeEntry>& RecipeEntries() {
  static const auto& tables = *new std::vector<RecipeEntry>{
      {RecipeKind::kBase, "bf16", "no quantization: GEMMs in the activation dtype (f32: tf32)",
       Bf16Knobs()},
      Fp8Delayed(),
      Fp8Current(),
      Fp8Block(),
      Mxfp8(),
      NarrowMx("mxfp6_e2m3", "FP6 E2M3 with E8M0 scales of 1x32 blocks", {"compressed_tensors"}),
      NarrowMx("mxfp6_e3m2", "FP6 E3M2 with E8M0 scales of 1x32 blocks", {}),
      NarrowMx("mxfp4", "FP4 with E8M0 scales of 1x32 blocks",
               {"compressed_tensors", "modelopt", "gguf", "qwix"}),
      Nvfp4(),
      Fp8Rowwise(),
      Int8(),
      Int4(),
      TableOfLevels("nf4", "NF4 with an fp32 scale of each run of elements; not of layers",
                    {"bitsandbytes", "torchao", "modelopt", "qwix"}),
      TableOfLevels("bnb_fp4",
                    "bitsandbytes' FP4 with an fp32 scale of each run of elements; not of layers",
                    {"bitsandbytes"}),
      Hybrid(),
      Custom(),
  };
  return tables;
}

const RecipeEntry* FindRecipeEntry(std::string_view name) {
  for (const RecipeEntry& entry : RecipeEntries()) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

const Knob* FindKnob(const RecipeEntry& entry, std::string_view name) {
  for (const Knob& knob : entry.knobs) {
    if (knob.name == name) return &knob;
  }
  return nullptr;
}

std::string KnobValuesText(const Knob& knob) {
  switch (knob.kind) {
    case KnobKind::kChoice: {
      std::string text;
      for (const std::string_view choice : knob.choices) {
        absl::StrAppend(&text, text.empty() ? "" : "|", std::string(choice));
      }
      return text;
    }
    case KnobKind::kNonNegativeFloat:
      return "float >= 0";
    case KnobKind::kInteger:
      return absl::StrCat("integer ", knob.minimum, " to ", knob.maximum);
    case KnobKind::kRule:
      return "a recipe or JSON";
    case KnobKind::kDirection:
      return "gemm or JSON";
    case KnobKind::kRules:
      return "JSON";
  }
  return "";
}

std::string FloatText(float value) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof(text), value);
  return std::string(text, end);
}

std::optional<float> ParseNonNegativeFloat(std::string_view text) {
  float value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (!std::isfinite(value) || value < 0) return std::nullopt;
  return value == 0 ? 0.0f : value;  // Drops the sign of -0.
}

std::optional<std::string> CanonicalKnobValue(const Knob& knob, std::string_view value) {
  if (knob.kind == KnobKind::kNonNegativeFloat) {
    const std::optional<float> parsed = ParseNonNegativeFloat(value);
    if (!parsed) return std::nullopt;
    return FloatText(*parsed);
  }
  if (knob.kind == KnobKind::kInteger) {
    int64_t parsed = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), parsed);
    const bool is_whole = error == std::errc() && end == value.data() + value.size();
    if (!is_whole || parsed < knob.minimum || parsed > knob.maximum) return std::nullopt;
    return absl::StrCat(parsed);
  }
  for (const auto& [accepted, canonical] : knob.synonyms) {
    if (accepted == value) return std::string(canonical);
  }
  // Dtypes have other names, too.
  const absl::StatusOr<DType> dtype = ParseDType(value);
  for (const std::string_view choice : knob.choices) {
    if (choice == value || (dtype.ok() && choice == DTypeName(*dtype))) return std::string(choice);
  }
  return std::nullopt;
}

std::string ShownValue(std::string_view value) {
  return absl::StrCat("\"", std::string(value.substr(0, 80)), "\"");
}

std::string KnobField(std::string_view name) {
  return absl::StrCat("knobs[", ShownValue(name), "]");
}

}  // namespace quantgate
