// Recipe: the rule from a tensor's role to its quantizer, and the choices a layer makes under it. A
// recipe is a name and knobs ("fp8_current:power_2_scales=true,fp8_format=e4m3"); text, JSON and
// protobuf say the same. Immutable and thread-safe once made.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/quantize/quantizer.h"
#include "kernels/quantize/recipe/delayed_scaling.h"

namespace quantgate {

enum class TensorRole { kInput, kWeight, kGradOutput };
std::string_view TensorRoleName(TensorRole role);  ///< "input", "weight", "grad_output".
absl::StatusOr<TensorRole> ParseTensorRole(std::string_view name);

/// What a tensor's module is to the rules of a custom recipe; every layer but grouped_linear has
/// linear ones.
enum class ModuleType { kLinear, kGroupedLinear };
std::string_view ModuleTypeName(ModuleType module);  ///< "linear", "grouped_linear".

enum class GemmRole { kFprop, kDgrad, kWgrad };
std::string_view GemmRoleName(GemmRole role);  ///< "fprop", "dgrad", "wgrad".

/// What backward uses in place of quantized operands (docs/quantizers.md section 9).
enum class BackwardOverride { kNone, kHighPrecision, kDequantized };
std::string_view BackwardOverrideName(BackwardOverride override_mode);  ///< The canonical names.
/// Also accepts the first names: default, unquant, dequant.
absl::StatusOr<BackwardOverride> ParseBackwardOverride(std::string_view name);

/// One knob of a recipe, for listings and for error messages.
struct KnobDescription {
  std::string name;
  std::string values;  ///< "true|false", "hybrid|e4m3", "float >= 0".
  std::string default_value;
  std::string summary;
};

struct RecipeDescription {
  std::string name;
  std::string summary;
  std::vector<KnobDescription> knobs;
  bool is_composed = false;  ///< hybrid and custom: without knobs they quantize nothing.
};

/// Every recipe of this build, in the order listings print them.
const std::vector<RecipeDescription>& AllRecipes();

class Recipe {
 public:
  using Knobs = std::map<std::string, std::string, std::less<>>;

  /// Knobs that are not given take their defaults. INVALID_ARGUMENT names the recipe or knob, the
  /// value, and what is allowed, a knob of another recipe included; and what of the whole makes no
  /// sense, such as a GEMM whose operands do not go together (docs/quantizers.md section 7.2).
  static absl::StatusOr<Recipe> Create(std::string_view name, const Knobs& knobs);
  /// "name" or "name:key=value,key=value"; values that are JSON may hold commas.
  static absl::StatusOr<Recipe> Parse(std::string_view text);
  /// A CanonicalText of any version. Values without effect, which 0.1.0 accepted, are their
  /// defaults.
  static absl::StatusOr<Recipe> ParseStored(std::string_view text);

  const std::string& name() const { return name_; }
  /// Every knob, resolved.
  const Knobs& knobs() const { return *knobs_; }
  /// Name and every resolved knob in order: equal text, equal numerics.
  std::string CanonicalText() const;
  /// Name and the knobs that differ from their defaults: what people read and type.
  std::string ShortText() const;
  /// SHA-256 of CanonicalText(), lower-case hex.
  std::string Digest() const;

  /// The same recipe as modules of this type follow it. Recipes whose rules name no module type
  /// are as they were, and what is a recipe's own word below is of linear modules.
  Recipe ForModule(ModuleType module) const;

  /// Some direction of some role is quantized.
  bool is_quantized() const;
  /// Scales come from the amaxes of earlier steps.
  bool is_delayed() const;
  const DelayedScalingOptions& delayed_scaling() const { return delayed_scaling_; }
  /// Some quantizer of the role draws random numbers.
  bool RoundsStochastically(TensorRole role) const;
  BackwardOverride backward_override() const { return backward_override_; }
  /// This recipe under another override.
  Recipe WithBackwardOverride(BackwardOverride override_mode) const;
  /// Absent: the dtype of x.
  std::optional<DType> activation_dtype() const { return activation_dtype_; }
  /// The quantizer of a tensor; identity where the recipe does not quantize.
  const Quantizer& QuantizerFor(TensorRole role) const {
    return quantizers_[static_cast<size_t>(role)];
  }
  /// cuBLASLt's FAST_ACCUM off for this GEMM (docs/quantizers.md section 10.2). Meaningless for
  /// high-precision operands.
  bool UsesSplitAccumulator(GemmRole gemm) const { return split_[static_cast<size_t>(gemm)]; }

 private:
  Recipe() = default;
  static absl::StatusOr<Recipe> Make(std::string_view name, const Knobs& knobs, bool is_stored);
  std::string name_;
  std::shared_ptr<const Knobs> knobs_;  ///< Shared by copies: every step of training makes some.
  BackwardOverride backward_override_ = BackwardOverride::kNone;
  std::optional<DType> activation_dtype_;
  using Quantizers = std::array<Quantizer, 3>;  ///< By TensorRole.
  Quantizers quantizers_;
  /// By ModuleType; null where all are alike.
  std::shared_ptr<const std::array<Quantizers, 2>> by_module_;
  std::array<bool, 3> split_ = {};  ///< By GemmRole.
  DelayedScalingOptions delayed_scaling_;
};

}  // namespace quantgate
