#include "kernels/quantize/recipe.h"

#include <charconv>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/fingerprint.h"

namespace quantgate {
namespace {

enum class KnobKind { kChoice, kNonNegativeFloat };

/// One knob as data. A knob whose default is another knob of the same recipe (`inherits`) takes
/// that one's resolved value; such a knob stands behind it in the table.
struct Knob {
  std::string_view name;
  KnobKind kind;
  std::vector<std::string_view> choices;  ///< Default first.
  std::string_view summary;
  std::string_view inherits = {};
  std::vector<std::pair<std::string_view, std::string_view>> synonyms =
      {};  ///< Accepted -> canonical.
};

struct RecipeTable {
  std::string_view name;
  std::string_view summary;
  bool is_quantized;
  std::vector<Knob> knobs;
};

const std::vector<std::string_view> kFalseTrue = {"false", "true"};
const std::vector<std::string_view> kTrueFalse = {"true", "false"};

std::vector<Knob> CommonKnobs() {
  return {
      {"backward_override",
       KnobKind::kChoice,
       {"none", "high_precision", "dequantized"},
       "operands of dgrad and wgrad: quantized, the originals, or the dequantized rowwise copies",
       {},
       {{"default", "none"}, {"unquant", "high_precision"}, {"dequant", "dequantized"}}},
      {"activation_dtype",
       KnobKind::kChoice,
       {"input", "f32", "bf16", "f16"},
       "dtype of activations and high-precision GEMMs; input: the dtype of x"},
      {"scale_rule",
       KnobKind::kChoice,
       {"divide", "reciprocal"},
       "fp32 scale: max / amax, or by the rounded reciprocal of max"},
      {"element_rounding",
       KnobKind::kChoice,
       {"nearest_even", "nearest_away"},
       "ties of the element cast"},
      {"overflow",
       KnobKind::kChoice,
       {"saturate", "nan"},
       "elements beyond the largest finite value: to it, or to NaN (E5M2: infinity)"},
  };
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

RecipeTable Fp8Current() {
  std::vector<Knob> knobs = CommonKnobs();
  knobs.push_back({"fp8_format",
                   KnobKind::kChoice,
                   {"hybrid", "e4m3"},
                   "hybrid: e4m3 forward, e5m2 gradients; e4m3: both"});
  AddPerTensor(
      knobs,
      {"power_2_scales", KnobKind::kChoice, kFalseTrue, "scales rounded down to a power of two"},
      {"power_2_scales_input", "power_2_scales_weight", "power_2_scales_grad"});
  AddPerTensor(knobs, {"amax_epsilon", KnobKind::kNonNegativeFloat, {"0"}, "floor of the amax"},
               {"amax_epsilon_input", "amax_epsilon_weight", "amax_epsilon_grad"});
  knobs.push_back({"split_accumulator_fprop", KnobKind::kChoice, kFalseTrue,
                   "fprop adds partial sums in fp32 every 128 of K"});
  knobs.push_back({"split_accumulator_dgrad", KnobKind::kChoice, kTrueFalse, "the same of dgrad"});
  knobs.push_back({"split_accumulator_wgrad", KnobKind::kChoice, kTrueFalse, "the same of wgrad"});
  return {"fp8_current", "FP8 with one scale per tensor, from the tensor's own amax", true,
          std::move(knobs)};
}

/// The whole build's recipes. A recipe or knob is one entry here.
const std::vector<RecipeTable>& Tables() {
  static const auto& tables = *new std::vector<RecipeTable>{
      {"bf16", "no quantization: GEMMs in the activation dtype (f32: tf32)", false, CommonKnobs()},
      Fp8Current(),
  };
  return tables;
}

const RecipeTable* FindTable(std::string_view name) {
  for (const RecipeTable& table : Tables()) {
    if (table.name == name) return &table;
  }
  return nullptr;
}

const Knob* FindKnob(const RecipeTable& table, std::string_view name) {
  for (const Knob& knob : table.knobs) {
    if (knob.name == name) return &knob;
  }
  return nullptr;
}

template <class Range, class NameOf>
std::string Joined(const Range& range, std::string_view separator, NameOf name_of) {
  std::string text;
  for (const auto& item : range) {
    if (!text.empty()) text += separator;
    text += name_of(item);
  }
  return text;
}

std::string ValuesText(const Knob& knob) {
  if (knob.kind == KnobKind::kNonNegativeFloat) return "float >= 0";
  return Joined(knob.choices, "|", [](std::string_view choice) { return choice; });
}

/// A value from outside, cut for a message.
std::string Shown(std::string_view value) {
  return absl::StrCat("\"", std::string(value.substr(0, 80)), "\"");
}

absl::Status UnknownKnob(const RecipeTable& table, std::string_view name) {
  std::vector<std::string_view> owners;
  for (const RecipeTable& other : Tables()) {
    if (FindKnob(other, name) != nullptr) owners.push_back(other.name);
  }
  const auto knob_name = [](const Knob& knob) { return knob.name; };
  const auto same = [](std::string_view owner) { return owner; };
  return absl::InvalidArgumentError(absl::StrCat(
      "recipe ", std::string(table.name), ": ",
      owners.empty()
          ? absl::StrCat("unknown knob ", Shown(name))
          : absl::StrCat("knob ", Shown(name), " belongs to ", Joined(owners, ", ", same),
                         ", not to ", std::string(table.name)),
      "; knobs of ", std::string(table.name), ": ", Joined(table.knobs, ", ", knob_name)));
}

absl::Status BadValue(const RecipeTable& table, const Knob& knob, std::string_view value) {
  return absl::InvalidArgumentError(absl::StrCat(
      "recipe ", std::string(table.name), ": knob ", std::string(knob.name), ": value ",
      Shown(value), " is not one of ", ValuesText(knob),
      knob.kind == KnobKind::kNonNegativeFloat ? " (finite, in the range of fp32)" : ""));
}

/// The shortest decimal that reads back as the same float.
std::string FloatText(float value) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof(text), value);
  return std::string(text, end);
}

std::optional<float> ParseFloat(std::string_view text) {
  float value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (!std::isfinite(value) || value < 0) return std::nullopt;
  return value == 0 ? 0.0f : value;  // Drops the sign of -0.
}

/// The canonical text of a value, or nothing when it is not allowed.
std::optional<std::string> Canonical(const Knob& knob, std::string_view value) {
  if (knob.kind == KnobKind::kNonNegativeFloat) {
    const std::optional<float> parsed = ParseFloat(value);
    if (!parsed) return std::nullopt;
    return FloatText(*parsed);
  }
  for (const auto& [accepted, canonical] : knob.synonyms) {
    if (accepted == value) return std::string(canonical);
  }
  for (const std::string_view choice : knob.choices) {
    if (choice == value) return std::string(choice);
  }
  return std::nullopt;
}

std::string DefaultValue(const Knob& knob, const Recipe::Knobs& resolved) {
  return knob.inherits.empty() ? std::string(knob.choices.front())
                               : resolved.find(knob.inherits)->second;
}

RecipeDescription Describe(const RecipeTable& table) {
  RecipeDescription description{std::string(table.name), std::string(table.summary), {}};
  for (const Knob& knob : table.knobs) {
    description.knobs.push_back(
        {.name = std::string(knob.name),
         .values = ValuesText(knob),
         .default_value = std::string(knob.inherits.empty() ? knob.choices.front() : knob.inherits),
         .summary = std::string(knob.summary)});
  }
  return description;
}

std::string_view VariantSuffix(TensorRole role) {
  switch (role) {
    case TensorRole::kInput:
      return "_input";
    case TensorRole::kWeight:
      return "_weight";
    case TensorRole::kGradOutput:
      return "_grad";
  }
  return "";
}

std::optional<DType> ActivationDType(const std::string& value) {
  if (value == "input") return std::nullopt;
  return *ParseDType(value);
}

}  // namespace

