// The ways in which quantizers in use compute a block's scale and scale its elements: what
// ExplainCodes tries (docs/quantizers.md section 1.6).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/tensor/dtype.h"

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
  /// Not the amax but a bound of the rule decides, or may have: a floor or ceiling of amax or
  /// scale, the end of the scale's type, a case for zeros or infinities. So many amaxes have that
  /// scale that it says nothing of the rule.
  bool is_at_bound = false;

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
/// Whether a block's scale, which is never below the code `least`, is at an end of what it may be.
bool IsE4m3AtBound(uint8_t code, uint8_t least);
/// Of a stored fp32 scale whose amax is not the source's.
ScaleRuleResult GivenScale(float scale_inv);

}  // namespace quantgate
