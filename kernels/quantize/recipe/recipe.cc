#include "kernels/quantize/recipe/recipe.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/base/nested_split.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/quantize/recipe/recipe_composed.h"
#include "kernels/quantize/recipe/recipe_json.h"
#include "kernels/quantize/recipe/recipe_quantizers.h"
#include "kernels/quantize/recipe/recipe_table.h"
#include "kernels/tensor/fingerprint.h"

namespace quantgate {
namespace {

template <class Range, class NameOf>
std::string Joined(const Range& range, std::string_view separator, NameOf name_of) {
  std::string text;
  for (const auto& item : range) {
    if (!text.empty()) text += separator;
    text += name_of(item);
  }
  return text;
}

absl::StatusOr<const RecipeTable*> TableOf(std::string_view name) {
  if (const RecipeTable* table = FindRecipeTable(name)) return table;
  return Refuse("name", ShownValue(name),
                "unknown recipe; known: " +
                    Joined(RecipeTables(), ", ", [](const RecipeTable& t) { return t.name; }));
}

absl::Status UnknownKnob(const RecipeTable& table, std::string_view name, std::string_view value) {
  std::vector<std::string_view> owners, own;
  for (const RecipeTable& other : RecipeTables()) {
    const Knob* knob = FindKnob(other, name);
    if (knob != nullptr && !knob->is_void) owners.push_back(other.name);
  }
  for (const Knob& knob : table.knobs) {
    if (!knob.is_void) own.push_back(knob.name);
  }
  const auto same = [](std::string_view name) { return name; };
  const std::string of(table.name);
  return Refuse(KnobField(name), ShownValue(value),
                absl::StrCat(owners.empty() ? "unknown knob"
                                            : absl::StrCat("a knob of ", Joined(owners, ", ", same),
                                                           ", not of ", of),
                             "; knobs of ", of, ": ", Joined(own, ", ", same)));
}

absl::Status BadValue(const Knob& knob, std::string_view value) {
  const bool is_float = knob.kind == KnobKind::kNonNegativeFloat;
  return Refuse(KnobField(knob.name), ShownValue(value),
                absl::StrCat("must be one of ", KnobValuesText(knob),
                             is_float ? " (finite, in the range of fp32)" : "",
                             knob.reason.empty() ? "" : "; ", std::string(knob.reason)));
}

/// What is wrong of the whole, knobs that do not go together, is said of the recipe by its name.
absl::Status BadRecipe(const RecipeTable& table, const absl::Status& status) {
  const std::optional<Refusal> refusal = RefusalOf(status);
  if (!refusal.has_value() || !refusal->field.empty()) return status;
  return Refuse("", table.name, refusal->rule);
}

bool IsJson(const Knob& knob) {
  return knob.kind == KnobKind::kRule || knob.kind == KnobKind::kDirection ||
         knob.kind == KnobKind::kRules;
}

/// The canonical text of a given value.
absl::StatusOr<std::string> CanonicalValue(const Knob& knob, std::string_view value) {
  if (!IsJson(knob)) {
    std::optional<std::string> canonical = CanonicalKnobValue(knob, value);
    if (!canonical) return BadValue(knob, value);
    return *std::move(canonical);
  }
  absl::StatusOr<std::string> canonical = CanonicalComposedValue(knob, value);
  if (canonical.ok()) return canonical;
  return WithinField(KnobField(knob.name), canonical.status());
}

/// The same of a knob that has an effect, or the default of one that has none.
absl::StatusOr<std::string> Canonical(const RecipeTable& table, const Knob& knob,
                                      std::string_view value, bool is_stored) {
  if (is_stored && IsJson(knob)) return CanonicalValue(knob, WithoutVoidKnobs(value));
  if (!knob.is_void) return CanonicalValue(knob, value);
  const std::string_view only = knob.choices.front();
  if (value != only && !is_stored) return UnknownKnob(table, knob.name, value);
  return std::string(only);
}

std::string DefaultValue(const Knob& knob, const Recipe::Knobs& resolved) {
  return knob.inherits.empty() ? std::string(knob.choices.front())
                               : resolved.find(knob.inherits)->second;
}

/// Holds knobs that need another to it; stored ones become their defaults.
absl::Status SettleNeeds(const RecipeTable& table, bool is_stored, Recipe::Knobs& resolved) {
  for (const Knob& knob : table.knobs) {
    if (knob.needs.empty()) continue;
    const std::string& needed = resolved.find(knob.needs)->second;
    std::string& value = resolved.find(knob.name)->second;
    const std::string_view only = knob.choices.front();
    if (value == only || needed != FindKnob(table, knob.needs)->choices.front()) continue;
    if (!is_stored) {
      return Refuse(KnobField(knob.name), ShownValue(value),
                    absl::StrCat("has no effect while ", std::string(knob.needs), " is ", needed,
                                 "; give that too"));
    }
    value = std::string(only);
  }
  return absl::OkStatus();
}

RecipeDescription Describe(const RecipeTable& table) {
  RecipeDescription description;
  description.name = std::string(table.name);
  description.summary = std::string(table.summary);
  description.is_composed = table.is_composed();
  for (const Knob& knob : table.knobs) {
    if (knob.is_void) continue;
    description.knobs.push_back(
        {.name = std::string(knob.name),
         .values = KnobValuesText(knob),
         .default_value = std::string(knob.inherits.empty() ? knob.choices.front() : knob.inherits),
         .summary = std::string(knob.summary)});
  }
  return description;
}

absl::StatusOr<RecipeRules> RulesOf(const RecipeTable& table, const Recipe::Knobs& resolved,
                                    ModuleType module) {
  QG_ASSIGN_OR_RETURN(const RecipeRules rules, table.is_composed()
                                                   ? RulesOfComposed(table.kind, resolved, module)
                                                   : RulesOfKnobs(table.name, resolved));
  absl::Status status = CheckRules(rules);
  if (status.ok()) return rules;
  // What is wrong of linear modules is said of the recipe; grouped_linear comes after them.
  if (module == ModuleType::kLinear) return status;
  return Refuse("", "", absl::StrCat(std::string(ModuleTypeName(module)), ": ", status.message()));
}

std::string_view NameIn(std::string_view text) { return text.substr(0, text.find(':')); }

/// What is given behind the name.
absl::StatusOr<Recipe::Knobs> KnobsOf(std::string_view text) {
  const size_t colon = text.find(':');
  Recipe::Knobs knobs;
  if (colon == std::string_view::npos) return knobs;
  const std::string_view rest = text.substr(colon + 1);
  if (rest.empty()) {
    return Refuse("", ShownValue(text), "no key=value behind the colon");
  }
  for (const std::string_view item : SplitOutsideJson(rest, ',')) {
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      return Refuse(
          "", ShownValue(text),
          absl::StrCat(ShownValue(item), " is not key=value; write name:key=value,key=value"));
    }
    if (!knobs.emplace(item.substr(0, equals), item.substr(equals + 1)).second) {
      return Refuse(KnobField(item.substr(0, equals)), ShownValue(item.substr(equals + 1)),
                    "is given twice");
    }
  }
  return knobs;
}

std::optional<DType> ActivationDType(const std::string& value) {
  if (value == "input") return std::nullopt;
  return *ParseDType(value);
}

}  // namespace

