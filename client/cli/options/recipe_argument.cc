#include "client/cli/options/recipe_argument.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/nested_split.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strict_json.h"

namespace quantgate {
namespace {

constexpr size_t kRecipeFileBytesMax = 1 << 20;
constexpr int kRecipeDepthMax = 32;

absl::Status RefuseRecipe(const std::string& option, const std::string& text,
                          const std::string& rule) {
  return absl::InvalidArgumentError(absl::StrCat(option, ": \"", text, "\": ", rule));
}

/// A knob's value as text: the engine parses numbers, booleans and JSON itself.
absl::StatusOr<std::string> KnobText(const std::string& option, const std::string& path,
                                     const std::string& key, const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_null()) return value.dump();
  return RefuseRecipe(option, path, absl::StrCat("knobs.", key, " must not be null"));
}

absl::StatusOr<v1::Recipe> RecipeOfJson(const std::string& option, const std::string& path,
                                        const nlohmann::json& json) {
  v1::Recipe recipe;
  if (!json.is_object())
    return RefuseRecipe(option, path, "a recipe is an object {\"name\": ..., \"knobs\": {...}}");
  for (const auto& [key, value] : json.items()) {
    if (key == "name" && value.is_string()) {
      recipe.set_name(value.get<std::string>());
    } else if (key == "knobs" && value.is_object()) {
      for (const auto& [knob, setting] : value.items()) {
        QG_ASSIGN_OR_RETURN((*recipe.mutable_knobs())[knob], KnobText(option, path, knob, setting));
      }
    } else {
      return RefuseRecipe(
          option, path,
          absl::StrCat("\"", key, "\" is neither a \"name\" in text nor an object of \"knobs\""));
    }
  }
  if (recipe.name().empty()) return RefuseRecipe(option, path, "the recipe has no \"name\"");
  return recipe;
}

absl::StatusOr<v1::Recipe> ReadRecipeFile(const std::string& option, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return absl::NotFoundError(absl::StrCat(option, ": ", path, ": ", std::strerror(errno)));
  }
  std::string text(kRecipeFileBytesMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kRecipeFileBytesMax) return RefuseRecipe(option, path, "longer than 1 MiB");
  const auto json = ParseStrictJson(text, kRecipeDepthMax);
  if (!json.ok()) return RefuseRecipe(option, path, RefusalOf(json.status())->rule);
  return RecipeOfJson(option, path, *json);
}

}  // namespace

absl::StatusOr<v1::Recipe> ParseRecipeArgument(const std::string& text, const std::string& option) {
  if (text.rfind('@', 0) == 0) return ReadRecipeFile(option, text.substr(1));
  v1::Recipe recipe;
  const size_t colon = text.find(':');
  recipe.set_name(text.substr(0, colon));
  if (recipe.name().empty()) return RefuseRecipe(option, text, "the recipe has no name");
  if (colon == std::string::npos) return recipe;
  const std::string rest = text.substr(colon + 1);
  for (const std::string_view part : SplitOutsideJson(rest, ',')) {
    const std::string knob(part);
    const size_t equals = knob.find('=');
    if (equals == std::string::npos || equals == 0) {
      return RefuseRecipe(option, text, absl::StrCat("\"", knob, "\" is no key=value"));
    }
    const std::string key = knob.substr(0, equals);
    if (recipe.knobs().contains(key))
      return RefuseRecipe(option, text, absl::StrCat(key, " is given twice"));
    (*recipe.mutable_knobs())[key] = knob.substr(equals + 1);
  }
  return recipe;
}

std::string RecipeText(const v1::Recipe& recipe) {
  const std::map<std::string, std::string> knobs(recipe.knobs().begin(), recipe.knobs().end());
  if (knobs.empty()) return recipe.name();
  return absl::StrCat(recipe.name(), ":", absl::StrJoin(knobs, ",", absl::PairFormatter("=")));
}

absl::StatusOr<std::vector<std::string>> SplitItems(std::string_view option,
                                                    const std::vector<std::string>& values) {
  std::vector<std::string> items;
  for (const std::string& value : values) {
    const size_t first = items.size();
    for (const std::string_view outside : SplitOutsideJson(value, ',')) {
      const std::string part(outside);
      if (part.empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat(std::string(option), ": \"", value, "\": an item is empty"));
      }
      const size_t equals = part.find('=');
      const bool continues_item = equals != std::string::npos && part.find(':') > equals;
      if (!continues_item) {
        items.push_back(part);
        continue;
      }
      if (items.size() == first || items.back().find(':') == std::string::npos) {
        return absl::InvalidArgumentError(
            absl::StrCat(std::string(option), ": \"", value, "\": \"", part,
                         "\" follows no item with a colon; write name:key=value"));
      }
      absl::StrAppend(&items.back(), ",", part);
    }
  }
  return items;
}

}  // namespace quantgate
