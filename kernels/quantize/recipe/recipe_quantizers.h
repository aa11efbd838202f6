// What the resolved knobs of a recipe mean: the quantizer of every role and the accumulators of
// every GEMM. Private to kernels/quantize.
#pragma once

#include <array>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/quantize/recipe/recipe.h"
#include "kernels/quantize/recipe/recipe_table.h"

namespace quantgate {

inline constexpr std::array kTensorRoles = {TensorRole::kInput, TensorRole::kWeight,
                                            TensorRole::kGradOutput};
inline constexpr std::array kGemmRoles = {GemmRole::kFprop, GemmRole::kDgrad, GemmRole::kWgrad};

struct RecipeRules {
  std::array<Quantizer, kTensorRoles.size()> quantizers;  ///< By TensorRole.
  std::array<bool, kGemmRoles.size()> split = {};         ///< By GemmRole.
  DelayedScalingOptions delayed;

  Quantizer& of(TensorRole role) { return quantizers[static_cast<size_t>(role)]; }
  const Quantizer& of(TensorRole role) const { return quantizers[static_cast<size_t>(role)]; }
};

/// The accumulators of Transformer Engine's modules where the recipe has no word on them:
/// docs/quantizers.md section 10.2.
inline constexpr std::array<bool, 3> kModuleSplits = {false, true, true};

inline constexpr std::array kModuleTypes = {ModuleType::kLinear, ModuleType::kGroupedLinear};

/// The rules of a recipe that is not composed; every knob is in `knobs`. INVALID_ARGUMENT for knobs
/// that do not go together, without the recipe's name.
absl::StatusOr<RecipeRules> RulesOfKnobs(std::string_view recipe, const Recipe::Knobs& knobs);

/// The two operands of each GEMM: which direction of which roles they are (docs/quantizers.md
/// section 10.1).
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

/// What no recipe may be, whatever the tensors: a quantizer that makes no sense, a Hadamard
/// transform of weights, and GEMMs whose operands do not go together (docs/quantizers.md
/// section 7.2). INVALID_ARGUMENT naming role, direction and rule.
absl::Status CheckRules(const RecipeRules& rules);

}  // namespace quantgate
