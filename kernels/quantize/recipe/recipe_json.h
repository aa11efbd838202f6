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

using Json = nlohmann::json;  // Sorts keys, so that dumped text is canonical.

/// INVALID_ARGUMENT for text that is not JSON, is too long or too deep, or has an object with a key
/// twice, of which one would be lost.
absl::StatusOr<Json> ParseJson(std::string_view text);
/// `json` as a refusal shows it: text in quotes; what is longer than 200 bytes is cut and ends in
/// "...".
std::string ShownJson(const Json& json);
/// INVALID_ARGUMENT naming the first key of `json`, an object, that is not known.
absl::Status CheckKeys(const Json& json, const std::set<std::string>& known);

/// How a tensor is quantized in one direction: by a recipe, which has a rule for every role and
/// direction, or by one rule.
struct QuantizerRule {
  std::optional<Recipe> recipe;
  QuantizerSpec spec;
  Json canonical;

  QuantizerSpec For(TensorRole role, Usage usage) const;
};

/// A stored value of a JSON knob without the knobs of recipes in it that have no effect, which
/// 0.1.0 accepted. Text that is not JSON is returned unchanged.
std::string WithoutVoidKnobs(std::string_view text);

/// INVALID_ARGUMENT says what is wrong.
absl::StatusOr<QuantizerRule> ParseQuantizerRule(const Json& json);
/// The same for the text of a knob, which is a name or a JSON object.
absl::StatusOr<QuantizerRule> ParseQuantizerRuleText(std::string_view text);

}  // namespace quantgate
