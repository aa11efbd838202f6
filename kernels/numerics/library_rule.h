// The scales and scaled elements of other libraries' quantizers, written once for every engine:
// from an amax to a scale, from an element to what is cast, step by step and rounded where the
// library rounds. Formulas, libraries and versions: docs/quantizers.md section 7.4. Stored tensors
// of the libraries hold them (tests/data/libraries, library_rules_test).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/base/host_device.h"
#include "kernels/numerics/cast.h"
#include "kernels/numerics/e8m0.h"
#include "kernels/numerics/nvfp4.h"
#include "kernels/numerics/scale_rule.h"

namespace quantgate {

/// The dtype to which a step is rounded: fp32, or that of the source.
enum class StepDType { kF32, kSource };

/// How elements meet an fp32 scale before the cast.
enum class ElementOperation {
  kMultiply,    ///< x * scale.
  kDivide,      ///< x / scale_inv.
  kReciprocal,  ///< x * f32(1 / scale_inv).
};

/// The scale_inv of a block of zeros.
enum class ZeroScale {
  kOne,           ///< 1, where the amax is 0.
  kDTypeEpsilon,  ///< From 1 to the next number of the scale's dtype, where scale_inv rounds to 0.
  kNone,          ///< What the operations give.
};

/// The sign of zeros.
enum class SignOfZero {
  kKeep,         ///< Its own.
  kDrop,         ///< A scaled value of -0 is +0; what rounds to zero keeps its sign.
  kDropRounded,  ///< Every zero code is +0.
  kNegative,     ///< A scaled value of +0 is -0.
};

/// The dtype of a source.
enum class StepFormat : uint8_t { kF32, kBF16, kF16 };

/// A rule in the form that kernels take.
struct LibraryRule {
  ScaleKind scales = ScaleKind::kTensor;
  ScaleOptions options;  ///< The rule is resolved; value_for_infinity as the tuned paths have it.
  StepFormat source = StepFormat::kF32;
  StepDType scale_dtype = StepDType::kF32;
  StepDType operation_dtype = StepDType::kF32;
  ElementOperation operation = ElementOperation::kMultiply;
  ZeroScale zero_scale = ZeroScale::kOne;
  SignOfZero zero_sign = SignOfZero::kKeep;
  ElementRounding rounding = ElementRounding::kNearestEven;
  Overflow overflow = Overflow::kSaturate;
  Subnormals subnormals = Subnormals::kKept;  ///< Of the steps of fp32 scales by usual rules.
  bool is_whole = false;                      ///< One scale for the whole tensor (fp8_tensor).
  int e4m3_max = 448;
};

/// What elements of one scale unit meet, and what is stored of it.
struct UnitScale {
  float factor = 1.0f;  ///< Multiplies or divides elements.
  bool divides = false;
  uint8_t code = 0;        ///< The stored scale if it is not f32.
  float scale = 1.0f;      ///< fp32 scales: what multiplies, as reports have it.
  float scale_inv = 1.0f;  ///< The stored scale if it is f32.
};

namespace library_steps {

/// t(value): rounded to nearest even to the dtype of the source.
QG_HOST_DEVICE constexpr float RoundTo(StepFormat format, float value) {
  switch (format) {
    case StepFormat::kBF16:
      return DecodeFloat<BFloat16>(EncodeFloat<BFloat16>(value));
    case StepFormat::kF16:
      return DecodeFloat<Float16>(EncodeFloat<Float16>(value));
    case StepFormat::kF32:
      break;
  }
  return value;
}
QG_HOST_DEVICE constexpr StepFormat FormatOfStep(StepDType step, StepFormat source) {
  return step == StepDType::kSource ? source : StepFormat::kF32;
}

QG_HOST_DEVICE constexpr float EpsilonOf(StepFormat format) {
  return format == StepFormat::kF16 ? 0x1p-10f : format == StepFormat::kBF16 ? 0x1p-7f : 0x1p-23f;
}
QG_HOST_DEVICE constexpr float SmallestNormalOf(StepFormat format) {
  return format == StepFormat::kF16 ? 0x1p-14f : 0x1p-126f;
}
QG_HOST_DEVICE constexpr float LargestFiniteOf(StepFormat format) {
  return format == StepFormat::kF16    ? 65504.0f
         : format == StepFormat::kBF16 ? 0x1.FEp127f
                                       : 0x1.FFFFFEp127f;
}

/// Within [low, high]; NaN stays.
QG_HOST_DEVICE constexpr float Within(float value, float low, float high) {
  return value < low ? low : value > high ? high : value;
}

/// 2^exponent, with subnormals; infinity from 128 on, 0 below -149.
QG_HOST_DEVICE constexpr float PowerOf2(int exponent) {
  if (exponent > 127) return std::bit_cast<float>(0x7F800000u);
  if (exponent >= -126) return std::bit_cast<float>(uint32_t(exponent + 127) << 23);
  return exponent < -149 ? 0.0f : std::bit_cast<float>(1u << (exponent + 149));
}

/// A positive finite number as significand * 2^(exponent - 23), 2^23 <= significand < 2^24.
struct Normalized {
  int exponent;
  uint32_t significand;
};
QG_HOST_DEVICE constexpr Normalized Normalize(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value) & 0x7FFFFFFF;
  const int field = static_cast<int>(bits >> 23);
  Normalized n = {(field == 0 ? 1 : field) - 127, (bits & 0x7FFFFF) | (field == 0 ? 0 : 0x800000u)};
  while (n.significand < 0x800000) {
    n.significand <<= 1;
    --n.exponent;
  }
  return n;
}

/// 2^bits * ln 2, floored: log2(1 + d) < 2^bits * u is d < that * u, for u so small that d^2 does
/// not matter. 0 for negative bits.
QG_HOST_DEVICE constexpr uint32_t Ln2Times(int bits) {
  return bits < 0 ? 0 : static_cast<uint32_t>((uint64_t{45426} << bits) >> 16);
}

/// floor(log2 |n|) of a whole number other than 0.
QG_HOST_DEVICE constexpr int FloorLog2(int n) {
  int magnitude = n < 0 ? -n : n, bits = 0;
  while (magnitude > 1) {
    magnitude >>= 1;
    ++bits;
  }
  return bits;
}
QG_HOST_DEVICE constexpr bool IsPowerOf2(int n) { return n > 0 && (n & (n - 1)) == 0; }

/// floor of log2(value) rounded to fp32: of a value a few ulps below 2^n that logarithm is n
/// itself. fp32 numbers next to n below it are 2^(floor(log2 |n|) - 23) away, or half of that where
/// n is a power of two; log2(2^n (1 - k 2^-24)) = n - k 2^-24 / ln 2. `value` is positive and
/// finite.
QG_HOST_DEVICE constexpr int FloorLog2Float(float value) {
  const Normalized v = Normalize(value);
  const int n = v.exponent + 1;
  if (n == 0) return v.exponent;  // Numbers next to 0 are subnormal.
  const uint32_t below = 0x1000000u - v.significand;
  const bool rounds_up = below <= Ln2Times(FloorLog2(n) - (IsPowerOf2(n) ? 1 : 0));
  return rounds_up ? n : v.exponent;
}

/// ceil of the same: of a value a few ulps above 2^n it is n; 2^n (1 + j 2^-23) is n + j 2^-23 /
/// ln 2, and numbers above a negative power of two are nearer.
QG_HOST_DEVICE constexpr int CeilLog2Float(float value) {
  const Normalized v = Normalize(value);
  const uint32_t above = v.significand - 0x800000u;
  if (above == 0) return v.exponent;
  const int n = v.exponent;
  if (n == 0) return 1;
  const bool rounds_down = above <= Ln2Times(FloorLog2(n) - 1 - (IsPowerOf2(-n) ? 1 : 0));
  return rounds_down ? n : n + 1;
}

/// ln(value) in binary64, by IEEE operations and fma alone, then rounded to fp32. `value` is
/// positive and finite. With m in [sqrt(1/2), sqrt 2) and s = (m - 1) / (m + 1), |s| < 0.1716: ln m
/// = 2 (s + s^3 / 3 + ...), cut where s^2k / (2 k + 1) is below 2^-54.
QG_HOST_DEVICE inline float NaturalLog(float value) {
  Normalized v = Normalize(value);
  double m = static_cast<double>(v.significand) * 0x1p-23;
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++v.exponent;
  }
  const double s = (m - 1.0) / (m + 1.0), squared = s * s;
  double series = 0.0;
  for (int k = 10; k >= 1; --k) series = std::fma(series, squared, 1.0 / (2 * k + 1));
  const double part = std::fma(2.0 * s * squared, series, 2.0 * s);
  return static_cast<float>(std::fma(static_cast<double>(v.exponent), 0x1.62E42FEFA39EFp-1, part));
}

