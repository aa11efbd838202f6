// Recipes and their knobs as data. A recipe or a knob is one entry here; what the knobs mean is
// recipe_quantizers.cc and, for hybrid and custom, recipe_composed.cc. Private to kernels/quantize.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "kernels/quantize/recipe/recipe.h"

namespace quantgate {

enum class KnobKind {
  kChoice,
  kNonNegativeFloat,
  kInteger,
  kRule,       ///< A recipe, or JSON for one with knobs or for a quantizer: recipe_composed.h.
  kDirection,  ///< JSON for both directions of a role, or "gemm".
  kRules,      ///< JSON: a list of role -> quantizer rules.
};

/// One knob. A knob whose default is another knob of the same recipe (`inherits`) takes that one's
/// resolved value; such a knob stands behind it in the table.
struct Knob {
  std::string_view name;
  KnobKind kind;
  std::vector<std::string_view> choices;  ///< Default first; of other kinds the default alone.
  std::string_view summary;
  std::string_view inherits = {};
  /// Accepted -> canonical.
  std::vector<std::pair<std::string_view, std::string_view>> synonyms = {};
  std::string_view reason = {};  ///< Why other values are refused, where that is worth saying.
  int64_t minimum = 0;           ///< kInteger.
  int64_t maximum = 0;
  /// The recipe is the same whatever the value, which must be the default: a part of canonical
  /// texts and digests since 0.1.0, and in no listing.
  bool is_void = false;
  /// The knob without which, at its default, this one means nothing and must be at its own.
  std::string_view needs = {};
};

/// What kinds of recipes differ in.
enum class RecipeKind {
  kBase,     ///< Its meaning is a function of its knobs: recipe_quantizers.cc.
  kDelayed,  ///< The same with scales of earlier steps, which goes into no other recipe.
  kHybrid,
  kCustom,
};

struct RecipeTable {
  RecipeKind kind;
  std::string_view name;
  std::string_view summary;
  std::vector<Knob> knobs;
  bool is_composed() const { return kind == RecipeKind::kHybrid || kind == RecipeKind::kCustom; }
};

/// Every recipe of this build, in the order listings print them.
const std::vector<RecipeTable>& RecipeTables();
const RecipeTable* FindRecipeTable(std::string_view name);
const Knob* FindKnob(const RecipeTable& table, std::string_view name);

/// "false|true", "float >= 0", "integer 1 to 1048576".
std::string KnobValuesText(const Knob& knob);

/// The shortest decimal that reads back as the same float.
std::string FloatText(float value);
/// A finite float >= 0, without the sign of -0.
std::optional<float> ParseNonNegativeFloat(std::string_view text);

/// The canonical text of a value of a kind that this table knows by itself (not the JSON kinds), or
/// nothing when it is not allowed.
std::optional<std::string> CanonicalKnobValue(const Knob& knob, std::string_view value);

/// A value from outside, quoted and cut for a message.
std::string ShownValue(std::string_view value);
/// Where a knob stands in a recipe: knobs["fp8_format"].
std::string KnobField(std::string_view name);

}  // namespace quantgate
