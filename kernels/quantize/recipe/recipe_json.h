// Quantizers as JSON: the name of a recipe, {"name": ..., "knobs": {...}}, or {"format": ...} and
// fields (docs/recipes.md section 1). Private to kernels/quantize.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/quantize/recipe/recipe.h"

namespace quantgate {

using Json = nlohmann::json;  // Keys sorted: what is dumped is canonical.

/// INVALID_ARGUMENT for text that is no JSON or too long.
absl::StatusOr<Json> ParseJson(std::string_view text);
/// INVALID_ARGUMENT naming the first key of `json`, an object, that is not known.
absl::Status CheckKeys(const Json& json, const std::set<std::string>& known);

/// What quantizes a tensor in one direction: a recipe, which has a rule for every role and
/// direction, or one rule.
struct Rule {
  std::optional<Recipe> recipe;
  QuantizerSpec spec;
  Json canonical;

  QuantizerSpec For(TensorRole role, Usage usage) const;
};

/// A stored value of a JSON knob without those knobs of recipes in it that have no effect, which
/// 0.1.0 took; what is no JSON as it is.
std::string WithoutVoidKnobs(std::string_view text);

absl::StatusOr<Rule> ParseRule(const Json& json);
/// The same of a knob's text, which is a name or a JSON object.
absl::StatusOr<Rule> ParseRuleText(std::string_view text);

}  // namespace quantgate