// ---- qwix, by JAX on a CPU: subnormals of fp32 are zeros

QG_HOST_DEVICE constexpr float Flushed(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return (bits & 0x7F800000) == 0 ? std::bit_cast<float>(bits & 0x80000000u) : value;
}

/// 1 / value as a divisor that is broadcast has it: f16 of f16, else fp32.
QG_HOST_DEVICE constexpr float QwixReciprocal(StepFormat source, float value) {
  return RoundTo(source == StepFormat::kF16 ? StepFormat::kF16 : StepFormat::kF32, 1.0f / value);
}

/// t(amax / bound), by the reciprocal for blocks; 1 where it is below the root of the smallest
/// normal.
QG_HOST_DEVICE constexpr float QwixScale(const LibraryRule& rule, float amax, float bound) {
  const float flushed = Flushed(amax);
  const float divided =
      rule.is_whole ? flushed / bound : flushed * QwixReciprocal(rule.source, bound);
  const float scale = RoundTo(rule.source, divided);
  return scale < (rule.source == StepFormat::kF16 ? 0x1p-7f : 0x1p-63f) ? 1.0f : scale;
}

// ---- fp32 scales

QG_HOST_DEVICE constexpr UnitScale WithOperation(const LibraryRule& rule, UnitScale unit) {
  // Which NaN an operation gives depends on the processor.
  unit.scale = CanonicalFloat(unit.scale);
  unit.scale_inv = CanonicalFloat(unit.scale_inv);
  switch (rule.operation) {
    case ElementOperation::kMultiply:
      unit.factor = unit.scale;
      break;
    case ElementOperation::kDivide:
      unit.factor = unit.scale_inv;
      unit.divides = true;
      break;
    case ElementOperation::kReciprocal:
      unit.factor = 1.0f / unit.scale_inv;
      break;
  }
  return unit;
}

