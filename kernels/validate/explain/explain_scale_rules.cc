#include "kernels/validate/explain/explain_scale_rules.h"

#include <bit>
#include <cmath>
#include <iterator>
#include <vector>

#include "kernels/numerics/cast.h"
#include "kernels/numerics/e8m0.h"
#include "kernels/numerics/nvfp4.h"
#include "kernels/numerics/scale_rule.h"

namespace quantgate {
namespace {

constexpr float kFloatMax = std::bit_cast<float>(0x7F7FFFFFu);

float SourceMax(DType source) {
  switch (source) {
    case DType::kBF16:
      return MaxFinite<BFloat16>();
    case DType::kF16:
      return MaxFinite<Float16>();
    default:
      return kFloatMax;
  }
}

/// False for zeros, infinities and NaN, which are cases of their own.
bool IsOrdinary(float value) { return value > 0 && value <= kFloatMax; }

ScaleRuleResult Current(const ScaleRuleInput& input, const ScaleOptions& options) {
  const float max = ElementMax(input);
  ScaleRuleResult result = FromScale(ComputeScale(input.amax, max, options));
  const float whole = ComputeScale(input.amax, max, {.rule = options.rule});
  result.is_at_bound |= !IsOrdinary(input.amax) || whole == kFloatMax;
  return result;
}

ScaleRuleResult Divide(const ScaleRuleInput& input) { return Current(input, {}); }
ScaleRuleResult DividePower2(const ScaleRuleInput& input) {
  return Current(input, {.power_2 = true});
}
ScaleRuleResult ReciprocalOfAmax(const ScaleRuleInput& input) {
  return FromScale(ElementMax(input) * (1.0f / input.amax));
}
ScaleRuleResult Reciprocal(const ScaleRuleInput& input) {
  return Current(input, {.rule = ScaleRule::kReciprocal});
}
ScaleRuleResult ReciprocalPower2(const ScaleRuleInput& input) {
  return Current(input, {.rule = ScaleRule::kReciprocal, .power_2 = true});
}

/// A subnormal as a zero of its sign.
float Flushed(float value) {
  return std::fabs(value) < 0x1p-126f ? std::copysign(0.0f, value) : value;
}

/// Where 448 / amax overflows, block scaling takes the largest finite value of the input's type.
template <ScaleRule rule, bool power_2>
ScaleRuleResult OrMaximum(const ScaleRuleInput& input) {
  const ScaleRuleResult current = Current(input, {.rule = rule});
  float scale = current.factor(ElementScaling::kMultiply);
  if (scale == kFloatMax) scale = SourceMax(input.source);
  if (power_2) scale = std::bit_cast<float>(std::bit_cast<uint32_t>(scale) & 0xFF800000);
  ScaleRuleResult result = FromScale(scale);
  result.is_at_bound |= current.is_at_bound;
  return result;
}

ScaleRuleResult AmaxOverMax(const ScaleRuleInput& input) {
  return FromScaleInverse(input.amax / ElementMax(input));
}
ScaleRuleResult AmaxTimesReciprocal(const ScaleRuleInput& input) {
  return FromScaleInverse(input.amax * (1.0f / ElementMax(input)));
}

float AtLeast(float amax, float floor) { return amax < floor ? floor : amax; }

constexpr float kAmaxFloor = 1e-4f;

ScaleRuleResult ClampedAmax(const ScaleRuleInput& input) {
  const float amax = AtLeast(input.amax, kAmaxFloor);
  const float max = ElementMax(input);
  ScaleRuleResult result = FromScaleInverse(amax / max);
  result.factor(ElementScaling::kMultiply) = max / amax;
  result.is_at_bound |= amax == kAmaxFloor;
  return result;
}

ScaleRuleResult ClampedAmaxPower2(const ScaleRuleInput& input) {
  const float amax = AtLeast(input.amax, kAmaxFloor);
  const float scale_inv = amax / ElementMax(input);
  // Up to the next power of two.
  const uint32_t bits = (std::bit_cast<uint32_t>(scale_inv) + 0x7FFFFF) & 0xFF800000;
  ScaleRuleResult result = FromScaleInverse(std::bit_cast<float>(bits));
  result.is_at_bound |= amax == kAmaxFloor;
  return result;
}

ScaleRuleResult Epsilon(const ScaleRuleInput& input) {
  constexpr double kFloor = 1e-12;
  const double amax = double(input.amax) < kFloor ? kFloor : double(input.amax);
  // PyTorch's number / tensor: the number times the rounded reciprocal.
  ScaleRuleResult result = FromScale(static_cast<float>(double(ElementMax(input)) * (1 / amax)));
  result.is_at_bound |= amax == kFloor;
  return result;
}

bool IsMxElement(DType element) {
  return IsFp8(element) || element == DType::kF6E2M3 || element == DType::kF6E3M2 ||
         element == DType::kF4E2M1x2;
}

/// A power of two: multiplying by its inverse equals dividing by it.
ScaleRuleResult FromE8m0(uint8_t code) {
  return {code, {E8m0Multiplier(code)}, code == 0 || code >= 0xFE};
}

template <ScaleRule rule>
ScaleRuleResult E8m0(const ScaleRuleInput& input) {
  switch (input.element) {
    case DType::kF8E4M3:
      return FromE8m0(E8m0Scale<E4M3>(input.amax, rule));
    case DType::kF8E5M2:
      return FromE8m0(E8m0Scale<E5M2>(input.amax, rule));
    case DType::kF6E2M3:
      return FromE8m0(E8m0Scale<E2M3>(input.amax, rule));
    case DType::kF6E3M2:
      return FromE8m0(E8m0Scale<E3M2>(input.amax, rule));
    default:
      return FromE8m0(E8m0Scale<E2M1>(input.amax, rule));
  }
}

constexpr uint8_t kSmallestNormalE4m3 = 1 << E4M3::kMantissaBits;

/// f32(amax / (6 * e4m3_max)), and its reciprocal by a division of its own; of a tensor of zeros 1.
ScaleRuleResult FromTensorAmax(uint8_t code, uint8_t least, float amax, int e4m3_max) {
  return FromTwoLevels(code, least,
                       MakeNvfp4TensorScale(amax, e4m3_max, ScaleRule::kTwoLevelClamped).decode,
                       MakeNvfp4TensorScale(amax, e4m3_max, ScaleRule::kTwoLevel).encode);
}

template <ScaleRule rule, int e4m3_max>
ScaleRuleResult Nvfp4(const ScaleRuleInput& input) {
  const Nvfp4BlockScale scale =
      MakeNvfp4BlockScale(input.amax, MakeNvfp4TensorScale(input.global_amax, e4m3_max, rule));
  const uint8_t least = rule == ScaleRule::kTwoLevelClamped ? kSmallestNormalE4m3 : 0;
  return FromTensorAmax(scale.code, least, input.global_amax, e4m3_max);
}

ScaleRuleResult SingleLevel(const ScaleRuleInput& input) {
  const Nvfp4BlockScale scale =
      MakeNvfp4BlockScale(input.amax, MakeNvfp4TensorScale(0, 448, ScaleRule::kSingleLevel));
  return {scale.code,
          {0, 1.0f / scale.factor, scale.factor},
          IsE4m3AtBound(scale.code, kSmallestNormalE4m3)};
}

/// ModelOpt: amax / (6 * tensor scale) down to the smallest subnormal; a block of zeros has 1.
ScaleRuleResult TwoLevelFloored(const ScaleRuleInput& input) {
  const float tensor =
      MakeNvfp4TensorScale(input.global_amax, 448, ScaleRule::kTwoLevelClamped).decode;
  const float unit = input.amax / (6.0f * tensor);
  const float scale = unit == 0 ? 1.0f : AtLeast(unit, 0x1p-9f);
  ScaleRuleResult result = FromTensorAmax(EncodeFloat<E4M3>(scale), 1, input.global_amax, 448);
  result.is_at_bound |= unit == 0;
  return result;
}

/// compressed-tensors: quotients in the type of the source; a scale of 0 becomes 0.125. That of a
/// number by a tensor is PyTorch's: the number times the rounded reciprocal.
ScaleRuleResult TwoLevelGlobal(const ScaleRuleInput& input) {
  const float reciprocal = RoundedTo(input.source, 1.0f / input.global_amax);
  const float global = RoundedTo(input.source, 2688.0f * reciprocal);
  const uint8_t rounded = EncodeFloat<E4M3>(global * RoundedTo(input.source, input.amax / 6.0f));
  const uint8_t code = rounded == 0 ? EncodeFloat<E4M3>(0.125f) : rounded;
  ScaleRuleResult result = FromTwoLevels(code, 0, 1.0f / global, global);
  result.is_at_bound |= rounded == 0;
  return result;
}

constexpr NamedScaleRule kRules[] = {
    {"divide: scale = f32(max / amax), scale_inv = f32(1 / scale)", DType::kF32, IsFp8Element,
     Divide},
    {"divide, power of two: scale = f32(max / amax) with its mantissa cut off", DType::kF32,
     IsFp8Element, DividePower2},
    {"divide or maximum: as divide, overflow to the input type's maximum", DType::kF32,
     IsFp8Element, OrMaximum<ScaleRule::kDivide, false>},
    {"divide or maximum, power of two: as divide, overflow to the input type's maximum, its "
     "mantissa cut off",
     DType::kF32, IsFp8Element, OrMaximum<ScaleRule::kDivide, true>},
    {"reciprocal: scale = f32(1 / f32(amax * f32(1 / max)))", DType::kF32, IsFp8Element,
     Reciprocal},
    {"reciprocal of amax: scale = f32(max * f32(1 / amax)), scale_inv = f32(1 / scale)",
     DType::kF32, IsFp8Element, ReciprocalOfAmax},
    {"scale_inv = f32(amax / max)", DType::kF32, IsFp8Element, AmaxOverMax},
    {"scale_inv = f32(amax * f32(1 / max))", DType::kF32, IsFp8Element, AmaxTimesReciprocal},
    {"amax at least 1e-4, scale = f32(max / amax), scale_inv = f32(amax / max)", DType::kF32,
     IsFp8Element, ClampedAmax},
    {"amax at least 1e-4, scale_inv = f32(amax / max) up to a power of two", DType::kF32,
     IsFp8Element, ClampedAmaxPower2},
    {"scale = f32(max / max(amax, 1e-12)) by way of fp64", DType::kF32, IsFp8Element, Epsilon},
    {"round_up: smallest 2^k >= amax / max", DType::kF8E8M0, IsMxElement,
     E8m0<ScaleRule::kRoundUp>},
    {"floor: 2^(floor(log2 amax) - emax)", DType::kF8E8M0, IsMxElement, E8m0<ScaleRule::kFloor>},
    {"ceil: 2^(ceil(log2 amax) - emax)", DType::kF8E8M0, IsMxElement, E8m0<ScaleRule::kCeil>},
    {"even: amax rounded to the element's mantissa, then floor", DType::kF8E8M0, IsMxElement,
     E8m0<ScaleRule::kEven>},
    {"nearest: 2^(round(log2 amax) - emax)", DType::kF8E8M0, IsMxElement,
     E8m0<ScaleRule::kNearest>},
    {"two_level: e4m3(amax * (S * f32(1/6))), S = 448 * 6 / tensor amax", DType::kF8E4M3,
     IsFp4Element, Nvfp4<ScaleRule::kTwoLevel, 448>},
    {"two_level with block scales up to 256", DType::kF8E4M3, IsFp4Element,
     Nvfp4<ScaleRule::kTwoLevel, 256>},
    {"two_level_clamped: e4m3((amax / 6) / tensor scale), at least the smallest normal E4M3",
     DType::kF8E4M3, IsFp4Element, Nvfp4<ScaleRule::kTwoLevelClamped, 448>},
    {"two_level_floored: e4m3(amax / (6 * tensor scale)), at least 2^-9, of zeros 1",
     DType::kF8E4M3, IsFp4Element, TwoLevelFloored},
    {"two_level_global: e4m3(global scale * (amax / 6)), quotients in the source's type",
     DType::kF8E4M3, IsFp4Element, TwoLevelGlobal},
    {"single_level: e4m3(amax / 6), at least the smallest normal E4M3", DType::kF8E4M3,
     IsFp4Element, SingleLevel},
    {"reciprocal, power of two: as reciprocal, its mantissa cut off", DType::kF32, IsFp8Element,
     ReciprocalPower2},
    {"reciprocal or maximum: as reciprocal, overflow to the input type's maximum", DType::kF32,
     IsFp8Element, OrMaximum<ScaleRule::kReciprocal, false>},
    {"reciprocal or maximum, power of two: as reciprocal, overflow to the input type's maximum, "
     "its mantissa cut off",
     DType::kF32, IsFp8Element, OrMaximum<ScaleRule::kReciprocal, true>},
};

}  // namespace

std::string ScalingText(ElementScaling scaling, DType source) {
  constexpr std::string_view kTexts[kScalingCount] = {"x * scale",
                                                      "x * (1 / scale_inv)",
                                                      "x / scale_inv",
                                                      "x * ((1 / tensor scale) / block scale)",
                                                      "x / (tensor scale * block scale)",
                                                      "x / (block scale / global scale)",
                                                      "x * (global scale / block scale)",
                                                      "(x * scale)",
                                                      "(x / scale_inv)",
                                                      "(x * (1 / scale_inv)), no subnormals",
                                                      "bf16(x / bf16(scale_inv))"};
  std::string text(kTexts[static_cast<int>(scaling)]);
  return text.front() == '(' ? std::string(DTypeName(source)) + text : text;
}

float RoundedTo(DType type, float value) {
  if (type == DType::kBF16) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) return value;
    return std::bit_cast<float>((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000);
  }
  if (type == DType::kF16) return DecodeFloat<Float16>(EncodeFloat<Float16>(value));
  return value;
}

