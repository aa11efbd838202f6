#include "kernels/quantize/recipe/recipe_json.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strict_json.h"
#include "kernels/quantize/recipe/recipe_table.h"

namespace quantgate {
namespace {

/// The longest JSON of one knob, a bound on untrusted input.
constexpr size_t kKnobBytesMax = 16 << 10;
/// Deeper than the JSON of any valid recipe.
constexpr int kDepthMax = 16;

absl::StatusOr<std::string> KnobText(const std::string& name, const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean() || value.is_number()) return value.dump();
  return Refuse(KnobField(name), ShownJson(value), "must be a string, a number or a boolean");
}

absl::Status CheckComponent(const RecipeEntry& entry, const Recipe::Knobs& given) {
  if (entry.is_composed()) return Refuse("", entry.name, "does not go into another recipe");
  for (const char* knob : {"backward_override", "activation_dtype"}) {
    const auto found = given.find(knob);
    if (found == given.end()) continue;
    return Refuse(KnobField(knob), ShownValue(found->second), "belongs to the whole recipe");
  }
  return absl::OkStatus();
}

/// A recipe by name and knobs. The canonical form is the name if every knob has its default.
absl::StatusOr<QuantizerRule> RecipeRule(const std::string& name, const Recipe::Knobs& knobs) {
  const RecipeEntry* entry = FindRecipeEntry(name);
  if (entry != nullptr) QG_RETURN_IF_ERROR(CheckComponent(*entry, knobs));
  QG_ASSIGN_OR_RETURN(Recipe recipe, Recipe::Create(name, knobs));
  Json changed = Json::object();
  for (const Knob& knob : entry->knobs) {
    if (knob.is_void) continue;
    const std::string& value = recipe.knobs().find(knob.name)->second;
    const std::string default_value = knob.inherits.empty()
                                          ? std::string(knob.choices.front())
                                          : recipe.knobs().find(knob.inherits)->second;
    if (value != default_value) changed[std::string(knob.name)] = value;
  }
  QuantizerRule rule;
  rule.recipe = std::move(recipe);
  rule.canonical = changed.empty() ? Json(name) : Json{{"knobs", changed}, {"name", name}};
  return rule;
}

absl::StatusOr<QuantizerRule> NamedRule(const Json& json) {
  QG_RETURN_IF_ERROR(CheckKeys(json, {"name", "knobs"}));
  if (!json.contains("name") || !json["name"].is_string()) {
    return Refuse("name", json.contains("name") ? ShownJson(json["name"]) : "absent",
                  "must be the name of a recipe");
  }
  Recipe::Knobs knobs;
  if (json.contains("knobs")) {
    if (!json["knobs"].is_object()) {
      return Refuse("knobs", ShownJson(json["knobs"]), "must be an object");
    }
    for (const auto& [knob, value] : json["knobs"].items()) {
      QG_ASSIGN_OR_RETURN(knobs[knob], KnobText(knob, value));
    }
  }
  return RecipeRule(json["name"].get<std::string>(), knobs);
}

absl::StatusOr<QuantizerFormat> ParseFormat(const std::string& name) {
  for (const ScalingTraits& traits : AllQuantizerFormats()) {
    if (traits.name == name) return traits.format;
  }
  return Refuse("format", ShownValue(name), "must be one of " + QuantizerFormatNames());
}

absl::StatusOr<FourOverSix> ParseFourOverSix(const std::string& name) {
  for (const FourOverSix mode : {FourOverSix::kNone, FourOverSix::kMae, FourOverSix::kMse}) {
    if (FourOverSixName(mode) == name) return mode;
  }
  return Refuse("4over6", ShownValue(name), "must be one of none, mae, mse");
}

/// Reads one field of a quantizer from JSON.
absl::Status SetField(const std::string& key, const Json& value, QuantizerSpec& spec) {
  const auto wants = [&](bool is_right, const char* what) {
    return is_right ? absl::OkStatus()
                    : Refuse(key, ShownJson(value), absl::StrCat("must be ", what));
  };
  if (key == "power_2_scale" || key == "hadamard" || key == "row_scaled") {
    QG_RETURN_IF_ERROR(wants(value.is_boolean(), "true or false"));
    bool& field = key == "hadamard"     ? spec.hadamard
                  : key == "row_scaled" ? spec.row_scaled
                                        : spec.power_2_scale;
    field = value.get<bool>();
    return absl::OkStatus();
  }
  if (key == "block_dim" || key == "e4m3_max") {
    QG_RETURN_IF_ERROR(
        wants(value.is_number_integer() && value >= 0 && value <= 1000, "a small whole number"));
    (key == "block_dim" ? spec.block_dim : spec.e4m3_max) = value.get<int>();
    return absl::OkStatus();
  }
  if (key == "amax_epsilon") {
    QG_RETURN_IF_ERROR(wants(value.is_number(), "a number"));
    const auto parsed = ParseNonNegativeFloat(value.dump());
    QG_RETURN_IF_ERROR(wants(parsed.has_value(), "a finite float >= 0"));
    spec.amax_epsilon = *parsed;
    return absl::OkStatus();
  }
  if (key == "group" && value.is_number_integer()) {
    QG_ASSIGN_OR_RETURN(spec.group, ParseGroup(value.dump()));
    return absl::OkStatus();
  }
  QG_RETURN_IF_ERROR(wants(value.is_string(), "a name"));
  const std::string name = value.get<std::string>();
  if (key == "element") {
    absl::StatusOr<DType> element = ParseDType(name);
    if (!element.ok()) return AsField(key, element.status());
    spec.element = *element;
  } else if (key == "scale_rule") {
    QG_ASSIGN_OR_RETURN(spec.scale_rule, ParseScaleRule(name));
  } else if (key == "element_rounding") {
    QG_ASSIGN_OR_RETURN(spec.element_rounding, ParseElementRounding(name));
  } else if (key == "overflow") {
    QG_ASSIGN_OR_RETURN(spec.overflow, ParseOverflow(name));
  } else if (key == "flush_subnormals") {
    QG_ASSIGN_OR_RETURN(spec.flush_subnormals, ParseFlushSubnormals(name));
  } else if (key == "scale_dtype" || key == "operation_dtype") {
    StepDType& field = key == "scale_dtype" ? spec.scale_dtype : spec.operation_dtype;
    QG_ASSIGN_OR_RETURN(field, ParseStepDType(key, name));
  } else if (key == "element_operation") {
    QG_ASSIGN_OR_RETURN(spec.element_operation, ParseElementOperation(name));
  } else if (key == "zero_scale") {
    QG_ASSIGN_OR_RETURN(spec.zero_scale, ParseZeroScale(name));
  } else if (key == "zero_sign") {
    QG_ASSIGN_OR_RETURN(spec.zero_sign, ParseSignOfZero(name));
  } else if (key == "zero_point") {
    QG_ASSIGN_OR_RETURN(spec.zero_point, ParseZeroPoint(name));
  } else if (key == "group") {
    QG_ASSIGN_OR_RETURN(spec.group, ParseGroup(name));
  } else if (key == "4over6") {
    QG_ASSIGN_OR_RETURN(spec.four_over_six, ParseFourOverSix(name));
  } else {
    QG_ASSIGN_OR_RETURN(spec.format, ParseFormat(name));
  }
  return absl::OkStatus();
}

/// The fields that differ from the defaults of the format.
Json CanonicalSpec(const QuantizerSpec& spec, const QuantizerSpec& plain) {
  Json json = {{"format", std::string(QuantizerFormatName(spec.format))}};
  const auto add = [&](const char* key, bool differs, Json value) {
    if (differs) json[key] = std::move(value);
  };
  add("element", spec.element != plain.element, std::string(DTypeName(spec.element)));
  add("block_dim", spec.block_dim != plain.block_dim, spec.block_dim);
  add("power_2_scale", spec.power_2_scale, true);
  // A number with the shortest text of the float, not with that of the nearest double.
  add("amax_epsilon", spec.amax_epsilon != 0,
      Json::parse(FloatText(spec.amax_epsilon), nullptr, false));
  add("scale_rule", spec.scale_rule != plain.scale_rule,
      std::string(ScaleRuleName(spec.scale_rule)));
  add("element_rounding", spec.element_rounding != plain.element_rounding,
      std::string(ElementRoundingName(spec.element_rounding)));
  add("overflow", spec.overflow != plain.overflow, std::string(OverflowName(spec.overflow)));
  add("flush_subnormals", spec.flush_subnormals != plain.flush_subnormals,
      std::string(FlushSubnormalsName(spec.flush_subnormals)));
  add("scale_dtype", spec.scale_dtype != plain.scale_dtype,
      std::string(StepDTypeName(spec.scale_dtype)));
  add("element_operation", spec.element_operation != plain.element_operation,
      std::string(ElementOperationName(spec.element_operation)));
  add("operation_dtype", spec.operation_dtype != plain.operation_dtype,
      std::string(StepDTypeName(spec.operation_dtype)));
  add("zero_scale", spec.zero_scale != plain.zero_scale,
      std::string(ZeroScaleName(spec.zero_scale)));
  add("zero_sign", spec.zero_sign != plain.zero_sign, std::string(SignOfZeroName(spec.zero_sign)));
  add("zero_point", spec.zero_point != plain.zero_point,
      std::string(ZeroPointName(spec.zero_point)));
  if (spec.group > 0) {
    json["group"] = spec.group;
  } else {
    add("group", spec.group != plain.group, GroupText(spec.group));
  }
  add("hadamard", spec.hadamard, true);
  add("row_scaled", spec.row_scaled, true);
  add("4over6", spec.four_over_six != plain.four_over_six,
      std::string(FourOverSixName(spec.four_over_six)));
  add("e4m3_max", spec.e4m3_max != plain.e4m3_max, spec.e4m3_max);
  return json;
}

void DropVoidKnobs(Json& json) {
  if (!json.is_structured()) return;
  for (Json& inner : json) DropVoidKnobs(inner);
  const bool is_recipe = json.is_object() && json.contains("name") && json["name"].is_string() &&
                         json.contains("knobs") && json["knobs"].is_object();
  if (!is_recipe) return;
  Json& knobs = json["knobs"];
  const RecipeEntry* entry = FindRecipeEntry(json["name"].get<std::string>());
  for (const Knob& knob : entry == nullptr ? std::vector<Knob>() : entry->knobs) {
    // Only values that differ from the default are stored.
    const bool lacks = !knob.needs.empty() && !knobs.contains(std::string(knob.needs));
    if (knob.is_void || lacks) knobs.erase(std::string(knob.name));
  }
}

/// Refuses fields about codes for an identity quantizer, which makes none: it keeps its source, or
/// casts it to a high-precision element (docs/quantizers.md section 7.1).
absl::Status CheckOfCodes(const QuantizerSpec& spec, const std::string& key, const Json& value) {
  if (spec.is_quantized()) return absl::OkStatus();
  if (key == "element") {
    return spec.casts() ? absl::OkStatus()
                        : Refuse(key, ShownJson(value), "identity casts to f32, bf16 or f16");
  }
  static const std::set<std::string> kOfCodes = {
      "overflow",        "scale_rule", "element_rounding", "scale_dtype", "element_operation",
      "operation_dtype", "zero_scale", "zero_sign",        "group",       "zero_point"};
  if (!kOfCodes.contains(key)) return absl::OkStatus();
  return Refuse(key, ShownJson(value), "not a field of identity, which makes no codes");
}

/// A quantizer given by fields. Delayed scaling is a recipe by name.
absl::StatusOr<QuantizerRule> SpecRule(const Json& json) {
  QG_RETURN_IF_ERROR(CheckKeys(
      json,
      {"format",     "element",          "block_dim",         "power_2_scale",   "amax_epsilon",
       "scale_rule", "scale_dtype",      "element_operation", "operation_dtype", "zero_scale",
       "zero_sign",  "element_rounding", "overflow",          "hadamard",        "row_scaled",
       "4over6",     "e4m3_max",         "flush_subnormals",  "group",           "zero_point"}));
  QuantizerSpec plain;
  QG_RETURN_IF_ERROR(SetField("format", json["format"], plain));
  if (plain.is_quantized()) plain.element = plain.traits().elements.front();
  QuantizerRule rule;
  rule.spec = plain;
  for (const auto& [key, value] : json.items()) {
    QG_RETURN_IF_ERROR(SetField(key, value, rule.spec));
    QG_RETURN_IF_ERROR(CheckOfCodes(rule.spec, key, value));
  }
  // "usual" and the name of that rule mean the same.
  if (rule.spec.scale_rule == ResolveScaleRule(ScaleRule::kUsual, rule.spec.format)) {
    rule.spec.scale_rule = ScaleRule::kUsual;
  }
  if (rule.spec.group == ResolveGroup(0, rule.spec.format)) rule.spec.group = 0;
  rule.canonical = CanonicalSpec(rule.spec, plain);
  return rule;
}

}  // namespace