QG_HOST_DEVICE constexpr float Float64Scale(float amax, float max_finite, bool power_2) {
  double floored = amax;
  if (floored < 1e-12) floored = 1e-12;
  const float scale = static_cast<float>(static_cast<double>(max_finite) * (1.0 / floored));
  const bool has_log = scale > 0.0f && scale < std::bit_cast<float>(0x7F800000u);
  return power_2 && has_log ? PowerOf2(FloorLog2Float(scale)) : scale;
}

template <class F>
QG_HOST_DEVICE constexpr UnitScale MakeFloatScale(const LibraryRule& rule, float amax) {
  const float max_finite = MaxFinite<F>();
  const StepFormat dtype = FormatOfStep(rule.scale_dtype, rule.source);
  UnitScale unit;
  if (rule.options.rule == ScaleRule::kQwix) {
    unit.scale_inv = QwixScale(rule, amax, max_finite);
    unit.scale = unit.factor = QwixReciprocal(rule.source, unit.scale_inv);
    return unit;
  }
  const float epsilon = RoundTo(dtype, rule.options.amax_epsilon);
  if (amax < epsilon) amax = epsilon;
  if (amax == 0.0f && rule.zero_scale == ZeroScale::kOne &&
      rule.options.rule != ScaleRule::kFloat64) {
    return WithOperation(rule, unit);
  }
  switch (rule.options.rule) {
    case ScaleRule::kInverse:
      unit.scale_inv = RoundTo(dtype, amax / max_finite);
      break;
    case ScaleRule::kReciprocalProduct:
      unit.scale = RoundTo(dtype, max_finite * RoundTo(dtype, 1.0f / amax));
      break;
    case ScaleRule::kFloat64:
      unit.scale = Float64Scale(amax, max_finite, rule.options.power_2);
      break;
    default: {
      ScaleOptions options = rule.options;
      options.amax_epsilon = epsilon;
      unit.scale = RoundTo(dtype, ComputeScale(amax, max_finite, options, rule.subnormals));
      // ComputeScale has 1 for an amax of 0.
      if (amax == 0.0f)
        unit.scale = std::bit_cast<float>(0x7F800000u);
      else if (unit.scale > LargestFiniteOf(dtype))
        unit.scale = LargestFiniteOf(dtype);
      break;
    }
  }
  const bool inverse_first = rule.options.rule == ScaleRule::kInverse;
  if (!inverse_first) {
    unit.scale_inv = RoundTo(dtype, ScaleInverse(unit.scale, rule.subnormals));
  }
  if (rule.options.rule == ScaleRule::kReciprocalProduct && rule.options.power_2) {
    const float smallest = 0x1p-126f;
    const float inverse = unit.scale_inv < smallest ? smallest : unit.scale_inv;
    const bool has_log = inverse < std::bit_cast<float>(0x7F800000u);
    const int exponent = has_log ? CeilLog2Float(inverse) : 127;
    unit.scale_inv = RoundTo(dtype, PowerOf2(exponent));
    unit.scale = RoundTo(dtype, PowerOf2(-exponent));
  }
  const bool is_zero = unit.scale_inv == 0.0f && rule.zero_scale == ZeroScale::kDTypeEpsilon;
  if (is_zero) unit.scale_inv = EpsilonOf(dtype);
  if (inverse_first || is_zero) unit.scale = RoundTo(dtype, 1.0f / unit.scale_inv);
  return WithOperation(rule, unit);
}

