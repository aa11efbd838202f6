// The recipes that are made of others: hybrid and custom, whose knobs hold JSON
// (docs/recipes.md section 1). Private to kernels/quantize.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/quantize/recipe/recipe_quantizers.h"

namespace quantgate {

/// The canonical text of a value of the kinds kRule, kDirection and kRules: names stay names, JSON
/// is what differs from the defaults, keys sorted. INVALID_ARGUMENT says what is wrong inside.
absl::StatusOr<std::string> CanonicalComposedValue(const Knob& knob, std::string_view value);

/// The rules of hybrid or custom for modules of one type; every knob is in `knobs`, canonical.
absl::StatusOr<RecipeRules> RulesOfComposed(RecipeKind kind, const Recipe::Knobs& knobs,
                                            ModuleType module);

}  // namespace quantgate