absl::StatusOr<Json> ParseJson(std::string_view text) {
  if (text.size() > kKnobBytesMax) {
    return Refuse(
        "", ShownValue(text),
        absl::StrCat("JSON of ", text.size(), " bytes; a knob has at most ", kKnobBytesMax));
  }
  return ParseStrictJson(text, kDepthMax);
}

std::string ShownJson(const Json& json) {
  constexpr size_t kShown = 200;
  const std::string text = json.dump();
  return text.size() <= kShown ? text : text.substr(0, kShown) + "...";
}

absl::Status CheckKeys(const Json& json, const std::set<std::string>& known) {
  for (const auto& [key, value] : json.items()) {
    if (known.count(key) != 0) continue;
    return Refuse(
        key, ShownJson(value),
        absl::StrCat("unknown key ", ShownValue(key), "; known: ", absl::StrJoin(known, ", ")));
  }
  return absl::OkStatus();
}

QuantizerSpec QuantizerRule::For(TensorRole role, Usage usage) const {
  if (!recipe.has_value()) return spec;
  // A recipe does to a result what it does to an operand of the same pass.
  if (role == TensorRole::kOutput) role = TensorRole::kInput;
  if (role == TensorRole::kGradInput) role = TensorRole::kGradOutput;
  return recipe->QuantizerFor(role).spec(usage);
}

std::string WithoutVoidKnobs(std::string_view text) {
  absl::StatusOr<Json> json = ParseJson(text);
  if (!json.ok()) return std::string(text);
  DropVoidKnobs(*json);
  return json->dump();
}

absl::StatusOr<QuantizerRule> ParseQuantizerRule(const Json& json) {
  if (json.is_string()) return RecipeRule(json.get<std::string>(), {});
  if (json.is_object() && json.contains("format")) return SpecRule(json);
  if (json.is_object()) return NamedRule(json);
  return Refuse("", ShownJson(json),
                "a quantizer is the name of a recipe, {\"name\": ..., \"knobs\": {...}} or "
                "{\"format\": ...}");
}

absl::StatusOr<QuantizerRule> ParseQuantizerRuleText(std::string_view text) {
  if (!text.starts_with("{")) return RecipeRule(std::string(text), {});
  QG_ASSIGN_OR_RETURN(const Json json, ParseJson(text));
  return ParseQuantizerRule(json);
}

}  // namespace quantgate
