// Recipes and lists as the command line has them.
//
// A recipe is "name", "name:key=value,key=value", or @FILE.json holding {"name": ..., "knobs":
// {...}}. A list of recipes or arithmetics repeats the option or separates by commas. Knobs hold
// commas too, so a comma starts a new item only before a part that is no "key=value" (a '=' after a
// ':' belongs to a new item):
//   bf16,fp8_current:power_2_scales=true,fp8_format=e4m3,fp8_current
//   bf16 | fp8_current:power_2_scales=true,fp8_format=e4m3 | fp8_current
// Commas within JSON, which the knobs of hybrid and custom hold, separate nothing.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "quantgate/v1/recipe.pb.h"

namespace quantgate {

/// INVALID_ARGUMENT for bad syntax, a knob given twice, or a file that is no recipe; NOT_FOUND for
/// no file; each names `option`. Whether the recipe and its knobs exist is the server's to say.
absl::StatusOr<v1::Recipe> ParseRecipeArgument(const std::string& text,
                                               const std::string& option = "--recipe");

/// "fp8_current:power_2_scales=true", knobs in order of their names.
std::string RecipeText(const v1::Recipe& recipe);

/// Splits each of `values` by the rule above. INVALID_ARGUMENT naming `option` for an empty item.
absl::StatusOr<std::vector<std::string>> SplitItems(std::string_view option,
                                                    const std::vector<std::string>& values);

}  // namespace quantgate