// ---- E8M0 scales

template <class F>
inline constexpr int kKeptMantissaBits = F::kExponentBits + F::kMantissaBits == 5 ? 3 : 1;

/// The code of 2^exponent, within the range of codes.
QG_HOST_DEVICE constexpr uint8_t E8m0OfExponent(int exponent) {
  return static_cast<uint8_t>((exponent < -127 ? -127 : exponent > 127 ? 127 : exponent) + 127);
}

/// The code of ceil(log2(amax / max)) by an fp32 log2; infinity gives 0xFE.
template <class F>
QG_HOST_DEVICE constexpr uint8_t CeilOfRatio(float amax) {
  const float ratio = amax / MaxFinite<F>();
  if (ratio == 0.0f) return 0;
  return std::bit_cast<uint32_t>(ratio) >= 0x7F800000 ? 0xFE : E8m0OfExponent(CeilLog2Float(ratio));
}

/// torchao's modes but RCEIL: from the bits of the amax.
template <class F>
QG_HOST_DEVICE constexpr UnitScale TorchaoBitsScale(ScaleRule rule, float amax) {
  UnitScale unit;
  uint32_t bits = std::bit_cast<uint32_t>(amax) & 0x7FFFFFFF;
  if (bits > 0x7F800000) {
    unit.code = kE8m0Nan;
    unit.factor = std::bit_cast<float>(0x7F800000u);
    unit.divides = true;
    return unit;
  }
  if (rule == ScaleRule::kTorchaoEven) {
    bits = (bits + (1u << (22 - F::kMantissaBits))) & 0xFF800000;
  }
  int exponent = static_cast<int>(bits >> 23);
  if (rule == ScaleRule::kTorchaoCeil && (bits & 0x7FFFFF) != 0) ++exponent;
  const int code = exponent - kMaxFiniteExponent<F>;
  unit.code = static_cast<uint8_t>(code < 0 ? 0 : code);
  // Elements are divided by at least the smallest normal number.
  unit.factor = E8m0Multiplier(unit.code == 0 ? uint8_t{1} : unit.code);
  return unit;
}

