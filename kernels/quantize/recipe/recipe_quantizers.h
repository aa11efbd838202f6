// What the resolved knobs of a recipe mean: the quantizer of every role and the accumulators of
// every GEMM. Private to kernels/quantize.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/quantize/recipe/recipe.h"
#include "kernels/quantize/recipe/recipe_table.h"

namespace quantgate {

inline constexpr std::array kTensorRoles = {TensorRole::kInput, TensorRole::kWeight,
                                            TensorRole::kGradOutput};
/// The roles that only custom rules which name them quantize.
inline constexpr std::array kResultRoles = {TensorRole::kOutput, TensorRole::kGradInput};
inline constexpr std::array kGemmRoles = {GemmRole::kFprop, GemmRole::kDgrad, GemmRole::kWgrad};

/// The meaning of a recipe for one module.
struct RecipeRules {
  std::array<Quantizer, kTensorRoleCount> quantizers;  ///< By TensorRole.
  std::array<bool, kGemmRoles.size()> split = {};      ///< By GemmRole.
  DelayedScalingOptions delayed;

  Quantizer& of(TensorRole role) { return quantizers[static_cast<size_t>(role)]; }
  const Quantizer& of(TensorRole role) const { return quantizers[static_cast<size_t>(role)]; }
};

/// Which GEMMs of Transformer Engine's modules use the split accumulator, by GemmRole, if the
/// recipe does not say: docs/quantizers.md section 10.2.
inline constexpr std::array<bool, 3> kModuleSplits = {false, true, true};

inline constexpr std::array kModuleTypes = {ModuleType::kLinear, ModuleType::kGroupedLinear};

/// The rules of a recipe that is not composed; every knob is in `knobs`. INVALID_ARGUMENT for knobs
/// that do not go together; the error does not name the recipe.
absl::StatusOr<RecipeRules> RulesOfKnobs(std::string_view recipe, const Recipe::Knobs& knobs);

/// The two operands of one GEMM: their roles and directions (docs/quantizers.md section 10.1).
struct GemmPair {
  GemmRole gemm;
  TensorRole a, b;
  Usage a_usage, b_usage;
};
inline constexpr std::array<GemmPair, 3> kGemmPairs = {{
    {GemmRole::kFprop, TensorRole::kInput, TensorRole::kWeight, Usage::kRowwise, Usage::kRowwise},
    {GemmRole::kDgrad, TensorRole::kGradOutput, TensorRole::kWeight, Usage::kRowwise,
     Usage::kColumnwise},
    {GemmRole::kWgrad, TensorRole::kGradOutput, TensorRole::kInput, Usage::kColumnwise,
     Usage::kColumnwise},
}};

/// INVALID_ARGUMENT naming role, direction and rule for what is wrong for all tensors: an invalid
/// quantizer, a Hadamard transform of weights, or a GEMM whose operands do not go together
/// (docs/quantizers.md section 7.2).
absl::Status CheckRules(const RecipeRules& rules);
/// The part of CheckRules about one role.
absl::Status CheckQuantizerOf(TensorRole role, const Quantizer& quantizer);

// ---- hybrid and custom, whose knobs hold JSON (recipe_composed.cc; docs/recipes.md section 1)

/// The canonical text of a value of the kinds kRule, kDirection and kRules: names stay names, JSON
/// has what differs from the defaults, with keys sorted. INVALID_ARGUMENT says what is wrong
/// inside.
absl::StatusOr<std::string> CanonicalComposedValue(const Knob& knob, std::string_view value);

/// The rules of hybrid; every knob is in `knobs`, canonical.
absl::StatusOr<RecipeRules> RulesOfHybrid(const Recipe::Knobs& knobs);

struct CustomRule;  ///< recipe_composed.cc.

/// The list of a custom recipe: of each role the first rule that fits it and the module.
class CustomRules {
 public:
  /// INVALID_ARGUMENT says what is wrong inside.
  static absl::StatusOr<CustomRules> Parse(std::string_view text);

  /// Whether a rule fits some modules and not others.
  bool DependOnModule() const;
  /// Whether there is a rule for the role.
  bool Fits(TensorRole role, const ModulePlace& place) const;
  /// What an error says where there is none.
  static std::string NoRuleText(TensorRole role, const ModulePlace& place);
  /// The rules of one module, unchecked; identity for roles without a rule.
  RecipeRules RulesFor(const ModulePlace& place) const;
  /// The quantizer of each rule that fits the role in some module.
  std::vector<Quantizer> QuantizersOf(TensorRole role) const;
  /// Recipe::UnusedRules.
  std::vector<std::string> Unused(std::span<const RuledModule> modules,
                                  std::string_view where) const;
  std::string CanonicalText() const;

 private:
  const CustomRule* Find(TensorRole role, const ModulePlace& place) const;
  std::shared_ptr<const std::vector<CustomRule>> list_;
  DelayedScalingOptions delayed_;
};

}  // namespace quantgate