ElementScaler::ElementScaler(ElementScaling scaling, DType source)
    : scaling(scaling),
      divides(Divides(scaling)),
      type(DType::kF32),
      is_flushed(scaling == ElementScaling::kReciprocalInType) {
  if (scaling == ElementScaling::kDivideInBf16) type = DType::kBF16;
  if (scaling != InF32(scaling) || is_flushed) type = source;
  is_plain = type == DType::kF32 && !is_flushed;
}

float ElementScaler::Rounded(float value, float factor) const {
  if (!is_flushed) return RoundedTo(type, divides ? value / factor : value * factor);
  return Flushed(RoundedTo(type, Flushed(value) * factor));
}

/// 448, 57344, 7.5, 28 or 6, or what the input says.
float ElementMax(const ScaleRuleInput& input) {
  if (input.element_max > 0) return input.element_max;
  switch (input.element) {
    case DType::kF8E4M3:
      return MaxFinite<E4M3>();
    case DType::kF8E5M2:
      return MaxFinite<E5M2>();
    case DType::kF6E2M3:
      return MaxFinite<E2M3>();
    case DType::kF6E3M2:
      return MaxFinite<E3M2>();
    default:
      return MaxFinite<E2M1>();
  }
}

ScaleRuleResult FromScale(float scale) {
  const float scale_inv = ScaleInverse(scale);
  ScaleRuleResult result = FromScaleInverse(scale_inv);
  result.factor(ElementScaling::kMultiply) = scale;
  result.factor(ElementScaling::kMultiplyInType) = scale;
  result.is_at_bound |= !IsOrdinary(scale);
  return result;
}

