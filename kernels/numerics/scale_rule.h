// The rules by which a scale follows from an amax, and the fp32 scales of FP8 quantizers:
// docs/quantizers.md sections 3 and 4. E8M0 scales are in e8m0.h, those of NVFP4 in nvfp4.h.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/base/host_device.h"
#include "kernels/numerics/float_format.h"

namespace quantgate {

/// The kind of scales that a format has, which decides the algorithm that makes and reads them.
enum class ScaleKind {
  kNone,      ///< Not quantized.
  kTensor,    ///< One f32 per tensor.
  kF32,       ///< f32 per block.
  kE8m0,      ///< E8M0 per block: powers of two.
  kTwoLevel,  ///< E4M3 per block, under an f32 amax of the tensor or of each row.
  kLine,      ///< One f32 per line along the contracted dim: row, or column.
  kLevels,    ///< f32 per group, with or without zero points; codes number levels (level_rule.h).
};

/// How a scale follows from an amax. Each rule is for the formats named above it; the first of each
/// group is Transformer Engine's.
enum class ScaleRule {
  kUsual,  ///< The first rule of the format.
  // fp8_tensor, fp8_block, fp8_rowwise: the topic "amax/448" of docs/tensor-cores.md section 6.
  kDivide,      ///< scale = f32(max / amax).
  kReciprocal,  ///< scale = f32(1 / f32(amax * f32(1 / max))): the reciprocal of the maximum is a
                ///< constant.
  kReciprocalProduct,  ///< scale = f32(max * f32(1 / amax)): number / tensor of torch.
  kInverse,            ///< scale_inv = f32(amax / max) comes first.
  kFloat64,            ///< scale = max * (1 / amax) in binary64: torchao's training.
  // mxfp8: docs/quantizers.md section 5.
  kRoundUp,  ///< The power of two at or above amax / max.
  kFloor,    ///< The difference of the exponents of amax and maximum: OCP, torchao.
  kCeil,     ///< torchao.
  kEven,     ///< torchao.
  kNearest,  ///< FBGEMM.
  kTorchaoRceil,
  kTorchaoFloor,
  kTorchaoCeil,
  kTorchaoEven,
  kGguf,
  // nvfp4: docs/quantizers.md section 6.2.
  kTwoLevel,
  kTwoLevelClamped,  ///< torchao with a tensor scale.
  kSingleLevel,      ///< torchao without a tensor scale.
  kTorchaoTwoLevel,
  kTorchaoSingleLevel,
  kVllm,
  // Of several formats, by the library whose rule of that format it is: library_rule.h.
  kCompressedTensors,  ///< mxfp8, nvfp4.
  kModelopt,           ///< mxfp8, nvfp4.
  kQwix,               ///< All formats.
  // int8, int4, nf4 and bnb_fp4, which also have gguf, compressed_tensors, modelopt and qwix:
  // level_rule.h.
  kTorchao,
  kQuanto,
  kTinygemm,
  kBitsandbytes,
  kBitnet,
};

/// Whether only the general path of an engine has the rule (library_rule.h).
QG_HOST_DEVICE constexpr bool IsLibraryRule(ScaleRule rule) {
  switch (rule) {
    case ScaleRule::kReciprocalProduct:
    case ScaleRule::kInverse:
    case ScaleRule::kFloat64:
    case ScaleRule::kTorchaoRceil:
    case ScaleRule::kTorchaoFloor:
    case ScaleRule::kTorchaoCeil:
    case ScaleRule::kTorchaoEven:
    case ScaleRule::kGguf:
    case ScaleRule::kTorchaoTwoLevel:
    case ScaleRule::kTorchaoSingleLevel:
    case ScaleRule::kVllm:
    case ScaleRule::kCompressedTensors:
    case ScaleRule::kModelopt:
    case ScaleRule::kQwix:
      return true;
    default:
      return false;
  }
}

/// Whether the block scales of nvfp4 are under a scale of the tensor, which is of its amax.
QG_HOST_DEVICE constexpr bool HasTensorScale(ScaleRule rule) {
  return rule != ScaleRule::kSingleLevel && rule != ScaleRule::kTorchaoSingleLevel &&
         rule != ScaleRule::kQwix;
}

/// Largest finite value of a format: 448 (E4M3), 57344 (E5M2), 7.5, 28 (FP6), 6 (E2M1).
template <class F>
QG_HOST_DEVICE constexpr float MaxFinite() {
  const Unpacked u = Unpack<F>(FormatConstants<F>::kMaxFinite);
  return static_cast<float>(u.significand) *
         std::bit_cast<float>(uint32_t(u.exponent - F::kMantissaBits + 127) << 23);
}

/// What fp32 operations that make scales do with operands and results of less than 2^-126.
enum class Subnormals {
  kKept,     ///< IEEE 754.
  kFlushed,  ///< They count as 0, as in code that is compiled with -ftz=true.
};

/// `value` as an operand, or as a result that has been rounded.
QG_HOST_DEVICE constexpr float Flushed(float value, Subnormals subnormals) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const bool is_subnormal = (bits & 0x7F800000) == 0;
  return subnormals == Subnormals::kFlushed && is_subnormal
             ? std::bit_cast<float>(bits & 0x80000000)
             : value;
}

/// The options of ComputeScale.
struct ScaleOptions {
  ScaleRule rule = ScaleRule::kDivide;
  bool power_2 = false;
  float amax_epsilon = 0.0f;
  float value_for_infinity = std::bit_cast<float>(0x7F7FFFFFu);  ///< Replaces an infinite scale.
};

/// The scale that multiplies elements before the cast. The order of the tests is the
/// specification's: the epsilon floor comes before the zero test, so an all-zero tensor with a
/// floor gets max_finite / epsilon. No quotient is subnormal, since max_finite is at least 448.
QG_HOST_DEVICE constexpr float ComputeScale(float amax, float max_finite,
                                            const ScaleOptions& options,
                                            Subnormals subnormals = Subnormals::kKept) {
  constexpr uint32_t kInfinity = 0x7F800000;
  if (amax < options.amax_epsilon) amax = options.amax_epsilon;  // False for NaN.
  // Comparing before flushing changes nothing: where both are subnormal, either is 0 now.
  amax = Flushed(amax, subnormals);
  const uint32_t magnitude = std::bit_cast<uint32_t>(amax) & 0x7FFFFFFF;
  if (magnitude >= kInfinity || magnitude == 0) return 1.0f;
  float scale;
  if (options.rule == ScaleRule::kReciprocal) {
    const float scaled_amax = Flushed(amax * (1.0f / max_finite), subnormals);
    // The product of a subnormal amax can be zero, whose reciprocal is infinite.
    scale = scaled_amax == 0.0f ? std::bit_cast<float>(kInfinity) : 1.0f / scaled_amax;
  } else {
    scale = max_finite / amax;
  }
  uint32_t bits = std::bit_cast<uint32_t>(scale);
  if (bits == kInfinity) bits = std::bit_cast<uint32_t>(options.value_for_infinity);
  if (options.power_2) bits &= 0xFF800000;  // Down to a power of two; FLT_MAX to 2^127.
  return std::bit_cast<float>(bits);
}

/// The factor that dequantizes: f32(1 / scale), not amax / max_finite. The inverse of a scale above
/// 2^126 is subnormal.
QG_HOST_DEVICE constexpr float ScaleInverse(float scale,
                                            Subnormals subnormals = Subnormals::kKept) {
  return Flushed(1.0f / scale, subnormals);
}

}  // namespace quantgate
