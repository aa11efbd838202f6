// The scale rules that only other libraries have, each from what the library computes
// (docs/quantizers.md section 1.6 names library, version and file). t is the source's type and
// t(.) rounds to it; PyTorch's number / tensor is the number times the rounded reciprocal.
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/numerics/cast.h"
#include "kernels/numerics/e8m0.h"
#include "kernels/numerics/library_rule.h"
#include "kernels/validate/explain/explain_scale_rules.h"

namespace quantgate {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

bool IsAnyElement(DType) { return true; }
bool IsFp8OrFp4(DType element) { return IsFp8(element) || IsFp4Element(element); }
bool IsCompressedMx(DType element) {
  return element == DType::kF8E4M3 || element == DType::kF6E2M3 || IsFp4Element(element);
}

bool IsPositiveFinite(float value) { return value > 0 && std::isfinite(value); }

/// The amax as numpy and PyTorch have it: NaN where the block has one.
float AmaxOf(const ScaleRuleInput& input) { return input.has_nan ? kNan : input.amax; }

float InType(const ScaleRuleInput& input, float value) { return RoundedTo(input.source, value); }

/// The distance from 1 to the next number of the type.
float EpsilonOf(DType source) {
  if (source == DType::kBF16) return 0x1p-7f;
  if (source == DType::kF16) return 0x1p-10f;
  return 0x1p-23f;
}

float Clamped(float value, float least, float most) {
  return value < least ? least : value > most ? most : value;
}

/// floor of log2(value), ceil of it and ln(value), the logarithms rounded to fp32; NaN and infinity
/// stay.
float FloorLog2(float value) {
  if (value == 0) return -std::numeric_limits<float>::infinity();
  return IsPositiveFinite(value) ? static_cast<float>(library_steps::FloorLog2Float(value)) : value;
}
float CeilLog2(float value) {
  if (value == 0) return -std::numeric_limits<float>::infinity();
  return IsPositiveFinite(value) ? static_cast<float>(library_steps::CeilLog2Float(value)) : value;
}
float NaturalLog(float value) {
  return IsPositiveFinite(value) ? library_steps::NaturalLog(value) : value;
}

/// 0 and infinity beyond what fp32 has.
float PowerOfTwo(float exponent) {
  if (std::isnan(exponent)) return kNan;
  return library_steps::PowerOf2(static_cast<int>(Clamped(exponent, -200, 200)));
}

ScaleRuleResult WithBound(ScaleRuleResult result, const ScaleRuleInput& input) {
  result.is_at_bound |= !IsPositiveFinite(input.amax) || input.has_nan;
  return result;
}

ScaleRuleResult AmaxOverMaxInType(const ScaleRuleInput& input) {
  return WithBound(FromScaleInverse(InType(input, AmaxOf(input) / ElementMax(input))), input);
}

ScaleRuleResult AmaxOverMaxOrEpsilon(const ScaleRuleInput& input) {
  const float scale_inv = InType(input, AmaxOf(input) / ElementMax(input));
  return WithBound(FromScaleInverse(scale_inv == 0 ? EpsilonOf(input.source) : scale_inv), input);
}

ScaleRuleResult AmaxAtLeastOverMaxInType(const ScaleRuleInput& input) {
  const float floor = InType(input, 1e-12f), amax = AmaxOf(input);
  ScaleRuleResult result =
      FromScaleInverse(InType(input, (amax < floor ? floor : amax) / ElementMax(input)));
  result.is_at_bound |= amax <= floor;
  return WithBound(result, input);
}

/// The scale itself is stored.
ScaleRuleResult Kept(float scale) {
  ScaleRuleResult result = {std::bit_cast<uint32_t>(scale), {}, !IsPositiveFinite(scale)};
  result.factor(ElementScaling::kMultiply) = scale;
  result.factor(ElementScaling::kMultiplyInType) = scale;
  return result;
}

float ByWayOfF64(const ScaleRuleInput& input) {
  const double amax = AmaxOf(input);
  return static_cast<float>(double(ElementMax(input)) * (1 / (amax < 1e-12 ? 1e-12 : amax)));
}

ScaleRuleResult KeptByWayOfF64(const ScaleRuleInput& input) {
  ScaleRuleResult result = Kept(ByWayOfF64(input));
  result.is_at_bound |= input.amax <= 1e-12f;
  return WithBound(result, input);
}

ScaleRuleResult KeptPowerOfTwo(const ScaleRuleInput& input) {
  ScaleRuleResult result = Kept(PowerOfTwo(FloorLog2(ByWayOfF64(input))));
  result.is_at_bound |= input.amax <= 1e-12f;
  return WithBound(result, input);
}

ScaleRuleResult KeptNumberOverAmax(const ScaleRuleInput& input) {
  return WithBound(Kept(ElementMax(input) * (1.0f / AmaxOf(input))), input);
}

ScaleRuleResult KeptNumberOverAmaxInType(const ScaleRuleInput& input) {
  const float reciprocal = InType(input, 1.0f / AmaxOf(input));
  return WithBound(Kept(InType(input, ElementMax(input) * reciprocal)), input);
}

/// Transformers' scale before it is stored.
float ScaleOrOne(const ScaleRuleInput& input) {
  const float amax = AmaxOf(input);
  return amax > 0 ? ElementMax(input) * (1.0f / amax) : 1.0f;
}

ScaleRuleResult ReciprocalOrOne(const ScaleRuleInput& input) {
  return WithBound(FromScale(ScaleOrOne(input)), input);
}

/// An E8M0 code under which elements are multiplied by `factor`.
ScaleRuleResult UnderE8m0(float code, float factor, const ScaleRuleInput& input) {
  const auto byte = static_cast<uint8_t>(code);
  return WithBound({byte, {factor}, byte == 0 || byte >= 0xFE}, input);
}

ScaleRuleResult ReciprocalUp(const ScaleRuleInput& input) {
  constexpr float kSmallest = 0x1p-126f;
  const float inverse = 1.0f / ScaleOrOne(input);
  const float exponent = CeilLog2(inverse < kSmallest ? kSmallest : inverse);
  ScaleRuleResult result = UnderE8m0(Clamped(exponent + 127, 0, 254), PowerOfTwo(-exponent), input);
  result.is_at_bound |= inverse <= kSmallest;
  return result;
}

ScaleRuleResult RoundUpByLog2(const ScaleRuleInput& input) {
  const float log2 = CeilLog2(AmaxOf(input) / ElementMax(input));
  const float exponent = Clamped(log2 > -127 ? log2 : -127, -127, 127);
  return UnderE8m0(exponent + 127, PowerOfTwo(-exponent), input);
}

/// torchao's RCEIL: NaN has 0xFF, an infinity 0xFE, and under code 0 nothing is scaled.
ScaleRuleResult Rceil(const ScaleRuleInput& input) {
  const float ratio = AmaxOf(input) / ElementMax(input);
  if (std::isnan(ratio)) return UnderE8m0(255, kNan, input);
  if (std::isinf(ratio)) return UnderE8m0(254, 0x1p-127f, input);
  const float exponent = Clamped(CeilLog2(ratio), -127, 127);
  return UnderE8m0(exponent + 127, exponent == -127 ? 1.0f : PowerOfTwo(-exponent), input);
}

int MantissaBits(DType element) {
  switch (element) {
    case DType::kF8E4M3:
    case DType::kF6E2M3:
      return 3;
    case DType::kF8E5M2:
    case DType::kF6E3M2:
      return 2;
    default:
      return 1;
  }
}

/// floor(log2(largest value)).
int MaxExponent(DType element) { return std::ilogb(ElementMax({.element = element})); }

/// torchao's other modes: only a NaN has 0xFF, and elements are divided by at least 2^-126.
template <ScaleRule mode>
ScaleRuleResult OfExponent(const ScaleRuleInput& input) {
  if (input.has_nan) return UnderE8m0(255, 0, input);  // By infinity.
  uint32_t bits = std::bit_cast<uint32_t>(input.amax);
  if (mode == ScaleRule::kEven) {
    bits = (bits + (1u << (22 - MantissaBits(input.element)))) & 0xFF800000;
  }
  int exponent = static_cast<int>(bits >> 23);
  if (mode == ScaleRule::kCeil && (bits & 0x7FFFFF) > 0) ++exponent;
  const int code =
      exponent > MaxExponent(input.element) ? exponent - MaxExponent(input.element) : 0;
  return UnderE8m0(static_cast<float>(code),
                   PowerOfTwo(127.0f - static_cast<float>(code < 1 ? 1 : code)), input);
}

/// compressed-tensors: half a unit of the first mantissa place is added (FP6: of the third).
ScaleRuleResult CompressedMx(const ScaleRuleInput& input) {
  const int kept_bits = input.element == DType::kF6E2M3 ? 3 : 1;
  const uint32_t rounded = std::bit_cast<uint32_t>(AmaxOf(input)) + (1u << (22 - kept_bits));
  const float power = std::bit_cast<float>(rounded & 0xFF800000);
  const float exponent = FloorLog2(power) - static_cast<float>(MaxExponent(input.element));
  const float code = Clamped(exponent + 127, 0, 255);
  float scale = InType(input, PowerOfTwo(code - 127));
  if (scale == 0) scale = EpsilonOf(input.source);
  ScaleRuleResult result = UnderE8m0(Clamped(FloorLog2(scale) + 127, 0, 255), 1.0f / scale, input);
  result.factor(ElementScaling::kDivideInType) = scale;
  return result;
}

/// ggml's MXFP4: the exponent of the amax less that of 4, by an fp32 log2; of zeros code 0.
ScaleRuleResult FloorByLog2(const ScaleRuleInput& input) {
  const float amax = AmaxOf(input);
  if (!std::isfinite(amax)) return UnderE8m0(255, E8m0Multiplier(255), input);
  const float code = amax > 0 ? Clamped(FloorLog2(amax) - 2 + 127, 0, 254) : 0;
  return UnderE8m0(code, E8m0Multiplier(static_cast<uint8_t>(code)), input);
}

/// DeepGEMM's UE8M0 as bytes: the exponent of f32(amax / max) rounded up.
ScaleRuleResult ClampedAmaxUe8m0(const ScaleRuleInput& input) {
  constexpr float kFloor = 1e-4f;
  const float amax = input.amax < kFloor ? kFloor : input.amax;
  const uint32_t bits = std::bit_cast<uint32_t>(amax / ElementMax(input)) + 0x7FFFFF;
  const auto code = static_cast<uint8_t>(bits >> 23);
  ScaleRuleResult result = UnderE8m0(code, E8m0Multiplier(code), input);
  result.is_at_bound |= amax == kFloor;
  return result;
}

/// vLLM's reference: reciprocals of both scales; under code 0 everything is 0.
ScaleRuleResult ByReciprocals(const ScaleRuleInput& input) {
  const float global = 2688.0f * (1.0f / input.global_amax);
  const uint8_t code = EncodeFloat<E4M3>(global * (input.amax * (1.0f / 6.0f)));
  const float step = DecodeFloat<E4M3>(code) * (1.0f / global);
  return WithBound({code, {code == 0 ? 0 : 1.0f / step}, code == 0 || code >= 0x7E}, input);
}

/// qwix: what is too small is 1.
float QwixScale(const ScaleRuleInput& input, bool is_whole) {
  const float max = ElementMax(input), amax = AmaxOf(input);
  const DType width = input.source == DType::kF16 ? DType::kF16 : DType::kF32;
  const float scale =
      is_whole ? InType(input, amax / max) : InType(input, amax * RoundedTo(width, 1.0f / max));
  return scale < (input.source == DType::kF16 ? 0x1p-7f : 0x1p-63f) ? 1.0f : scale;
}

ScaleRuleResult FromQwix(float scale, const ScaleRuleInput& input) {
  const DType width = input.source == DType::kF16 ? DType::kF16 : DType::kF32;
  ScaleRuleResult result = {std::bit_cast<uint32_t>(scale), {}, !IsPositiveFinite(scale)};
  result.factor(ElementScaling::kReciprocalInType) = RoundedTo(width, 1.0f / scale);
  return WithBound(result, input);
}

ScaleRuleResult Qwix(const ScaleRuleInput& input) {
  const float scale = QwixScale(input, false);
  ScaleRuleResult result = FromQwix(scale, input);
  result.is_at_bound |= scale == 1.0f;
  return result;
}

ScaleRuleResult QwixWhole(const ScaleRuleInput& input) {
  const float scale = QwixScale(input, true);
  ScaleRuleResult result = FromQwix(scale, input);
  result.is_at_bound |= scale == 1.0f;
  return result;
}

ScaleRuleResult QwixMx(const ScaleRuleInput& input) {
  const float scale = QwixScale(input, false);
  const float ln_2 = InType(input, 0.69314718f);
  const float exponent = std::ceil(InType(input, InType(input, NaturalLog(scale)) / ln_2));
  ScaleRuleResult result = FromQwix(InType(input, PowerOfTwo(exponent)), input);
  result.is_at_bound |= scale == 1.0f;
  return result;
}

ScaleRuleResult QwixNvfp4(const ScaleRuleInput& input) {
  const float scale = QwixScale(input, false);
  const uint8_t code = EncodeFloat<E4M3>(scale);
  ScaleRuleResult result = FromQwix(DecodeFloat<E4M3>(code), input);
  result.is_at_bound |= scale == 1.0f || IsE4m3AtBound(code, 7);
  return result;
}

constexpr NamedScaleRule kLibraryRules[] = {
    {"in t: scale_inv = t(amax / max), t the source's type", DType::kF32, IsFp8Element,
     AmaxOverMaxInType},
    {"in t, of zeros epsilon: scale_inv = t(amax / max), t the source's type", DType::kF32,
     IsFp8Element, AmaxOverMaxOrEpsilon},
    {"in t, amax at least 1e-12: scale_inv = t(max(amax, t(1e-12)) / max)", DType::kF32,
     IsFp8Element, AmaxAtLeastOverMaxInType},
    {"scale kept: f32(max * (1 / max(amax, 1e-12))) by way of fp64", DType::kF32, IsFp8Element,
     KeptByWayOfF64, true},
    {"scale kept, power of two: that with its mantissa cut off by an fp32 log2", DType::kF32,
     IsFp8Element, KeptPowerOfTwo, true},
    {"scale kept, reciprocal: f32(max * f32(1 / amax))", DType::kF32, IsFp8Element,
     KeptNumberOverAmax, true},
    {"scale kept, reciprocal in t: t(max * t(1 / amax)), t the source's type", DType::kF32,
     IsFp8Element, KeptNumberOverAmaxInType, true},
    {"reciprocal of amax, of zeros 1: scale = f32(max * f32(1 / amax)), scale_inv = f32(1 / scale)",
     DType::kF32, IsFp8Element, ReciprocalOrOne},
    {"round_up of the reciprocal: 2^ceil of an fp32 log2 of f32(1 / f32(max * f32(1 / amax)))",
     DType::kF8E8M0, IsFp8Element, ReciprocalUp},
    {"round_up by log2: 2^ceil of an fp32 log2 of f32(amax / max)", DType::kF8E8M0, IsAnyElement,
     RoundUpByLog2},
    {"rceil: as round_up by log2, of NaN 0xFF, under code 0 x", DType::kF8E8M0, IsAnyElement,
     Rceil},
    {"floor of torchao: floor, 0xFF of NaN alone, under code 0 x / 2^-126", DType::kF8E8M0,
     IsAnyElement, OfExponent<ScaleRule::kFloor>},
    {"ceil of torchao: ceil, 0xFF of NaN alone, under code 0 x / 2^-126", DType::kF8E8M0,
     IsAnyElement, OfExponent<ScaleRule::kCeil>},
    {"even of torchao: even, 0xFF of NaN alone, under code 0 x / 2^-126", DType::kF8E8M0,
     IsAnyElement, OfExponent<ScaleRule::kEven>},
    {"even at one place: amax plus half a unit of its first mantissa place, then floor",
     DType::kF8E8M0, IsCompressedMx, CompressedMx},
    {"floor by log2: 2^floor of an fp32 log2 of amax, over 4", DType::kF8E8M0, IsFp4Element,
     FloorByLog2, false, true},
    {"amax at least 1e-4, 2^k: the least 2^k >= f32(amax / max)", DType::kF8E8M0, IsFp8Element,
     ClampedAmaxUe8m0},
    {"two_level by reciprocals: e4m3(g * f32(amax * f32(1/6))), g = f32(2688 * f32(1 / A))",
     DType::kF8E4M3, IsFp4Element, ByReciprocals},
    {"qwix: t(amax * u(1 / max)), below 2^-63 (f16: 2^-7) 1", DType::kF32, IsFp8Element, Qwix},
    {"qwix, tensor: t(amax / max), below 2^-63 (f16: 2^-7) 1", DType::kF32, IsFp8Element,
     QwixWhole},
    {"qwix, power of two: 2^ceil of log2 in t of t(amax * u(1 / max))", DType::kF32, IsFp8OrFp4,
     QwixMx},
    {"qwix, e4m3: e4m3(t(amax * u(1 / 6))) in t", DType::kF32, IsFp4Element, QwixNvfp4},
};

}  // namespace

std::span<const NamedScaleRule> LibraryScaleRules() { return kLibraryRules; }

}  // namespace quantgate
