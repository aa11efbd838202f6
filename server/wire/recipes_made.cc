#include "server/wire/recipes_made.h"

#include <algorithm>

namespace quantgate {

std::optional<Recipe> RecipesMade::Find(const v1::Recipe& proto) const {
  const std::lock_guard lock(mutex_);
  const auto it = recipes_.find(KeyOf(proto));
  return it == recipes_.end() ? std::nullopt : std::optional(it->second);
}

void RecipesMade::Add(const v1::Recipe& proto, const Recipe& recipe) noexcept {
  if (proto.ByteSizeLong() > kRecipeBytesMax) return;
  const std::lock_guard lock(mutex_);
  if (recipes_.size() == kRecipesMax) recipes_.clear();
  recipes_.emplace(KeyOf(proto), recipe);
}

RecipesMade::Key RecipesMade::KeyOf(const v1::Recipe& proto) {
  Key key = {proto.name(), {proto.knobs().begin(), proto.knobs().end()}};
  std::sort(key.second.begin(), key.second.end());
  return key;
}

}  // namespace quantgate