std::string_view TensorRoleName(TensorRole role) {
  switch (role) {
    case TensorRole::kInput:
      return "input";
    case TensorRole::kWeight:
      return "weight";
    case TensorRole::kGradOutput:
      return "grad_output";
  }
  return "unknown";
}

absl::StatusOr<TensorRole> ParseTensorRole(std::string_view name) {
  for (const TensorRole role : {TensorRole::kInput, TensorRole::kWeight, TensorRole::kGradOutput}) {
    if (TensorRoleName(role) == name) return role;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("role: ", Shown(name), " is not one of input, weight, grad_output"));
}

std::string_view GemmRoleName(GemmRole role) {
  switch (role) {
    case GemmRole::kFprop:
      return "fprop";
    case GemmRole::kDgrad:
      return "dgrad";
    case GemmRole::kWgrad:
      return "wgrad";
  }
  return "unknown";
}

std::string_view BackwardOverrideName(BackwardOverride override_mode) {
  switch (override_mode) {
    case BackwardOverride::kNone:
      return "none";
    case BackwardOverride::kHighPrecision:
      return "high_precision";
    case BackwardOverride::kDequantized:
      return "dequantized";
  }
  return "unknown";
}

absl::StatusOr<BackwardOverride> ParseBackwardOverride(std::string_view name) {
  if (name == "none" || name == "default") return BackwardOverride::kNone;
  if (name == "high_precision" || name == "unquant") return BackwardOverride::kHighPrecision;
  if (name == "dequantized" || name == "dequant") return BackwardOverride::kDequantized;
  return absl::InvalidArgumentError(
      absl::StrCat("backward_override: ", Shown(name),
                   " is not one of none, high_precision, dequantized (first names: default, "
                   "unquant, dequant)"));
}

