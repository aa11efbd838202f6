// Recipe: gives each tensor the quantizer of its role, and decides the choices of a layer. A recipe
// is a name and knobs ("fp8_current:power_2_scales=true,fp8_format=e4m3"), in text, JSON or
// protobuf. Immutable and thread-safe once made.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/quantize/quantizer.h"
#include "kernels/quantize/recipe/delayed_scaling.h"

namespace quantgate {

/// What a tensor is to a GEMM layer: an operand or, from kOutput on, a result, which only rules of
/// a custom recipe quantize (docs/quantizers.md section 7.3).
enum class TensorRole { kInput, kWeight, kGradOutput, kOutput, kGradInput };
inline constexpr size_t kTensorRoleCount = 5;
/// "input", "weight", "grad_output", "output", "grad_input".
std::string_view TensorRoleName(TensorRole role);
/// The role of an operand.
absl::StatusOr<TensorRole> ParseTensorRole(std::string_view name);
inline bool IsResult(TensorRole role) { return role >= TensorRole::kOutput; }

/// The type of the module that a tensor belongs to. Every layer except grouped_linear consists of
/// linear modules.
enum class ModuleType { kLinear, kGroupedLinear };
std::string_view ModuleTypeName(ModuleType module);  ///< "linear", "grouped_linear".

/// The place of a module, on which rules of a custom recipe may depend (docs/recipes.md section
/// 1). The experts of a grouped_linear have one place. A tensor that is quantized by itself is of a
/// linear module without names.
struct ModulePlace {
  ModuleType type = ModuleType::kLinear;
  std::string layer = {};  ///< The layer's name; may be empty.
  std::string unit = {};   ///< Its name in the layer: "fc1"; empty if the layer has one module.

  std::string Path() const;  ///< "LAYER.UNIT", or that of the two which is not empty.
  std::string Text() const;  ///< For errors: "linear", "linear \"mlp.fc1\"".
  friend bool operator==(const ModulePlace&, const ModulePlace&) = default;
};

/// A module and those of its tensors that rules decide on.
struct RuledModule {
  ModulePlace place;
  std::vector<TensorRole> roles;
};

/// The three GEMMs of a linear module.
enum class GemmRole { kFprop, kDgrad, kWgrad };
std::string_view GemmRoleName(GemmRole role);  ///< "fprop", "dgrad", "wgrad".

/// What backward uses in place of quantized operands (docs/quantizers.md section 9).
enum class BackwardOverride { kNone, kHighPrecision, kDequantized };
std::string_view BackwardOverrideName(BackwardOverride override_mode);  ///< The canonical names.
/// Accepts the names of the first version, too: default, unquant, dequant.
absl::StatusOr<BackwardOverride> ParseBackwardOverride(std::string_view name);

/// One knob of a recipe, for listings and for error messages.
struct KnobDescription {
  std::string name;
  std::string values;  ///< "true|false", "hybrid|e4m3", "float >= 0".
  std::string default_value;
  std::string summary;
};

/// One recipe, for listings.
struct RecipeDescription {
  std::string name;
  std::string summary;
  std::vector<KnobDescription> knobs;
  bool is_composed = false;    ///< hybrid and custom, which quantize nothing without knobs.
  bool is_codes_only = false;  ///< Its codes number levels: Recipe::CheckForLayers refuses it.
};

/// Every recipe of this build, in the order of listings.
const std::vector<RecipeDescription>& AllRecipes();

// Private to kernels/quantize.
class CustomRules;
struct RecipeRules;

class Recipe {
 public:
  using Knobs = std::map<std::string, std::string, std::less<>>;

  /// Knobs that are not given take the defaults. INVALID_ARGUMENT names the recipe or knob, the
  /// value and what is allowed; it also refuses knobs of other recipes and combinations that are
  /// invalid as a whole, such as a GEMM whose operands do not go together (docs/quantizers.md
  /// section 7.2). Rules that depend on the module are judged by CheckModule alone.
  static absl::StatusOr<Recipe> Create(std::string_view name, const Knobs& knobs);
  /// "name" or "name:key=value,key=value"; values that are JSON may hold commas.
  static absl::StatusOr<Recipe> Parse(std::string_view text);
  /// Parses a CanonicalText of any version, which has knobs that the recipe itself has not. Values
  /// without effect, which 0.1.0 accepted, become the defaults.
  static absl::StatusOr<Recipe> ParseStored(std::string_view text);

