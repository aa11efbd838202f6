// Recipes and their knobs as data: a recipe or a knob is one entry here. The meaning of the knobs
// is in recipe_quantizers.cc and, for hybrid and custom, in recipe_composed.cc. Private to
// kernels/quantize.
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
  kRule,       ///< A recipe, or JSON for one with knobs or for a quantizer: recipe_composed.cc.
  kDirection,  ///< JSON for both directions of a role, or "gemm".
  kRules,      ///< JSON: a list of role -> quantizer rules.
};

/// One knob. A knob that `inherits` another knob of the same recipe defaults to the resolved value
/// of that knob and stands after it in the table.
struct Knob {
  std::string_view name;
  KnobKind kind;
  std::vector<std::string_view>
      choices;  ///< The default first; for kinds without choices only that.
  std::string_view summary;
  std::string_view inherits = {};
  /// Accepted names and their canonical ones.
  std::vector<std::pair<std::string_view, std::string_view>> synonyms = {};
  std::string_view reason = {};  ///< Why other values are refused; empty if that is obvious.
  int64_t minimum = 0;           ///< kInteger.
  int64_t maximum = 0;
  /// The recipe does not have this knob. A request that sets it is refused, whatever the value; in
  /// something that was stored any value is replaced by the default. No listing has it. It exists
  /// because canonical texts and digests have had it since 0.1.0.
  bool is_void = false;
  /// The knob on which this one depends: while that knob has its default, this one must have its
  /// own default.
  std::string_view needs = {};
  /// The knob came after 0.1.0: canonical texts, digests and what a session says of its recipe
  /// leave it out while it has its default, as those of recipes that were written before it.
  bool is_later = false;
};

/// How the meaning of a recipe is found.
enum class RecipeKind {
  kBase,  ///< It is a function of the knobs: recipe_quantizers.cc.
  kHybrid,
  kCustom,
};

/// One recipe.
struct RecipeEntry {
  RecipeKind kind;
  std::string_view name;
  std::string_view summary;
  std::vector<Knob> knobs;
  bool is_composed() const { return kind == RecipeKind::kHybrid || kind == RecipeKind::kCustom; }
};

/// Every recipe of this build, in the order of listings.
const std::vector<RecipeEntry>& RecipeEntries();
/// Null if there is none of that name.
const RecipeEntry* FindRecipeEntry(std::string_view name);
const Knob* FindKnob(const RecipeEntry& entry, std::string_view name);

/// The allowed values as text: "false|true", "float >= 0", "integer 1 to 1048576".
std::string KnobValuesText(const Knob& knob);

/// The shortest decimal that reads back as the same float.
std::string FloatText(float value);
/// A finite float >= 0; -0 becomes 0. Nothing for other text.
std::optional<float> ParseNonNegativeFloat(std::string_view text);

/// The canonical text of a value, or nothing when it is not allowed. Not for the JSON kinds.
std::optional<std::string> CanonicalKnobValue(const Knob& knob, std::string_view value);

/// A value from outside, quoted and cut for a message.
std::string ShownValue(std::string_view value);
/// The field of a knob for errors: knobs["fp8_format"].
std::string KnobField(std::string_view name);

}  // namespace quantgate