template <class F>
QG_HOST_DEVICE constexpr UnitScale CompressedTensorsMxScale(const LibraryRule& rule, float amax) {
  const uint32_t bits =
      (std::bit_cast<uint32_t>(amax) & 0x7FFFFFFF) + (1u << (22 - kKeptMantissaBits<F>));
  const int field = static_cast<int>(bits >> 23);
  UnitScale unit;
  const int code = field - kMaxFiniteExponent<F>;
  unit.code = field >= 0xFF ? kE8m0Nan : static_cast<uint8_t>(code < 0 ? 0 : code);
  const float scale = DecodeE8m0(unit.code);
  if (RoundTo(rule.source, scale) == 0.0f) {
    unit.code = E8m0OfExponent(Normalize(EpsilonOf(rule.source)).exponent);
  }
  unit.factor = E8m0Multiplier(unit.code);
  return unit;
}

QG_HOST_DEVICE constexpr UnitScale GgufScale(float amax) {
  UnitScale unit;
  const bool is_finite = std::bit_cast<uint32_t>(amax) < 0x7F800000;
  if (!is_finite) {
    unit.code = kE8m0Nan;
  } else {
    unit.code = amax > 0.0f ? E8m0OfExponent(FloorLog2Float(amax) - 2) : uint8_t{0};
  }
  unit.factor = E8m0Multiplier(unit.code);
  return unit;
}

/// ceil(log2) of qwix's scale, where log2 is t(t(ln s) / t(ln 2)).
template <class F>
QG_HOST_DEVICE inline UnitScale QwixMxScale(const LibraryRule& rule, float amax) {
  UnitScale unit;
  const float scale = QwixScale(rule, amax, MaxFinite<F>());
  if (std::bit_cast<uint32_t>(scale) >= 0x7F800000) {
    unit.code = kE8m0Nan;
    unit.factor = E8m0Multiplier(unit.code);
    return unit;
  }
  const float ln2 = RoundTo(rule.source, 0.69314718f);
  const float log2 = RoundTo(rule.source, RoundTo(rule.source, NaturalLog(scale)) / ln2);
  const int below = static_cast<int>(log2);  // Toward zero.
  const int exponent = below + (static_cast<float>(below) < log2 ? 1 : 0);
  unit.code = E8m0OfExponent(exponent);
  unit.factor = QwixReciprocal(rule.source, RoundTo(rule.source, PowerOf2(exponent)));
  return unit;
}

template <class F>
QG_HOST_DEVICE inline UnitScale MakeE8m0Scale(const LibraryRule& rule, float amax) {
  UnitScale unit;
  switch (rule.options.rule) {
    case ScaleRule::kTorchaoRceil:
      unit.code = amax != amax ? kE8m0Nan : CeilOfRatio<F>(amax);
      unit.factor = unit.code == 0 ? 1.0f : E8m0Multiplier(unit.code);
      return unit;
    case ScaleRule::kTorchaoFloor:
    case ScaleRule::kTorchaoCeil:
    case ScaleRule::kTorchaoEven:
      return TorchaoBitsScale<F>(rule.options.rule, amax);
    case ScaleRule::kCompressedTensors:
      return CompressedTensorsMxScale<F>(rule, amax);
    case ScaleRule::kModelopt:
      unit.code = CeilOfRatio<F>(amax);
      unit.factor = E8m0Multiplier(unit.code);
      return unit;
    case ScaleRule::kGguf:
      return GgufScale(amax);
    case ScaleRule::kQwix:
      return QwixMxScale<F>(rule, amax);
    default:
      unit.code = E8m0Scale<F>(amax, rule.options.rule, rule.subnormals);
      unit.factor = E8m0Multiplier(unit.code);
      return unit;
  }
}

