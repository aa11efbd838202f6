#include "kernels/quantize/recipe/recipe.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/base/nested_split.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/quantize/recipe/recipe_json.h"
#include "kernels/quantize/recipe/recipe_quantizers.h"
#include "kernels/quantize/recipe/recipe_table.h"
#include "kernels/tensor/fingerprint.h"

namespace quantgate {
namespace {

constexpr char kNoOverride[] = "delayed scaling has no backward override";

template <class Range, class NameOf>
std::string Joined(const Range& range, std::string_view separator, NameOf name_of) {
  std::string text;
  for (const auto& item : range) {
    if (!text.empty()) text += separator;
    text += name_of(item);
  }
  return text;
}

absl::StatusOr<const RecipeEntry*> EntryOf(std::string_view name) {
  if (const RecipeEntry* entry = FindRecipeEntry(name)) return entry;
  return Refuse("name", ShownValue(name),
                "unknown recipe; known: " +
                    Joined(RecipeEntries(), ", ", [](const RecipeEntry& t) { return t.name; }));
}

constexpr const char* kIgnoredBefore = "; 0.1.0 ignored it: leave it out";

absl::Status UnknownKnob(const RecipeEntry& entry, std::string_view name, std::string_view value) {
  std::vector<std::string_view> owners, own;
  for (const RecipeEntry& other : RecipeEntries()) {
    const Knob* knob = FindKnob(other, name);
    if (knob != nullptr && !knob->is_void) owners.push_back(other.name);
  }
  for (const Knob& knob : entry.knobs) {
    if (!knob.is_void) own.push_back(knob.name);
  }
  const auto same = [](std::string_view name) { return name; };
  const std::string of(entry.name);
  // Requests and commands that were written for 0.1.0, which had no recipes of codes alone, may
  // have it (docs/recipes.md section 1).
  const auto described =
      std::find_if(AllRecipes().begin(), AllRecipes().end(),
                   [&](const RecipeDescription& one) { return one.name == entry.name; });
  const Knob* const stored = FindKnob(entry, name);
  const bool was_ignored = stored != nullptr && !described->is_codes_only &&
                           CanonicalKnobValue(*stored, value).has_value();
  return Refuse(
      KnobField(name), ShownValue(value),
      absl::StrCat(
          owners.empty() ? "unknown knob"
                         : absl::StrCat("a knob of ", Joined(owners, ", ", same), ", not of ", of),
          was_ignored ? kIgnoredBefore : "", "; knobs of ", of, ": ", Joined(own, ", ", same)));
}

absl::Status BadValue(const Knob& knob, std::string_view value) {
  const bool is_float = knob.kind == KnobKind::kNonNegativeFloat;
  return Refuse(KnobField(knob.name), ShownValue(value),
                absl::StrCat("must be one of ", KnobValuesText(knob),
                             is_float ? " (finite, in the range of fp32)" : "",
                             knob.reason.empty() ? "" : "; ", std::string(knob.reason)));
}

/// Names the recipe in an error about knobs that do not go together.
absl::Status BadRecipe(const RecipeEntry& entry, const absl::Status& status) {
  const std::optional<Refusal> refusal = RefusalOf(status);
  if (!refusal.has_value() || !refusal->field.empty()) return status;
  return Refuse("", entry.name, refusal->rule);
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

/// The same if the knob has an effect, else the default.
absl::StatusOr<std::string> Canonical(const RecipeEntry& entry, const Knob& knob,
                                      std::string_view value, bool is_stored) {
  if (is_stored && IsJson(knob)) return CanonicalValue(knob, WithoutVoidKnobs(value));
  if (!knob.is_void) return CanonicalValue(knob, value);
  if (!is_stored) return UnknownKnob(entry, knob.name, value);
  return std::string(knob.choices.front());
}

std::string DefaultValue(const Knob& knob, const Recipe::Knobs& resolved) {
  return knob.inherits.empty() ? std::string(knob.choices.front())
                               : resolved.find(knob.inherits)->second;
}

/// Refuses a knob that is set while the knob that it `needs` has the default. A stored one becomes
/// the default.
absl::Status SettleNeeds(const RecipeEntry& entry, bool is_stored, Recipe::Knobs& resolved) {
  for (const Knob& knob : entry.knobs) {
    if (knob.needs.empty()) continue;
    const std::string& needed = resolved.find(knob.needs)->second;
    std::string& value = resolved.find(knob.name)->second;
    const std::string_view only = knob.choices.front();
    if (value == only || needed != FindKnob(entry, knob.needs)->choices.front()) continue;
    if (!is_stored) {
      return Refuse(KnobField(knob.name), ShownValue(value),
                    absl::StrCat("has no effect while ", std::string(knob.needs), " is ", needed,
                                 "; give that too", knob.is_later ? "" : kIgnoredBefore));
    }
    value = std::string(only);
  }
  return absl::OkStatus();
}

RecipeDescription Describe(const RecipeEntry& entry) {
  RecipeDescription description;
  description.name = std::string(entry.name);
  description.summary = std::string(entry.summary);
  description.is_composed = entry.is_composed();
  for (const Knob& knob : entry.knobs) {
    if (knob.is_void) continue;
    description.knobs.push_back(
        {.name = std::string(knob.name),
         .values = KnobValuesText(knob),
         .default_value = std::string(knob.inherits.empty() ? knob.choices.front() : knob.inherits),
         .summary = std::string(knob.summary)});
  }
  return description;
}

absl::StatusOr<RecipeRules> RulesOf(const RecipeEntry& entry, const Recipe::Knobs& resolved) {
  QG_ASSIGN_OR_RETURN(const RecipeRules rules, entry.kind == RecipeKind::kHybrid
                                                   ? RulesOfHybrid(resolved)
                                                   : RulesOfKnobs(entry.name, resolved));
  QG_RETURN_IF_ERROR(CheckRules(rules));
  return rules;
}

std::string_view NameIn(std::string_view text) { return text.substr(0, text.find(':')); }

/// The knobs that are given after the name.
absl::StatusOr<Recipe::Knobs> KnobsOf(std::string_view text) {
  const size_t colon = text.find(':');
  Recipe::Knobs knobs;
  if (colon == std::string_view::npos) return knobs;
  const std::string_view rest = text.substr(colon + 1);
  if (rest.empty()) {
    return Refuse("", ShownValue(text), "no key=value after the colon");
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

std::string_view TensorRoleName(TensorRole role) {
  switch (role) {
    case TensorRole::kInput:
      return "input";
    case TensorRole::kWeight:
      return "weight";
    case TensorRole::kGradOutput:
      return "grad_output";
    case TensorRole::kOutput:
      return "output";
    case TensorRole::kGradInput:
      return "grad_input";
  }
  return "unknown";
}

absl::StatusOr<TensorRole> ParseTensorRole(std::string_view name) {
  for (const TensorRole role : {TensorRole::kInput, TensorRole::kWeight, TensorRole::kGradOutput}) {
    if (TensorRoleName(role) == name) return role;
  }
  return Refuse("role", ShownValue(name), "must be one of input, weight, grad_output");
}

std::string_view ModuleTypeName(ModuleType module) {
  return module == ModuleType::kLinear ? "linear" : "grouped_linear";
}

std::string ModulePlace::Path() const {
  return absl::StrCat(layer, layer.empty() || unit.empty() ? "" : ".", unit);
}

std::string ModulePlace::Text() const {
  const std::string path = Path();
  return absl::StrCat(std::string(ModuleTypeName(type)), path.empty() ? "" : " ",
                      path.empty() ? "" : ShownValue(path));
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
  return Refuse("backward_override", ShownValue(name),
                "must be one of none, high_precision, dequantized (first names: default, unquant, "
                "dequant)");
}

const std::vector<RecipeDescription>& AllRecipes() {
  static const auto& all = *[] {
    auto* list = new std::vector<RecipeDescription>;
    for (const RecipeEntry& entry : RecipeEntries()) {
      RecipeDescription& description = list->emplace_back(Describe(entry));
      const auto recipe = Recipe::Create(entry.name, {});
      description.is_codes_only = recipe.ok() && !recipe->CheckForLayers().ok();
    }
    return list;
  }();
  return all;
}

absl::StatusOr<Recipe> Recipe::Create(std::string_view name, const Knobs& knobs) {
  return Make(name, knobs, /*is_stored=*/false);
}

absl::StatusOr<Recipe> Recipe::Make(std::string_view name, const Knobs& knobs, bool is_stored) {
  QG_ASSIGN_OR_RETURN(const RecipeEntry* entry, EntryOf(name));
  for (const auto& [key, value] : knobs) {
    if (FindKnob(*entry, key) == nullptr) return UnknownKnob(*entry, key, value);
  }
  Recipe recipe;
  recipe.name_ = std::string(name);
  Knobs resolved;
  for (const Knob& knob : entry->knobs) {
    const auto given = knobs.find(knob.name);
    std::string value = given == knobs.end() ? DefaultValue(knob, resolved) : given->second;
    if (given != knobs.end()) {
      QG_ASSIGN_OR_RETURN(value, Canonical(*entry, knob, given->second, is_stored));
    }
    resolved.emplace(knob.name, std::move(value));
  }
  QG_RETURN_IF_ERROR(SettleNeeds(*entry, is_stored, resolved));
  QG_ASSIGN_OR_RETURN(recipe.backward_override_,
                      ParseBackwardOverride(resolved.at("backward_override")));
  recipe.activation_dtype_ = ActivationDType(resolved.at("activation_dtype"));

  if (entry->kind == RecipeKind::kCustom) {
    QG_RETURN_IF_ERROR(recipe.TakeRules(resolved.at("rules")));
  } else {
    const absl::StatusOr<RecipeRules> rules = RulesOf(*entry, resolved);
    if (!rules.ok()) return BadRecipe(*entry, rules.status());
    recipe.Take(*rules);
  }
  for (const TensorRole role : kTensorRoles) {
    for (const Quantizer& quantizer : recipe.QuantizersOf(role)) {
      recipe.is_delayed_ |= !quantizer.delayed_directions().empty();
    }
  }
  // Rules by module may give delayed scaling to no module that is there (CheckModule).
  if (recipe.is_delayed_ && !recipe.depends_on_module_ &&
      recipe.backward_override_ != BackwardOverride::kNone) {
    return Refuse(KnobField("backward_override"), ShownValue(resolved.at("backward_override")),
                  kNoOverride);
  }
  for (const Knob& knob : entry->knobs) {
    if (knob.is_void) resolved.erase(resolved.find(knob.name));
  }
  recipe.knobs_ = std::make_shared<const Knobs>(std::move(resolved));
  return recipe;
}

void Recipe::Take(const RecipeRules& rules) {
  quantizers_ = rules.quantizers;
  split_ = rules.split;
  delayed_scaling_ = rules.delayed;
}

absl::Status Recipe::TakeRules(const std::string& text) {
  QG_ASSIGN_OR_RETURN(CustomRules rules, CustomRules::Parse(text));
  rules_ = std::make_shared<const CustomRules>(std::move(rules));
  depends_on_module_ = rules_->DependOnModule();
  const RecipeRules meant = rules_->RulesFor(place_);
  Take(meant);
  if (depends_on_module_) return absl::OkStatus();
  for (const TensorRole role : kTensorRoles) {
    if (!rules_->Fits(role, place_))
      return Refuse(KnobField("rules"), ShownValue(text), CustomRules::NoRuleText(role, place_));
  }
  return BadRecipe(*FindRecipeEntry(name_), CheckRules(meant));
}

absl::StatusOr<Recipe> Recipe::Parse(std::string_view text) {
  QG_ASSIGN_OR_RETURN(const Knobs knobs, KnobsOf(text));
  return Make(NameIn(text), knobs, /*is_stored=*/false);
}

absl::StatusOr<Recipe> Recipe::ParseStored(std::string_view text) {
  QG_ASSIGN_OR_RETURN(const Knobs knobs, KnobsOf(text));
  return Make(NameIn(text), knobs, /*is_stored=*/true);
}

Recipe::Knobs Recipe::CanonicalKnobs() const {
  Knobs canonical = knobs();
  for (const Knob& knob : FindRecipeEntry(name_)->knobs) {
    if (knob.is_void) {
      // Digests have had it since 0.1.0.
      if (!knob.is_later) canonical.emplace(knob.name, knob.choices.front());
      continue;
    }
    const auto resolved = canonical.find(knob.name);
    if (knob.is_later && resolved->second == DefaultValue(knob, knobs())) canonical.erase(resolved);
  }
  return canonical;
}

std::string Recipe::CanonicalText() const {
  return absl::StrCat(name_, ":", Joined(CanonicalKnobs(), ",", [](const auto& knob) {
                        return absl::StrCat(knob.first, "=", knob.second);
                      }));
}

std::string Recipe::ShortText() const {
  std::string text = name_;
  for (const Knob& knob : FindRecipeEntry(name_)->knobs) {
    if (knob.is_void) continue;
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

Recipe Recipe::ForModule(const ModulePlace& place) const {
  Recipe recipe = *this;
  if (!depends_on_module_ || place == place_) return recipe;
  recipe.place_ = place;
  recipe.Take(rules_->RulesFor(place));
  return recipe;
}

absl::Status Recipe::CheckModule() const {
  if (!depends_on_module_) return absl::OkStatus();
  bool is_delayed = false;
  for (const TensorRole role : kTensorRoles) {
    QG_RETURN_IF_ERROR(CheckFits(role));
    is_delayed |= !QuantizerFor(role).delayed_directions().empty();
  }
  if (is_delayed && backward_override_ != BackwardOverride::kNone) {
    return Refuse("backward_override", std::string(BackwardOverrideName(backward_override_)),
                  absl::StrCat(place_.Text(), ": ", kNoOverride));
  }
  const absl::Status status = CheckRules(rules_->RulesFor(place_));
  if (status.ok()) return status;
  return Refuse("recipe", name_, absl::StrCat(place_.Text(), ": ", status.message()));
}

absl::Status Recipe::CheckRole(TensorRole role) const {
  if (!depends_on_module_) return absl::OkStatus();
  QG_RETURN_IF_ERROR(CheckFits(role));
  const absl::Status status = CheckQuantizerOf(role, QuantizerFor(role));
  if (status.ok()) return status;
  return Refuse("recipe", name_, absl::StrCat(place_.Text(), ": ", status.message()));
}

absl::Status Recipe::CheckForLayers() const {
  for (size_t role = 0; role < kTensorRoleCount; ++role) {
    for (const Quantizer& quantizer : QuantizersOf(static_cast<TensorRole>(role))) {
      for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
        const ScalingTraits& traits = quantizer.spec(usage).traits();
        if (!traits.has_levels()) continue;
        return Refuse("recipe", ShortText(),
                      absl::StrCat(std::string(traits.name),
                                   " is for quantize, dequantize, explain and gemm; layers and "
                                   "sessions have no such codes"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Recipe::CheckFits(TensorRole role) const {
  if (rules_->Fits(role, place_)) return absl::OkStatus();
  return Refuse("recipe", name_, CustomRules::NoRuleText(role, place_));
}

std::vector<Quantizer> Recipe::QuantizersOf(TensorRole role) const {
  if (!depends_on_module_) return {QuantizerFor(role)};
  return rules_->QuantizersOf(role);
}

std::vector<std::string> Recipe::UnusedRules(std::span<const RuledModule> modules,
                                             std::string_view where) const {
  if (rules_ == nullptr) return {};
  return rules_->Unused(modules, where);
}

bool Recipe::is_quantized() const {
  return std::any_of(kTensorRoles.begin(), kTensorRoles.end(), [&](TensorRole role) {
    const Quantizer& quantizer = QuantizerFor(role);
    return quantizer.rowwise.makes_copy() || quantizer.columnwise.makes_copy();
  });
}

bool Recipe::RoundsStochastically(TensorRole role) const {
  return QuantizerFor(role).rounds_stochastically();
}

Recipe Recipe::WithBackwardOverride(BackwardOverride override_mode) const {
  Recipe recipe = *this;
  recipe.backward_override_ = override_mode;
  Knobs changed = knobs();
  const auto named = changed.find("backward_override");
  if (named == changed.end()) return recipe;  // No layer takes this recipe.
  named->second = std::string(BackwardOverrideName(override_mode));
  recipe.knobs_ = std::make_shared<const Knobs>(std::move(changed));
  return recipe;
}

}  // namespace quantgate