  const std::string& name() const { return name_; }
  /// Every knob of the recipe with the resolved value.
  const Knobs& knobs() const { return *knobs_; }
  /// The same without knobs that came after 0.1.0 and have their defaults, and with those that
  /// have no effect, as digests have had them since 0.1.0: text that Create and Parse refuse.
  Knobs CanonicalKnobs() const;
  /// Name and CanonicalKnobs in order. Recipes with equal text have equal numerics.
  std::string CanonicalText() const;
  /// Name and the knobs that differ from the defaults, for people.
  std::string ShortText() const;
  /// SHA-256 of CanonicalText(), lower-case hex.
  std::string Digest() const;

  /// The same recipe for the module at this place. It changes nothing unless rules depend on the
  /// module. Without it, the functions below answer for a linear module without names.
  Recipe ForModule(const ModulePlace& place) const;
  /// The place that ForModule gave, if rules depend on it.
  const ModulePlace& module() const { return place_; }
  bool DependsOnModule() const { return depends_on_module_; }
  /// INVALID_ARGUMENT naming module, role and rule unless every role of this module has a rule and
  /// the quantizers go together. A role without a rule is not quantized.
  absl::Status CheckModule() const;
  /// The same of one role, whatever the others are.
  absl::Status CheckRole(TensorRole role) const;
  /// INVALID_ARGUMENT naming the recipe if some role of some module has codes of levels (int8,
  /// int4, nf4, bnb_fp4), which no layer reads.
  absl::Status CheckForLayers() const;
  /// Every quantizer that tensors of this role may have in some module.
  std::vector<Quantizer> QuantizersOf(TensorRole role) const;
  /// A sentence for each rule of a custom recipe that is the first to fit no tensor of these
  /// modules, which say whether another rule or no module is why. `where` is what has the modules:
  /// "layer", "session".
  std::vector<std::string> UnusedRules(std::span<const RuledModule> modules,
                                       std::string_view where) const;

  /// Whether any direction of any operand is quantized, or cast by an identity quantizer.
  bool is_quantized() const;
  /// Whether a scale, of some direction of some role in some module, comes from the amaxes of
  /// earlier steps.
  bool is_delayed() const { return is_delayed_; }
  /// One for all such scales.
  const DelayedScalingOptions& delayed_scaling() const { return delayed_scaling_; }
  /// Whether the quantizer of the role draws random numbers.
  bool RoundsStochastically(TensorRole role) const;
  BackwardOverride backward_override() const { return backward_override_; }
  /// This recipe with another override.
  Recipe WithBackwardOverride(BackwardOverride override_mode) const;
  /// The dtype of activations; absent for that of x.
  std::optional<DType> activation_dtype() const { return activation_dtype_; }
  /// The quantizer of a role; identity if the recipe does not quantize it.
  const Quantizer& QuantizerFor(TensorRole role) const {
    return quantizers_[static_cast<size_t>(role)];
  }
  /// Whether cuBLASLt's FAST_ACCUM is off for this GEMM (docs/quantizers.md section 10.2). Without
  /// effect for high-precision operands.
  bool UsesSplitAccumulator(GemmRole gemm) const { return split_[static_cast<size_t>(gemm)]; }

 private:
  Recipe() = default;
  static absl::StatusOr<Recipe> Make(std::string_view name, const Knobs& knobs, bool is_stored);
  void Take(const RecipeRules& rules);
  absl::Status TakeRules(const std::string& text);
  absl::Status CheckFits(TensorRole role) const;
  std::string name_;
  std::shared_ptr<const Knobs> knobs_;  ///< Shared, since every training step copies recipes.
  BackwardOverride backward_override_ = BackwardOverride::kNone;
  std::optional<DType> activation_dtype_;
  using Quantizers = std::array<Quantizer, kTensorRoleCount>;  ///< By TensorRole.
  Quantizers quantizers_;                                      ///< Of the module at place_.
  std::shared_ptr<const CustomRules> rules_;                   ///< Null unless custom.
  bool depends_on_module_ = false;
  ModulePlace place_;
  std::array<bool, 3> split_ = {};  ///< By GemmRole.
  DelayedScalingOptions delayed_scaling_;
  bool is_delayed_ = false;
};

}  // namespace quantgate