// ---- E4M3 scales under one of the tensor; `tensor_amax` is A of docs/quantizers.md

QG_HOST_DEVICE constexpr uint8_t E4m3Of(float value) { return EncodeFloat<E4M3>(value); }

QG_HOST_DEVICE constexpr UnitScale TorchaoNvfp4Scale(bool has_tensor_scale, float amax,
                                                     float tensor_amax) {
  UnitScale unit;
  const float tensor = tensor_amax / 2688.0f;
  const float sixth = amax / 6.0f;
  unit.code = E4m3Of(Within(has_tensor_scale ? sixth / tensor : sixth, 0x1p-6f, 448.0f));
  unit.factor = (has_tensor_scale ? 1.0f / tensor : 1.0f) / DecodeFloat<E4M3>(unit.code);
  return unit;
}

QG_HOST_DEVICE constexpr UnitScale CompressedTensorsNvfp4Scale(StepFormat source, float amax,
                                                               float tensor_amax) {
  const float smallest = SmallestNormalOf(source);
  const float floored = tensor_amax < smallest ? smallest : tensor_amax;
  const float tensor = RoundTo(source, 2688.0f * RoundTo(source, 1.0f / floored));
  const float unit_value = tensor * RoundTo(source, amax / 6.0f);
  UnitScale unit;
  unit.code = E4m3Of(unit_value > 448.0f ? 448.0f : unit_value);
  if (unit.code == 0) unit.code = E4m3Of(0.125f);
  unit.factor = DecodeFloat<E4M3>(unit.code) / tensor;
  unit.divides = true;
  return unit;
}

QG_HOST_DEVICE constexpr UnitScale ModeloptNvfp4Scale(float amax, float tensor_amax) {
  const float tensor = tensor_amax / 2688.0f;
  const float ratio = amax / (6.0f * tensor);
  UnitScale unit;
  unit.code = E4m3Of(Within(ratio == 0.0f ? 1.0f : ratio, 0x1p-9f, 448.0f));
  unit.factor = DecodeFloat<E4M3>(unit.code) * tensor;
  unit.divides = true;
  return unit;
}

QG_HOST_DEVICE constexpr UnitScale VllmScale(float amax, float tensor_amax) {
  const float tensor = 2688.0f * (1.0f / tensor_amax);
  UnitScale unit;
  unit.code = E4m3Of(tensor * (amax * (1.0f / 6.0f)));
  const float step = DecodeFloat<E4M3>(unit.code) * (1.0f / tensor);
  unit.factor = unit.code == 0 ? 0.0f : 1.0f / step;
  return unit;
}

QG_HOST_DEVICE constexpr UnitScale MakeTwoLevelScale(const LibraryRule& rule, float amax,
                                                     float tensor_amax) {
  switch (rule.options.rule) {
    case ScaleRule::kTorchaoTwoLevel:
    case ScaleRule::kTorchaoSingleLevel:
      return TorchaoNvfp4Scale(rule.options.rule == ScaleRule::kTorchaoTwoLevel, amax, tensor_amax);
    case ScaleRule::kCompressedTensors:
      return CompressedTensorsNvfp4Scale(rule.source, amax, tensor_amax);
    case ScaleRule::kModelopt:
      return ModeloptNvfp4Scale(amax, tensor_amax);
    case ScaleRule::kVllm:
      return VllmScale(amax, tensor_amax);
    case ScaleRule::kQwix: {
      UnitScale unit;
      unit.code = E4m3Of(QwixScale(rule, amax, 6.0f));
      unit.factor = QwixReciprocal(rule.source, DecodeFloat<E4M3>(unit.code));
      return unit;
    }
    default: {
      const Nvfp4BlockScale block = MakeNvfp4BlockScale(
          amax, MakeNvfp4TensorScale(tensor_amax, rule.e4m3_max, rule.options.rule));
      UnitScale unit;
      unit.code = block.code;
      unit.factor = block.factor;
      unit.divides = block.divides;
      return unit;
    }
  }
}

}  // namespace library_steps