const std::vector<RecipeDescription>& AllRecipes() {
  static const auto& all = *[] {
    auto* list = new std::vector<RecipeDescription>;
    for (const RecipeTable& table : RecipeTables()) list->push_back(Describe(table));
    return list;
  }();
  return all;
}

absl::StatusOr<Recipe> Recipe::Create(std::string_view name, const Knobs& knobs) {
  return Make(name, knobs, /*is_stored=*/false);
}

absl::StatusOr<Recipe> Recipe::Make(std::string_view name, const Knobs& knobs, bool is_stored) {
  QG_ASSIGN_OR_RETURN(const RecipeTable* table, TableOf(name));
  for (const auto& [key, value] : knobs) {
    if (FindKnob(*table, key) == nullptr) return UnknownKnob(*table, key, value);
  }
  Recipe recipe;
  recipe.name_ = std::string(name);
  Knobs resolved;
  for (const Knob& knob : table->knobs) {
    const auto given = knobs.find(knob.name);
    std::string value = given == knobs.end() ? DefaultValue(knob, resolved) : given->second;
    if (given != knobs.end()) {
      QG_ASSIGN_OR_RETURN(value, Canonical(*table, knob, given->second, is_stored));
    }
    resolved.emplace(knob.name, std::move(value));
  }
  QG_RETURN_IF_ERROR(SettleNeeds(*table, is_stored, resolved));
  QG_ASSIGN_OR_RETURN(recipe.backward_override_,
                      ParseBackwardOverride(resolved.at("backward_override")));
  recipe.activation_dtype_ = ActivationDType(resolved.at("activation_dtype"));

  std::array<Quantizers, kModuleTypes.size()> by_module;
  for (const ModuleType module : kModuleTypes) {
    const absl::StatusOr<RecipeRules> rules = RulesOf(*table, resolved, module);
    if (!rules.ok()) return BadRecipe(*table, rules.status());
    by_module[static_cast<size_t>(module)] = rules->quantizers;
    if (module != ModuleType::kLinear) continue;
    recipe.quantizers_ = rules->quantizers;
    recipe.split_ = rules->split;
    recipe.delayed_scaling_ = rules->delayed;
  }
  if (by_module.front() != by_module.back()) {
    recipe.by_module_ = std::make_shared<const decltype(by_module)>(by_module);
  }
  recipe.knobs_ = std::make_shared<const Knobs>(std::move(resolved));
  return recipe;
}

