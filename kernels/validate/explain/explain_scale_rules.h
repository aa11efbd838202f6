// The scale rules that ExplainCodes tries: how quantizers in use compute a block's scale and scale
// its elements (docs/quantizers.md section 1.6).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kernels/tensor/dtype.h"

namespace quantgate {

/// Which elements a rule is for.
inline bool IsFp8Element(DType element) { return IsFp8(element); }
inline bool IsFp4Element(DType element) { return element == DType::kF4E2M1x2; }

/// What a rule may depend on.
struct ScaleRuleInput {
  float amax = 0;         ///< The block's; NaN elements are ignored.
  float global_amax = 0;  ///< The tensor's.
  DType element = DType::kF8E4M3;
  DType source = DType::kBF16;
  bool has_nan = false;   ///< Whether the block has a NaN.
  float element_max = 0;  ///< The largest finite value of elements; 0: that of `element`.
};

/// How elements are scaled before the cast. t(.) rounds to the source's type.
enum class ElementScaling {
  kMultiply,             ///< x * scale.
  kReciprocal,           ///< x * f32(1 / scale_inv).
  kDivide,               ///< x / scale_inv.
  kTensorOverBlock,      ///< x * f32(f32(1 / tensor scale) / block scale): two-level formats.
  kDivideByProduct,      ///< x / f32(tensor scale * block scale).
  kDivideByGlobalScale,  ///< x / f32(block scale / global scale); global scale: 1 / tensor scale.
  kGlobalOverBlock,      ///< x * f32(global scale / block scale).
  kMultiplyInType,       ///< t(x * scale).
  kDivideInType,         ///< t(x / scale_inv).
  kReciprocalInType,     ///< t(x * u(1 / scale_inv)), u f16 for f16, else f32; subnormals of fp32
                         ///< are zeros: JAX on a CPU.
  kDivideInBf16,         ///< bf16(x / bf16(scale_inv)), whatever the source's type.
};
inline constexpr int kScalingCount = 11;
/// The formula, t by its name: "x * scale", "bf16(x / scale_inv)".
std::string ScalingText(ElementScaling scaling, DType source);
constexpr bool Divides(ElementScaling scaling) {
  return scaling == ElementScaling::kDivide || scaling == ElementScaling::kDivideByProduct ||
         scaling == ElementScaling::kDivideByGlobalScale ||
         scaling == ElementScaling::kDivideInType || scaling == ElementScaling::kDivideInBf16;
}
/// The way without its rounding, which an f32 source does not tell from it.
constexpr ElementScaling InF32(ElementScaling scaling) {
  return scaling == ElementScaling::kMultiplyInType ? ElementScaling::kMultiply
         : scaling == ElementScaling::kDivideInType ? ElementScaling::kDivide
                                                    : scaling;
}

/// A value rounded to bf16, to f16, or as it is.
float RoundedTo(DType type, float value);

/// Scales elements in one way.
struct ElementScaler {
  ElementScaling scaling;
  bool divides;
  DType type;       ///< What the result is rounded to.
  bool is_flushed;  ///< Whether subnormals of fp32 are zeros.
  bool is_plain;    ///< Whether the result is of f32 and as it is.

  ElementScaler(ElementScaling scaling, DType source);
  float operator()(float value, float factor) const {
    if (is_plain) return divides ? value / factor : value * factor;
    return Rounded(value, factor);
  }

 private:
  float Rounded(float value, float factor) const;
};

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
  float& factor(ElementScaling scaling) { return factors[static_cast<int>(scaling)]; }
};

struct NamedScaleRule {
  std::string_view name;  ///< "divide: scale = f32(max / amax), scale_inv = f32(1 / scale)".
  DType scale;            ///< The dtype of the stored scale; kF32: also bf16 and f16.
  bool (*fits)(DType element);
  ScaleRuleResult (*apply)(const ScaleRuleInput& input);
  bool keeps_scale = false;   ///< The stored scale is what elements are multiplied by.
  bool has_one_zero = false;  ///< It goes with elements of OneZeroE2M1 alone.
};

std::span<const NamedScaleRule> AllScaleRules();
/// Those of them that only other libraries have (explain_library_rules.cc).
std::span<const NamedScaleRule> LibraryScaleRules();
float ElementMax(const ScaleRuleInput& input);
/// The result for elements that are multiplied by `scale`, where f32(1 / scale) is stored.
ScaleRuleResult FromScale(float scale);
/// The result for elements that are divided by the stored scale or multiplied by its reciprocal.
ScaleRuleResult FromScaleInverse(float scale_inv);
/// The factors for a block's scale code under a scale of the whole tensor. `global`: the reciprocal
/// of that scale. `least`: the least code that a block can have.
ScaleRuleResult FromTwoLevels(uint8_t code, uint8_t least, float tensor, float global);
/// NVFP4's usual rule, the only one that goes with a tensor scale for each row.
const NamedScaleRule& TwoLevelRule();
/// Whether a block's E4M3 scale, which is never below the code `least`, is at an end of its range.
bool IsE4m3AtBound(uint8_t code, uint8_t least);
/// The result for a given fp32 scale, if its amax is not the source's.
ScaleRuleResult GivenScale(float scale_inv);

}  // namespace quantgate