/// The rules under which a NaN element makes the amax of its block NaN; others ignore it.
QG_HOST_DEVICE constexpr bool UnitTakesNan(const LibraryRule& rule) {
  return rule.scales == ScaleKind::kE8m0 && PropagatesNan(rule.options.rule);
}

/// The scale of one unit of elements of format F. `tensor_amax` is read for two-level scales.
template <class F>
QG_HOST_DEVICE inline UnitScale MakeUnitScale(const LibraryRule& rule, float amax,
                                              float tensor_amax) {
  switch (rule.scales) {
    case ScaleKind::kE8m0:
      return library_steps::MakeE8m0Scale<F>(rule, amax);
    case ScaleKind::kTwoLevel:
      return library_steps::MakeTwoLevelScale(rule, amax, tensor_amax);
    case ScaleKind::kNone:
    case ScaleKind::kTensor:
    case ScaleKind::kLine:
    case ScaleKind::kF32:
    case ScaleKind::kLevels:  // level_rule.h.
      break;
  }
  return library_steps::MakeFloatScale<F>(rule, amax);
}

/// The unit of a per-tensor scale that is given (delayed scaling), or 1 of an empty tensor.
QG_HOST_DEVICE constexpr UnitScale GivenUnitScale(const LibraryRule& rule, float scale) {
  UnitScale unit;
  unit.scale = scale;
  unit.scale_inv = ScaleInverse(scale);
  return library_steps::WithOperation(rule, unit);
}

/// What is cast.
QG_HOST_DEVICE constexpr float ScaledElement(const LibraryRule& rule, const UnitScale& unit,
                                             float value) {
  const bool is_qwix = rule.options.rule == ScaleRule::kQwix;
  if (is_qwix) value = library_steps::Flushed(value);
  float scaled = unit.divides ? value / unit.factor : value * unit.factor;
  const bool rounds_to_source =
      is_qwix || rule.operation_dtype == StepDType::kSource ||
      (rule.scales == ScaleKind::kE8m0 && rule.options.rule == ScaleRule::kCompressedTensors);
  if (rounds_to_source) scaled = library_steps::RoundTo(rule.source, scaled);
  if (scaled == 0.0f) {
    if (rule.zero_sign == SignOfZero::kDrop) return 0.0f;
    if (rule.zero_sign == SignOfZero::kNegative) return -0.0f;
  }
  return scaled;
}

/// The code of ScaledElement.
template <class F>
QG_HOST_DEVICE constexpr uint8_t ElementCode(const LibraryRule& rule, float scaled) {
  constexpr uint8_t kSign = FormatConstants<F>::kSignMask;
  // JAX has -0 for a NaN in E2M1, where qwix divides 0 by 0.
  const bool is_nan = scaled != scaled;
  if (is_nan && F::kSpecials == Specials::kNone && rule.options.rule == ScaleRule::kQwix) {
    return kSign;
  }
  const uint8_t code = EncodeFloat<F>(scaled, rule.rounding, rule.overflow);
  const bool is_zero = (code & (kSign - 1)) == 0;
  return is_zero && rule.zero_sign == SignOfZero::kDropRounded ? uint8_t{0} : code;
}

}  // namespace quantgate