absl::StatusOr<Recipe> Recipe::Parse(std::string_view text) {
  QG_ASSIGN_OR_RETURN(const Knobs knobs, KnobsOf(text));
  return Make(NameIn(text), knobs, /*is_stored=*/false);
}

absl::StatusOr<Recipe> Recipe::ParseStored(std::string_view text) {
  QG_ASSIGN_OR_RETURN(const Knobs knobs, KnobsOf(text));
  return Make(NameIn(text), knobs, /*is_stored=*/true);
}

std::string Recipe::CanonicalText() const {
  return absl::StrCat(name_, ":", Joined(knobs(), ",", [](const auto& knob) {
                        return absl::StrCat(knob.first, "=", knob.second);
                      }));
}

std::string Recipe::ShortText() const {
  std::string text = name_;
  for (const Knob& knob : FindRecipeTable(name_)->knobs) {
    const std::string& value = knobs().find(knob.name)->second;
    if (value == DefaultValue(knob, knobs())) continue;
    absl::StrAppend(&text, text.size() == name_.size() ? ":" : ",", std::string(knob.name), "=",
                    value);
  }
  return text;
}

std::string Recipe::Digest() const {
  const std::string text = CanonicalText();
  return Sha256Of(std::as_bytes(std::span(text))).Hex();
}

Recipe Recipe::ForModule(ModuleType module) const {
  Recipe recipe = *this;
  if (by_module_ != nullptr) recipe.quantizers_ = (*by_module_)[static_cast<size_t>(module)];
  return recipe;
}

bool Recipe::is_quantized() const {
  return std::any_of(quantizers_.begin(), quantizers_.end(), [](const Quantizer& quantizer) {
    return quantizer.rowwise.is_quantized() || quantizer.columnwise.is_quantized();
  });
}

bool Recipe::is_delayed() const {
  return QuantizerFor(TensorRole::kInput).rowwise.scaling == Scaling::kDelayed;
}

bool Recipe::RoundsStochastically(TensorRole role) const {
  return QuantizerFor(role).rounds_stochastically();
}

Recipe Recipe::WithBackwardOverride(BackwardOverride override_mode) const {
  Recipe recipe = *this;
  recipe.backward_override_ = override_mode;
  Knobs changed = knobs();
  changed["backward_override"] = std::string(BackwardOverrideName(override_mode));
  recipe.knobs_ = std::make_shared<const Knobs>(std::move(changed));
  return recipe;
}

}  // namespace quantgate
