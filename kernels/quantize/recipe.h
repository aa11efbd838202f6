// Recipe: the rule from a tensor's role to its quantizer, and the choices a layer makes under it. A
// recipe is a name and knobs ("fp8_current:power_2_scales=true,fp8_format=e4m3"); text, JSON and
// protobuf say the same. Immutable and thread-safe once made.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/quantize/quantizer.h"

namespace quantgate {

enum class TensorRole { kInput, kWeight, kGradOutput };
std::string_view TensorRoleName(TensorRole role);  ///< "input", "weight", "grad_output".
absl::StatusOr<TensorRole> ParseTensorRole(std::string_view name);

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
};

/// Every recipe of this build, in the order listings print them.
const std::vector<RecipeDescription>& AllRecipes();

class Recipe {
 public:
  using Knobs = std::map<std::string, std::string, std::less<>>;

  /// Knobs that are not given take their defaults. INVALID_ARGUMENT names the recipe or knob, the
  /// value, and what is allowed, a knob of another recipe included.
  static absl::StatusOr<Recipe> Create(std::string_view name, const Knobs& knobs);
  /// "name" or "name:key=value,key=value".
  static absl::StatusOr<Recipe> Parse(std::string_view text);

  const std::string& name() const { return name_; }
  /// Every knob, resolved.
  const Knobs& knobs() const { return knobs_; }
  /// Name and every resolved knob in order: equal text, equal numerics.
  std::string CanonicalText() const;
  /// Name and the knobs that differ from their defaults: what people read and type.
  std::string ShortText() const;
  /// SHA-256 of CanonicalText(), lower-case hex.
  std::string Digest() const;

  bool is_quantized() const;
  BackwardOverride backward_override() const { return backward_override_; }
  /// This recipe under another override.
  Recipe WithBackwardOverride(BackwardOverride override_mode) const;
  /// Absent: the dtype of x.
  std::optional<DType> activation_dtype() const { return activation_dtype_; }
  /// The quantizer of a tensor; identity where the recipe does not quantize.
  Quantizer QuantizerFor(TensorRole role) const;
  /// cuBLASLt's FAST_ACCUM off for this GEMM (docs/quantizers.md section 10.2). Meaningless for
  /// high-precision operands.
  bool UsesSplitAccumulator(GemmRole gemm) const;

 private:
  Recipe() = default;
  std::string name_;
  Knobs knobs_;
  BackwardOverride backward_override_ = BackwardOverride::kNone;
  std::optional<DType> activation_dtype_;
};

}  // namespace quantgate
