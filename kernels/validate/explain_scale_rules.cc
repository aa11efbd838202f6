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
  return {std::bit_cast<uint32_t>(scale_inv), scale, scale_inv};
}

/// What is stored divides; a multiplication takes f32(1 / scale_inv).
ScaleRuleResult FromScaleInverse(float scale_inv) {
  return {std::bit_cast<uint32_t>(scale_inv), 1.0f / scale_inv, scale_inv};
}

ScaleRuleResult Current(const ScaleRuleInput& input, const ScaleOptions& options) {
  return FromScale(ComputeScale(input.amax, ElementMax(input.element), options));
}

ScaleRuleResult Divide(const ScaleRuleInput& input) { return Current(input, {}); }
ScaleRuleResult DividePower2(const ScaleRuleInput& input) {
  return Current(input, {.power_2 = true});
}
ScaleRuleResult Reciprocal(const ScaleRuleInput& input) {
  return Current(input, {.rule = ScaleRule::kReciprocal});
}

/// Where 448 / amax overflows, block scaling takes the largest finite value of the input's type.
ScaleRuleResult BlockDivide(const ScaleRuleInput& input, bool power_2) {
  ScaleRuleResult result = Current(input, {});
  if (std::bit_cast<uint32_t>(result.multiplier) == 0x7F7FFFFF) {
    result = FromScale(SourceMax(input.source));
  }
  if (!power_2) return result;
  return FromScale(std::bit_cast<float>(std::bit_cast<uint32_t>(result.multiplier) & 0xFF800000));
}
ScaleRuleResult BlockDivideFp32(const ScaleRuleInput& input) { return BlockDivide(input, false); }
ScaleRuleResult BlockDividePower2(const ScaleRuleInput& input) { return BlockDivide(input, true); }

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
  return {std::bit_cast<uint32_t>(scale_inv), max / amax, scale_inv};
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

ScaleRuleResult FromE8m0(uint8_t code) { return {code, E8m0Multiplier(code), DecodeE8m0(code)}; }

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

template <ScaleRule rule, int e4m3_max>
ScaleRuleResult Nvfp4(const ScaleRuleInput& input) {
  const Nvfp4BlockScale scale =
      MakeNvfp4BlockScale(input.amax, MakeNvfp4TensorScale(input.global_amax, e4m3_max, rule));
  if (scale.divides) return {scale.code, 1.0f / scale.factor, scale.factor};
  return {scale.code, scale.factor, 1.0f / scale.factor};
}

constexpr NamedScaleRule kRules[] = {
    {"divide: scale = f32(max / amax), scale_inv = f32(1 / scale)",
     "Transformer Engine, per-tensor current scaling", DType::kF32, IsFp8Element, Divide},
    {"divide, power of two: scale = f32(max / amax) with its mantissa cut off",
     "Transformer Engine, per-tensor current scaling with power-of-two scales", DType::kF32,
     IsFp8Element, DividePower2},
    {"divide, overflow to the input type's maximum", "Transformer Engine, FP8 block scaling, fp32",
     DType::kF32, IsFp8Element, BlockDivideFp32},
    {"divide, power of two, overflow to the input type's maximum",
     "Transformer Engine, FP8 block scaling", DType::kF32, IsFp8Element, BlockDividePower2},
    {"reciprocal: scale = f32(1 / f32(amax * f32(1 / max)))", "kernels that avoid the division",
     DType::kF32, IsFp8Element, Reciprocal},
    {"scale_inv = f32(amax / max)", "DeepSeek-V3's activation quantizer", DType::kF32, IsFp8Element,
     AmaxOverMax},
    {"scale_inv = f32(amax * f32(1 / max))", "kernels that avoid the division", DType::kF32,
     IsFp8Element, AmaxTimesReciprocal},
    {"amax at least 1e-4, scale = f32(max / amax), scale_inv = f32(amax / max)", "DeepGEMM",
     DType::kF32, IsFp8Element, ClampedAmax},
    {"amax at least 1e-4, scale_inv = f32(amax / max) up to a power of two", "DeepGEMM, UE8M0",
     DType::kF32, IsFp8Element, ClampedAmaxPower2},
    {"scale = f32(max / max(amax, 1e-12)) by way of fp64", "torchao, float8 training", DType::kF32,
     IsFp8Element, Epsilon},
    {"round_up: smallest 2^k >= amax / max", "Transformer Engine, cuBLAS, cuDNN; torchao RCEIL",
     DType::kF8E8M0, IsMxElement, E8m0<ScaleRule::kRoundUp>},
    {"floor: 2^(floor(log2 amax) - emax)", "OCP Microscaling; microxcaling, torchao FLOOR",
     DType::kF8E8M0, IsMxElement, E8m0<ScaleRule::kFloor>},
    {"ceil: 2^(ceil(log2 amax) - emax)", "torchao CEIL", DType::kF8E8M0, IsMxElement,
     E8m0<ScaleRule::kCeil>},
    {"even: amax rounded to the element's mantissa, then floor", "torchao EVEN", DType::kF8E8M0,
     IsMxElement, E8m0<ScaleRule::kEven>},
    {"nearest: 2^(round(log2 amax) - emax)", "FBGEMM", DType::kF8E8M0, IsMxElement,
     E8m0<ScaleRule::kNearest>},
    {"two_level: e4m3(amax * (448 * 6 / tensor amax) / 6)", "Transformer Engine, NVFP4",
     DType::kF8E4M3, IsFp4Element, Nvfp4<ScaleRule::kTwoLevel, 448>},
    {"two_level with block scales up to 256", "Transformer Engine, NVFP4 with 4over6's bound",
     DType::kF8E4M3, IsFp4Element, Nvfp4<ScaleRule::kTwoLevel, 256>},
    {"two_level_clamped: at least the smallest normal E4M3", "torchao, NVFP4 with a tensor scale",
     DType::kF8E4M3, IsFp4Element, Nvfp4<ScaleRule::kTwoLevelClamped, 448>},
    {"single_level: e4m3(amax / 6), at least the smallest normal E4M3", "torchao, NVFP4",
     DType::kF8E4M3, IsFp4Element, Nvfp4<ScaleRule::kSingleLevel, 448>},
};

}  // namespace

std::span<const NamedScaleRule> AllScaleRules() { return kRules; }

}  // namespace quantgate
