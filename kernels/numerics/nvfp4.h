// The scales of NVFP4: that of the tensor, that of a block by each rule, and 4over6
// (docs/quantizers.md sections 6.2 and 6.7).
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/base/host_device.h"
#include "kernels/numerics/cast.h"
#include "kernels/numerics/scale_rule.h"

namespace quantgate {

/// The smaller of two; if one is NaN, the other.
QG_HOST_DEVICE constexpr float MinNumber(float a, float b) { return a < b || b != b ? a : b; }

/// min(1 / x, FLT_MAX) for x >= 0.
QG_HOST_DEVICE constexpr float BoundedReciprocal(float x) {
  constexpr float kFloatMax = std::bit_cast<float>(0x7F7FFFFFu);
  return x == 0.0f ? kFloatMax : MinNumber(1.0f / x, kFloatMax);
}

/// What the amax of the whole tensor contributes to the scales of blocks.
struct Nvfp4TensorScale {
  ScaleRule rule = ScaleRule::kTwoLevel;
  float encode = 1.0f;     ///< S of section 6.2.
  float decode = 1.0f;     ///< D = 1 / S; G under kTwoLevelClamped.
  float encode_sixth = 0;  ///< f32(S * f32(1/6)).
};

/// `amax` is that of the tensor; `e4m3_max` the largest block scale, 448 or 256.
QG_HOST_DEVICE constexpr Nvfp4TensorScale MakeNvfp4TensorScale(float amax, int e4m3_max,
                                                               ScaleRule rule) {
  constexpr float kFloatMax = std::bit_cast<float>(0x7F7FFFFFu);
  const float code_max = 6.0f * static_cast<float>(e4m3_max);
  Nvfp4TensorScale scale = {.rule = rule};
  if (rule == ScaleRule::kTwoLevelClamped) {
    const float divided = amax / code_max;
    scale.decode = divided > 0.0f && divided <= kFloatMax ? divided : 1.0f;
    return scale;
  }
  if (rule == ScaleRule::kSingleLevel) return scale;
  // amax 0: 2688 / 0 is not constant-evaluable, and the scale is 1 anyway.
  if (amax != 0.0f) scale.encode = MinNumber(code_max / amax, kFloatMax);
  if (scale.encode == 0.0f) scale.encode = 1.0f;
  scale.decode = 1.0f / scale.encode;
  scale.encode_sixth = scale.encode * (1.0f / 6.0f);
  return scale;
}

/// The scale of one block: the stored code, and the factor by which elements are multiplied or
/// divided.
struct Nvfp4BlockScale {
  uint8_t code = 0;
  float factor = 1.0f;
  bool divides = false;

  QG_HOST_DEVICE constexpr float Scaled(float value) const {
    return divides ? value / factor : value * factor;
  }
};

/// `amax` is that of the block.
QG_HOST_DEVICE constexpr Nvfp4BlockScale MakeNvfp4BlockScale(float amax,
                                                             const Nvfp4TensorScale& tensor) {
  constexpr float kFloatMax = std::bit_cast<float>(0x7F7FFFFFu);
  constexpr float kSmallestNormal = 0x1p-6f;
  Nvfp4BlockScale scale;
  if (tensor.rule == ScaleRule::kTwoLevel) {
    scale.code = EncodeFloat<E4M3>(MinNumber(amax * tensor.encode_sixth, kFloatMax));
    scale.factor = BoundedReciprocal(DecodeFloat<E4M3>(scale.code) * tensor.decode);
    return scale;
  }
  const float unit = amax / 6.0f / tensor.decode;  // decode is 1 without a tensor scale.
  scale.code = EncodeFloat<E4M3>(unit < kSmallestNormal ? kSmallestNormal : unit);
  scale.factor = tensor.decode * DecodeFloat<E4M3>(scale.code);
  scale.divides = true;
  return scale;
}

/// The factor by which an element of a block is dequantized, multiplied in the order of
/// section 6.2; `amax` is that of the tensor or row, `amax_factor` is Nvfp4AmaxFactor(e4m3_max).
QG_HOST_DEVICE constexpr float Nvfp4DequantizeScale(uint8_t scale_code, float amax,
                                                    float amax_factor) {
  return DecodeFloat<E4M3>(scale_code) * amax * amax_factor;
}
QG_HOST_DEVICE constexpr float Nvfp4AmaxFactor(int e4m3_max) {
  return 1.0f / (6.0f * static_cast<float>(e4m3_max));
}

/// The two candidates of 4over6 for the scale of a block.
struct FourOverSixScales {
  Nvfp4BlockScale six, four;
};

QG_HOST_DEVICE constexpr FourOverSixScales MakeFourOverSixScales(float amax,
                                                                 const Nvfp4TensorScale& tensor) {
  const auto of_unit = [&](float unit) {
    Nvfp4BlockScale scale;
    scale.code = EncodeFloat<E4M3>(MinNumber(unit, 448.0f));
    scale.factor = BoundedReciprocal(DecodeFloat<E4M3>(scale.code) * tensor.decode);
    return scale;
  };
  const float base = amax / 6.0f * tensor.encode;
  return {of_unit(base), of_unit(base * 1.5f)};
}

/// The error of one element as 4over6 adds it up: |d| or d * d with d = dequantized - value.
QG_HOST_DEVICE constexpr float FourOverSixError(float value, uint8_t code, uint8_t scale_code,
                                                float amax, int e4m3_max, bool squared) {
  const float scaled = DecodeFloat<E2M1>(code) * DecodeFloat<E4M3>(scale_code) * amax;
  const float d = scaled / (6.0f * static_cast<float>(e4m3_max)) - value;
  return squared ? d * d : d < 0.0f ? -d : d;
}

}  // namespace quantgate
