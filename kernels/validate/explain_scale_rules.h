// The ways in which quantizers in use compute a block's scale, by name and origin: what
// ExplainCodes tries (docs/tensor-cores.md section 6).
#pragma once

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

/// What a rule makes of it. The code of an element is cast(x * multiplier), or cast(x / divisor)
/// where divides is set.
struct ScaleRuleResult {
  uint32_t scale_inv_bits = 0;  ///< The stored scale, in its own type.
  float multiplier = 1;
  float divisor = 1;
  bool divides = false;
};

struct NamedScaleRule {
  std::string_view name;    ///< "divide: scale = f32(max / amax), scale_inv = f32(1 / scale)".
  std::string_view origin;  ///< Who computes scales so.
  DType scale;              ///< Type of the stored scale.
  bool (*fits)(DType element);
  ScaleRuleResult (*apply)(const ScaleRuleInput& input);
};

std::span<const NamedScaleRule> AllScaleRules();

}  // namespace quantgate