ScaleRuleResult FromScaleInverse(float scale_inv) {
  ScaleRuleResult result = {std::bit_cast<uint32_t>(scale_inv), {}, !IsOrdinary(scale_inv)};
  result.factor(ElementScaling::kReciprocal) = 1.0f / scale_inv;
  result.factor(ElementScaling::kDivide) = scale_inv;
  result.factor(ElementScaling::kDivideInType) = scale_inv;
  result.factor(ElementScaling::kDivideInBf16) = RoundedTo(DType::kBF16, scale_inv);
  return result;
}

ScaleRuleResult FromTwoLevels(uint8_t code, uint8_t least, float tensor, float global) {
  const float block = DecodeFloat<E4M3>(code);
  return {code,
          {BoundedReciprocal(block * (1.0f / global)), 0, 0, (1.0f / tensor) / block,
           tensor * block, block / global, global / block},
          IsE4m3AtBound(code, least)};
}

std::span<const NamedScaleRule> AllScaleRules() {
  static const auto& rules = *new std::vector<NamedScaleRule>([] {
    std::vector<NamedScaleRule> all(std::begin(kRules), std::end(kRules));
    const auto of_libraries = LibraryScaleRules();
    all.insert(all.end(), of_libraries.begin(), of_libraries.end());
    return all;
  }());
  return rules;
}

const NamedScaleRule& TwoLevelRule() { return kRules[16]; }

bool IsE4m3AtBound(uint8_t code, uint8_t least) {
  return code <= least || code >= FormatConstants<E4M3>::kMaxFinite;
}

ScaleRuleResult GivenScale(float scale_inv) {
  ScaleRuleResult result = FromScaleInverse(scale_inv);
  // The scale that was given may be another neighbour of the inverse of its inverse.
  result.factor(ElementScaling::kMultiply) = 1.0f / scale_inv;
  return result;
}

}  // namespace quantgate
