#include "kernels/validate/explain_scale_rules.h"

#include <bit>

#include "kernels/numerics/cast.h"
#include "kernels/numerics/e8m0.h"
#include "kernels/numerics/nvfp4.h"
#include "kernels/numerics/scale_rule.h"

namespace quantgate {
namespace {

bool IsFp8Element(DType element) { return IsFp8(element); }

float ElementMax(DType element) {
  switch (element) {
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

float SourceMax(DType source) {
  switch (source) {
    case DType::kBF16:
      return MaxFinite<BFloat16>();
    case DType::kF16:
      return MaxFinite<Float16>();
    default:
      return std::bit_cast<float>(0x7F7FFFFFu);
  }
}

/// scale multiplies; what is stored is f32(1 / scale).
ScaleRuleResult FromScale(float scale) {
  const float scale_inv = ScaleInverse(scale);
  return {std::bit_cast<uint32_t>(scale_inv), {scale, 1.0f / scale_inv, scale_inv}};
}

/// What is stored divides, or its reciprocal multiplies.
ScaleRuleResult FromScaleInverse(float scale_inv) {
  return {std::bit_cast<uint32_t>(scale_inv), {0, 1.0f / scale_inv, scale_inv}};
}

ScaleRuleResult Current(const ScaleRuleInput& input, const ScaleOptions& options) {
  return FromScale(ComputeScale(input.amax, ElementMax(input.element), options));
}

ScaleRuleResult Divide(const ScaleRuleInput& input) { return Current(input, {}); }
ScaleRuleResult DividePower2(const ScaleRuleInput& input) {
  return Current(input, {.power_2 = true});
}
ScaleRuleResult ReciprocalOfAmax(const ScaleRuleInput& input) {
  return FromScale(ElementMax(input.element) * (1.0f / input.amax));
}
ScaleRuleResult Reciprocal(const ScaleRuleInput& input) {
  return Current(input, {.rule = ScaleRule::kReciprocal});
}
ScaleRuleResult ReciprocalPower2(const ScaleRuleInput& input) {
  return Current(input, {.rule = ScaleRule::kReciprocal, .power_2 = true});
}

/// Where 448 / amax overflows, block scaling takes the largest finite value of the input's type.
template <ScaleRule rule, bool power_2>
ScaleRuleResult OrMaximum(const ScaleRuleInput& input) {
  ScaleRuleResult result = Current(input, {.rule = rule});
  if (std::bit_cast<uint32_t>(result.factor(ElementScaling::kMultiply)) == 0x7F7FFFFF) {
    result = FromScale(SourceMax(input.source));
  }
  if (!power_2) return result;
  return FromScale(std::bit_cast<float>(
      std::bit_cast<uint32_t>(result.factor(ElementScaling::kMultiply)) & 0xFF800000));
}

ScaleRuleResult AmaxOverMax(const ScaleRuleInput& input) {
  return FromScaleInverse(input.amax / ElementMax(input.element));
}
ScaleRuleResult AmaxTimesReciprocal(const ScaleRuleInput& input) {
  return FromScaleInverse(input.amax * (1.0f / ElementMax(input.element)));
}

float AtLeast(float amax, float floor) { return amax < floor ? floor : amax; }

ScaleRuleResult ClampedAmax(const ScaleRuleInput& input) {
  const float amax = AtLeast(input.amax, 1e-4f);
  const float max = ElementMax(input.element);
  const float scale_inv = amax / max;
  return {std::bit_cast<uint32_t>(scale_inv), {max / amax, 1.0f / scale_inv, scale_inv}};
}

ScaleRuleResult ClampedAmaxPower2(const ScaleRuleInput& input) {
  const float scale_inv = AtLeast(input.amax, 1e-4f) / ElementMax(input.element);
  // Up to the next power of two.
  const uint32_t bits = (std::bit_cast<uint32_t>(scale_inv) + 0x7FFFFF) & 0xFF800000;
  return FromScaleInverse(std::bit_cast<float>(bits));
}

ScaleRuleResult Epsilon(const ScaleRuleInput& input) {
  const double scale =
      double(ElementMax(input.element)) / (double(input.amax) < 1e-12 ? 1e-12 : double(input.amax));
  return FromScale(static_cast<float>(scale));
}

bool IsMxElement(DType element) {
  return IsFp8(element) || element == DType::kF6E2M3 || element == DType::kF6E3M2 ||
         element == DType::kF4E2M1x2;
}
bool IsFp4Element(DType element) { return element == DType::kF4E2M1x2; }

/// A power of two: to multiply by its inverse is to divide by it.
ScaleRuleResult FromE8m0(uint8_t code) { return {code, {E8m0Multiplier(code)}}; }

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

/// The factors of a block's code under a scale of the whole tensor, `global` being its reciprocal.
ScaleRuleResult FromTwoLevels(uint8_t code, float tensor, float global) {
  const float block = DecodeFloat<E4M3>(code);
  return {code,
          {BoundedReciprocal(block * (1.0f / global)), 0, 0, (1.0f / tensor) / block,
           tensor * block, block / global}};
}

/// f32(amax / (6 * e4m3_max)), and its reciprocal by a division of its own; of a tensor of zeros 1.
ScaleRuleResult FromTensorAmax(uint8_t code, float amax, int e4m3_max) {
  return FromTwoLevels(code,
                       MakeNvfp4TensorScale(amax, e4m3_max, ScaleRule::kTwoLevelClamped).decode,
                       MakeNvfp4TensorScale(amax, e4m3_max, ScaleRule::kTwoLevel).encode);
}

template <ScaleRule rule, int e4m3_max>
ScaleRuleResult Nvfp4(const ScaleRuleInput& input) {
  const Nvfp4BlockScale scale =
      MakeNvfp4BlockScale(input.amax, MakeNvfp4TensorScale(input.global_amax, e4m3_max, rule));
  return FromTensorAmax(scale.code, input.global_amax, e4m3_max);
}

ScaleRuleResult SingleLevel(const ScaleRuleInput& input) {
  const Nvfp4BlockScale scale =
      MakeNvfp4BlockScale(input.amax, MakeNvfp4TensorScale(0, 448, ScaleRule::kSingleLevel));
  return {scale.code, {0, 1.0f / scale.factor, scale.factor}};
}

/// ModelOpt: amax / (6 * tensor scale) down to the smallest subnormal; a block of zeros has 1.
ScaleRuleResult TwoLevelFloored(const ScaleRuleInput& input) {
  const float tensor =
      MakeNvfp4TensorScale(input.global_amax, 448, ScaleRule::kTwoLevelClamped).decode;
  const float unit = input.amax / (6.0f * tensor);
  const float scale = unit == 0 ? 1.0f : AtLeast(unit, 0x1p-9f);
  return FromTensorAmax(EncodeFloat<E4M3>(scale), input.global_amax, 448);
}

/// A quotient in the type of the source.
float InType(DType source, float value) {
  if (source == DType::kBF16) return DecodeFloat<BFloat16>(EncodeFloat<BFloat16>(value));
  if (source == DType::kF16) return DecodeFloat<Float16>(EncodeFloat<Float16>(value));
  return value;
}

/// compressed-tensors: quotients in the type of the source; a scale of 0 becomes 0.125.
ScaleRuleResult TwoLevelGlobal(const ScaleRuleInput& input) {
  const float global = InType(input.source, 2688.0f / input.global_amax);
  uint8_t code = EncodeFloat<E4M3>(global * InType(input.source, input.amax / 6.0f));
  if (code == 0) code = EncodeFloat<E4M3>(0.125f);
  return FromTwoLevels(code, 1.0f / global, global);
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
    {"two_level: e4m3(amax * (448 * 6 / tensor amax) / 6)", DType::kF8E4M3, IsFp4Element,
     Nvfp4<ScaleRule::kTwoLevel, 448>},
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

// Formulas and the public sources that have them: docs/quantizers.md section 1.6.
constexpr LibraryQuantizer kLibraryQuantizers[] = {
    {"Transformer Engine, FP8 block scaling, fp32 scales", kRules[2].name,
     ElementScaling::kMultiply},
    {"Transformer Engine, FP8 block scaling", kRules[3].name, ElementScaling::kMultiply},
    {"DeepSeek-V3's activation quantizer", kRules[6].name, ElementScaling::kDivide},
    {"DeepGEMM", kRules[8].name, ElementScaling::kMultiply},
    {"DeepGEMM, UE8M0", kRules[9].name, ElementScaling::kReciprocal},
    {"torchao, float8 training", kRules[10].name, ElementScaling::kMultiply},
    {"Transformer Engine, cuBLAS, cuDNN; torchao RCEIL", kRules[11].name, {}},
    {"NVIDIA ModelOpt, MXFP4", kRules[11].name, {}, CodeRounding::kNearestTowardZero},
    {"torchao FLOOR", kRules[12].name, {}},
    {"microxcaling", kRules[12].name, {}, CodeRounding::kNearestAway},
    {"torchao CEIL", kRules[13].name, {}},
    {"torchao EVEN", kRules[14].name, {}},
    {"Transformer Engine, NVFP4", kRules[16].name, ElementScaling::kMultiply},
    {"Transformer Engine, NVFP4", kRules[16].name, ElementScaling::kMultiply, {}, true},
    {"torchao, NVFP4 with a tensor scale", kRules[18].name, ElementScaling::kTensorOverBlock},
    {"torchao, NVFP4 with a tensor scale", kRules[18].name, ElementScaling::kDivideByProduct},
    {"NVIDIA ModelOpt, NVFP4", kRules[19].name, ElementScaling::kDivideByProduct},
    {"compressed-tensors, NVFP4", kRules[20].name, ElementScaling::kDivideByGlobalScale},
    {"torchao, NVFP4", kRules[21].name, ElementScaling::kReciprocal},
    {"torchao, NVFP4", kRules[21].name, ElementScaling::kDivide},
};

}  // namespace

std::string_view ScalingText(ElementScaling scaling) {
  constexpr std::string_view kTexts[kScalingCount] = {"x * scale",
                                                      "x * (1 / scale_inv)",
                                                      "x / scale_inv",
                                                      "x * ((1 / tensor scale) / block scale)",
                                                      "x / (tensor scale * block scale)",
                                                      "x / (block scale / global scale)"};
  return kTexts[static_cast<int>(scaling)];
}

std::span<const NamedScaleRule> AllScaleRules() { return kRules; }

const NamedScaleRule& TwoLevelRule() { return kRules[16]; }

ScaleRuleResult GivenScale(float scale_inv) {
  ScaleRuleResult result = FromScaleInverse(scale_inv);
  // The scale that was given may be another neighbour of the inverse of its inverse.
  result.factors[static_cast<int>(ElementScaling::kMultiply)] = 1.0f / scale_inv;
  return result;
}

std::string_view QuantizerName(std::string_view scale_rule, ElementScaling scaling,
                               std::optional<CodeRounding> rounding) {
  for (const LibraryQuantizer& quantizer : kLibraryQuantizers) {
    if (quantizer.scale_rule == scale_rule &&
        (!quantizer.scaling.has_value() || *quantizer.scaling == scaling) &&
        (rounding.has_value() ? !quantizer.is_stochastic && quantizer.rounding == *rounding
                              : quantizer.is_stochastic)) {
      return quantizer.name;
    }
  }
  return "";
}

}  // namespace quantgate
