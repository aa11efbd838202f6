// The names of roles, module types and overrides.
#include "kernels/base/refusal.h"
#include "kernels/quantize/recipe/recipe.h"
#include "kernels/quantize/recipe/recipe_table.h"

namespace quantgate {

std::string_view TensorRoleName(TensorRole role) {
  switch (role) {
    case TensorRole::kInput:
      return "input";
    case TensorRole::kWeight:
      return "weight";
    case TensorRole::kGradOutput:
      return "grad_output";
  }
  return "unknown";
}

absl::StatusOr<TensorRole> ParseTensorRole(std::string_view name) {
  for (const TensorRole role : {TensorRole::kInput, TensorRole::kWeight, TensorRole::kGradOutput}) {
    if (TensorRoleName(role) == name) return role;
  }
  return Refuse("role", ShownValue(name), "must be one of input, weight, grad_output");
}

std::string_view ModuleTypeName(ModuleType module) {
  return module == ModuleType::kLinear ? "linear" : "grouped_linear";
}

std::string_view GemmRoleName(GemmRole role) {
  switch (role) {
    case GemmRole::kFprop:
      return "fprop";
    case GemmRole::kDgrad:
      return "dgrad";
    case GemmRole::kWgrad:
      return "wgrad";
  }
  return "unknown";
}

std::string_view BackwardOverrideName(BackwardOverride override_mode) {
  switch (override_mode) {
    case BackwardOverride::kNone:
      return "none";
    case BackwardOverride::kHighPrecision:
      return "high_precision";
    case BackwardOverride::kDequantized:
      return "dequantized";
  }
  return "unknown";
}

absl::StatusOr<BackwardOverride> ParseBackwardOverride(std::string_view name) {
  if (name == "none" || name == "default") return BackwardOverride::kNone;
  if (name == "high_precision" || name == "unquant") return BackwardOverride::kHighPrecision;
  if (name == "dequantized" || name == "dequant") return BackwardOverride::kDequantized;
  return Refuse("backward_override", ShownValue(name),
                "must be one of none, high_precision, dequantized (first names: default, unquant, "
                "dequant)");
}

}  // namespace quantgate
