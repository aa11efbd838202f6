// Conversions of recipes, arithmetics and environments between messages and domain types.
#pragma once

#include <cstddef>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "kernels/engine/engine.h"
#include "kernels/gemm/arithmetic.h"
#include "kernels/quantize/recipe/recipe.h"
#include "quantgate/v1/recipe.pb.h"
#include "quantgate/v1/report.pb.h"

namespace quantgate {

/// INVALID_ARGUMENT naming FIELD.name or FIELD.knobs["KNOB"].
absl::StatusOr<Recipe> RecipeFromProto(const v1::Recipe& proto, const std::string& field);

v1::RecipeDescription RecipeDescriptionToProto(const RecipeDescription& description);
v1::ArithmeticDescription ArithmeticDescriptionToProto(const ArithmeticDescription& description);
/// The environment of this build and these devices.
v1::Environment EnvironmentToProto(std::span<const DeviceDescription> devices);

/// The recipes of earlier requests, since most requests name the same few. Thread-safe.
class RecipeCache {
 public:
  static constexpr size_t kRecipesMax = 256, kRecipeBytesMax = 4096;

  std::optional<Recipe> Find(const v1::Recipe& proto) const;
  /// Keeps a recipe whose message has at most kRecipeBytesMax bytes. Where kRecipesMax are kept
  /// already, all of them are dropped first.
  void Add(const v1::Recipe& proto, const Recipe& recipe) noexcept;

 private:
  using Key = std::pair<std::string, std::vector<std::pair<std::string, std::string>>>;
  static Key KeyOf(const v1::Recipe& proto);

  mutable std::mutex mutex_;
  absl::flat_hash_map<Key, Recipe> recipes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quantgate
