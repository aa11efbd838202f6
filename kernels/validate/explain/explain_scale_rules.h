// The scale rules that ExplainCodes tries: how quantizers in use compute a block's scale and scale
// its elements (docs/quantizers.md section 1.6).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/tensor/dtype.h"

namespace quantgate {

/// What a rule may depend on.
struct ScaleRuleInput {
  float amax = 0;         ///< The block's; NaN elements are ignored.
  float global_amax = 0;  ///< The tensor's.
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
/// The formula: "x * scale".
std::string_view ScalingText(ElementScaling scaling);
constexpr bool Divides(ElementScaling scaling) {
  return scaling == ElementScaling::kDivide || scaling == ElementScaling::kDivideByProduct ||
         scaling == ElementScaling::kDivideByGlobalScale;
}

/// What a rule computes.
struct ScaleRuleResult {
  uint32_t scale_inv_bits = 0;  ///< The bits of the stored scale, in its own dtype.
  /// By ElementScaling: the factor or divisor of elements; 0 if the rule does not go with that
  /// scaling.
  std::array<float, kScalingCount> factors = {};
  /// A bound of the rule, not the amax, decides the scale, or may have decided it: a floor or
  /// ceiling of amax or scale, the end of the scale's range, a case for zeros or infinities. So
  /// many amaxes give that scale that it is no evidence for the rule.
  bool is_at_bound = false;

  float factor(ElementScaling scaling) const { return factors[static_cast<int>(scaling)]; }
};

struct NamedScaleRule {
  std::string_view name;  ///< "divide: scale = f32(max / amax), scale_inv = f32(1 / scale)".
  DType scale;            ///< The dtype of the stored scale.
  bool (*fits)(DType element);
  ScaleRuleResult (*apply)(const ScaleRuleInput& input);
};

std::span<const NamedScaleRule> AllScaleRules();
/// NVFP4's usual rule, the only one that goes with a tensor scale for each row.
const NamedScaleRule& TwoLevelRule();
/// Whether a block's E4M3 scale, which is never below the code `least`, is at an end of its range.
bool IsE4m3AtBound(uint8_t code, uint8_t least);
/// The result for a given fp32 scale, if its amax is not the source's.
ScaleRuleResult GivenScale(float scale_inv);

}  // namespace quantgate
