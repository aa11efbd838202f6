// RecipesMade: recipes that were made of names and knobs, since most requests name the same few.
// Thread-safe.
#pragma once

#include <cstddef>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "kernels/quantize/recipe/recipe.h"
#include "quantgate/v1/recipe.pb.h"

namespace quantgate {

class RecipesMade {
 public:
  static constexpr size_t kRecipesMax = 256, kRecipeBytesMax = 4096;

  std::optional<Recipe> Find(const v1::Recipe& proto) const;
  /// One more than kRecipesMax drops all before it; one of more than kRecipeBytesMax bytes is not
  /// kept.
  void Add(const v1::Recipe& proto, const Recipe& recipe) noexcept;

 private:
  using Key = std::pair<std::string, std::vector<std::pair<std::string, std::string>>>;
  static Key KeyOf(const v1::Recipe& proto);

  mutable std::mutex mutex_;
  absl::flat_hash_map<Key, Recipe> recipes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quantgate
