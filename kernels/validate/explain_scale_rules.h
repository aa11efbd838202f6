// The ways in which quantizers in use compute a block's scale and scale its elements, and the
// libraries that do so: what ExplainCodes tries (docs/quantizers.md section 1.6).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "kernels/tensor/dtype.h"
#include "kernels/validate/rounding_counts.h"

namespace quantgate {

/// What a rule may look at.
struct ScaleRuleInput {
  float amax = 0;         ///< Of the block; NaN elements ignored.
  float global_amax = 0;  ///< Of the tensor.
  DType element = DType::kF8E4M3;
  DType source = DType::kBF16;
};

/// How elements are scaled before the cast.
enum class ElementScaling {
  kMultiply,             ///< x * scale.
  kReciprocal,           ///< x * f32(1 / scale_inv).
  kDivide,               ///< x / scale_inv.
  kTensorOverBlock,      ///< x * f32(f32(1 / tensor scale) / block scale): two-level formats.
  kDivideByProduct,      ///< x / f32(tensor scale * block scale).
  kDivideByGlobalScale,  ///< x / f32(block scale / global scale); global scale: 1 / tensor scale.
};
inline constexpr int kScalingCount = 6;
/// "x * scale".
std::string_view ScalingText(ElementScaling scaling);
constexpr bool Divides(ElementScaling scaling) {
  return scaling == ElementScaling::kDivide || scaling == ElementScaling::kDivideByProduct ||
         scaling == ElementScaling::kDivideByGlobalScale;
}

/// What a rule makes of it.
struct ScaleRuleResult {
  uint32_t scale_inv_bits = 0;  ///< The stored scale, in its own type.
  /// By ElementScaling: what elements are multiplied or divided by; 0 where the rule does not go
  /// with it.
  std::array<float, kScalingCount> factors = {};

  float factor(ElementScaling scaling) const { return factors[static_cast<int>(scaling)]; }
};

struct NamedScaleRule {
  std::string_view name;  ///< "divide: scale = f32(max / amax), scale_inv = f32(1 / scale)".
  DType scale;            ///< Type of the stored scale.
  bool (*fits)(DType element);
  ScaleRuleResult (*apply)(const ScaleRuleInput& input);
};

std::span<const NamedScaleRule> AllScaleRules();
/// NVFP4's usual one, which alone goes with a tensor scale of each row.
const NamedScaleRule& TwoLevelRule();
/// Of a stored fp32 scale whose amax is not the source's.
ScaleRuleResult GivenScale(float scale_inv);

/// The quantizer of a library, by its source or its documents: which of the rules it is.
struct LibraryQuantizer {
  std::string_view name;  ///< "Transformer Engine, NVFP4".
  std::string_view scale_rule;
  /// Absent: any, as all of them give the same.
  std::optional<ElementScaling> scaling;
  CodeRounding rounding = CodeRounding::kNearestEven;
  bool is_stochastic = false;
};

/// The name of the library that computes so; empty where none is known to. `rounding` is that of a
/// rule that is not stochastic.
std::string_view QuantizerName(std::string_view scale_rule, ElementScaling scaling,
                               std::optional<CodeRounding> rounding);

}  // namespace quantgate