const std::vector<RecipeDescription>& AllRecipes() {
  static const auto& all = *[] {
    auto* list = new std::vector<RecipeDescription>;
    for (const RecipeTable& table : Tables()) list->push_back(Describe(table));
    return list;
  }();
  return all;
}

absl::StatusOr<Recipe> Recipe::Create(std::string_view name, const Knobs& knobs) {
  const RecipeTable* table = FindTable(name);
  if (table == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "recipe: unknown name ", Shown(name),
        "; known: ", Joined(Tables(), ", ", [](const RecipeTable& t) { return t.name; })));
  }
  for (const auto& [key, value] : knobs) {
    if (FindKnob(*table, key) == nullptr) return UnknownKnob(*table, key);
  }
  Recipe recipe;
  recipe.name_ = std::string(name);
  for (const Knob& knob : table->knobs) {
    const auto given = knobs.find(knob.name);
    std::optional<std::string> value =
        given == knobs.end() ? DefaultValue(knob, recipe.knobs_) : Canonical(knob, given->second);
    if (!value) return BadValue(*table, knob, given->second);
    recipe.knobs_.emplace(knob.name, *std::move(value));
  }
  QG_ASSIGN_OR_RETURN(recipe.backward_override_,
                      ParseBackwardOverride(recipe.knobs_.at("backward_override")));
  recipe.activation_dtype_ = ActivationDType(recipe.knobs_.at("activation_dtype"));
  return recipe;
}

absl::StatusOr<Recipe> Recipe::Parse(std::string_view text) {
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  Knobs knobs;
  std::string_view rest = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  if (colon != std::string_view::npos && rest.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("recipe ", Shown(text), ": no key=value behind the colon"));
  }
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos || equals == 0 || comma == rest.size() - 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("recipe ", Shown(text), ": ", Shown(item),
                       " is not key=value; write name:key=value,key=value"));
    }
    if (!knobs.emplace(item.substr(0, equals), item.substr(equals + 1)).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "recipe ", Shown(text), ": knob ", Shown(item.substr(0, equals)), " is given twice"));
    }
    rest.remove_prefix(comma == std::string_view::npos ? rest.size() : comma + 1);
  }
  return Create(name, knobs);
}

std::string Recipe::CanonicalText() const {
  return absl::StrCat(name_, ":", Joined(knobs_, ",", [](const auto& knob) {
                        return absl::StrCat(knob.first, "=", knob.second);
                      }));
}

std::string Recipe::ShortText() const {
  std::string text = name_;
  for (const Knob& knob : FindTable(name_)->knobs) {
    const std::string& value = knobs_.find(knob.name)->second;
    if (value == DefaultValue(knob, knobs_)) continue;
    absl::StrAppend(&text, text.size() == name_.size() ? ":" : ",", std::string(knob.name), "=",
                    value);
  }
  return text;
}

std::string Recipe::Digest() const {
  const std::string text = CanonicalText();
  return Sha256Of(std::as_bytes(std::span(text))).Hex();
}

bool Recipe::is_quantized() const { return FindTable(name_)->is_quantized; }

Recipe Recipe::WithBackwardOverride(BackwardOverride override_mode) const {
  Recipe recipe = *this;
  recipe.backward_override_ = override_mode;
  recipe.knobs_["backward_override"] = std::string(BackwardOverrideName(override_mode));
  return recipe;
}

Quantizer Recipe::QuantizerFor(TensorRole role) const {
  QuantizerSpec spec;
  if (!is_quantized()) return spec;
  const auto variant = [&](std::string_view knob) -> const std::string& {
    return knobs_.find(absl::StrCat(std::string(knob), std::string(VariantSuffix(role))))->second;
  };
  const bool is_gradient = role == TensorRole::kGradOutput;
  spec.format = QuantizerFormat::kFp8Tensor;
  spec.element =
      is_gradient && knobs_.at("fp8_format") == "hybrid" ? DType::kF8E5M2 : DType::kF8E4M3;
  spec.power_2_scale = variant("power_2_scales") == "true";
  spec.amax_epsilon = *ParseFloat(variant("amax_epsilon"));
  spec.scale_rule =
      knobs_.at("scale_rule") == "divide" ? ScaleRule::kDivide : ScaleRule::kReciprocal;
  spec.element_rounding = knobs_.at("element_rounding") == "nearest_even"
                              ? ElementRounding::kNearestEven
                              : ElementRounding::kNearestAway;
  spec.overflow = knobs_.at("overflow") == "saturate" ? Overflow::kSaturate : Overflow::kNan;
  return spec;
}

bool Recipe::UsesSplitAccumulator(GemmRole gemm) const {
  const auto knob =
      knobs_.find(absl::StrCat("split_accumulator_", std::string(GemmRoleName(gemm))));
  return knob != knobs_.end() && knob->second == "true";
}

}  // namespace quantgate
