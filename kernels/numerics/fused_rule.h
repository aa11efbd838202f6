// Rules of accumulation as values: which fused steps a dot product takes, in which order, and what
// happens between them (docs/tensor-cores.md sections 1 to 3). DotUnder is the meaning of every
// tensor-core GEMM, and what `explain` evaluates for rules that no GPU has; vector kernels are
// tested against it.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/base/host_device.h"
#include "kernels/numerics/cast.h"
#include "kernels/numerics/fused_step.h"

namespace quantgate {

/// The order in which an instruction takes the products.
enum class ProductOrder : uint8_t {
  kAscending,
  /// mma.sync m16n8k32 FP8, which is compiled to fp16 instructions: elements become fp16 numbers,
  /// whose exponents count; of every 32, k % 4 in {0, 1} first, then k % 4 in {2, 3}.
  kPairsOfFour,
};

/// What becomes of the accumulator every promote_k products, after which it restarts from +0.
enum class Promotion : uint8_t {
  kNone,         ///< The accumulator goes on.
  kAdd,          ///< total = total + acc, rounded to the accumulator's type.
  kScaled,       ///< total = fma(acc, f32(scale_a * scale_b), total).
  kScaledTwice,  ///< total = fma(f32(acc * scale_a), scale_b, total).
};

/// How one output accumulates. Every value of every field is meaningful; hardware has few of them.
struct FusedRule {
  int step = 16;  ///< Products of one fused step, which has L = step / group terms.
  int group = 1;  ///< Products summed exactly to one term before alignment; E2M1 elements only.
  int align_bits = 25;           ///< F, at most 40.
  int out_mantissa = 23;         ///< Fraction bits of the fp32 result of a step; at most 23.
  bool f16_accumulator = false;  ///< A step's result is rounded to nearest even to fp16 instead.
  ProductOrder order = ProductOrder::kAscending;  ///< kPairsOfFour: promote_k and step divide 32.
  Promotion promotion = Promotion::kNone;
  int64_t promote_k = 0;  ///< A multiple of `step`; ignored with kNone.
  int slices = 1;         ///< Split-K: slices of whole tiles, added in fp32 in order.
  int64_t tile_k = 1;     ///< The k of one tile of split-K.

  friend bool operator==(const FusedRule&, const FusedRule&) = default;
};

/// Products in one slice of k. cuBLASLt 13.1 rounds the integer quotient k / slices up to whole
/// tiles; where the quotient is whole tiles already and leaves a remainder, the last products of k
/// are in no slice and are lost: 8 of 776 at 12 slices, on an H200
/// (tests/data/golden_gemm_splitk.safetensors).
QG_HOST_DEVICE constexpr int64_t SliceLength(const FusedRule& rule, int64_t k) {
  if (rule.slices <= 1) return k;
  const int64_t tiles = (k / rule.slices + rule.tile_k - 1) / rule.tile_k;
  return (tiles > 0 ? tiles : 1) * rule.tile_k;
}

/// An element of an operand, ready to multiply: +-significand * 2^(exponent - fraction_bits of its
/// row), not renormalised. Zeros, NaN and infinities have significand 0.
struct FusedElement {
  uint32_t significand = 0;
  int16_t exponent = 0;
  FloatClass kind = FloatClass::kZero;
  bool negative = false;
};

/// The element of `code` times 2^scale_exponent.
template <class F>
QG_HOST_DEVICE constexpr FusedElement UnpackElement(typename F::Storage code,
                                                    int scale_exponent = 0) {
  const Unpacked u = Unpack<F>(code);
  const bool finite = u.kind == FloatClass::kFinite;
  return {finite ? u.significand : 0,
          static_cast<int16_t>(finite ? u.exponent + scale_exponent : 0), u.kind, u.negative};
}

/// One row of an operand, decoded. DotUnder takes any type with these three functions and the two
/// fields fraction_bits and group_scale_fraction_bits.
struct FusedRow {
  const FusedElement* elements = nullptr;
  int fraction_bits = 0;
  const FusedElement* group_scales = nullptr;  ///< One per FusedRule::group; null: 1.
  int group_scale_fraction_bits = 0;
  const float* block_scales = nullptr;  ///< One per promote_k; null: 1.

  QG_HOST_DEVICE constexpr FusedElement element(int64_t k) const { return elements[k]; }
  QG_HOST_DEVICE constexpr FusedElement group_scale(int64_t group) const {
    return group_scales == nullptr ? FusedElement{1, 0, FloatClass::kFinite, false}
                                   : group_scales[group];
  }
  QG_HOST_DEVICE constexpr float block_scale(int64_t block) const {
    return block_scales == nullptr ? 1.0f : block_scales[block];
  }
};

namespace fused_rule_steps {

/// The k of product i of an instruction's order, from `base`, a multiple of 32.
QG_HOST_DEVICE constexpr int64_t PairsOfFour(int64_t base, int64_t i) {
  const int64_t chain = i / 16 % 2, place = i % 16;
  return base + i / 32 * 32 + place / 2 * 4 + chain * 2 + place % 2;
}

/// An FP8 element as the fp16 number of the same value: e4m3 subnormals are normal in fp16.
QG_HOST_DEVICE constexpr FusedElement AsFloat16(FusedElement element, int fraction_bits) {
  if (element.kind != FloatClass::kFinite) return element;
  while (element.significand >> fraction_bits == 0 &&
         element.exponent > FormatConstants<Float16>::kExponentMin) {
    element.significand <<= 1;
    --element.exponent;
  }
  return element;
}

QG_HOST_DEVICE constexpr FusedTerm Product(const FusedElement& a, const FusedElement& b) {
  const bool negative = a.negative != b.negative;
  if (a.kind == FloatClass::kFinite && b.kind == FloatClass::kFinite) {
    return {FloatClass::kFinite, negative, a.exponent + b.exponent,
            static_cast<uint64_t>(a.significand) * b.significand};
  }
  const bool any_nan = a.kind == FloatClass::kNan || b.kind == FloatClass::kNan;
  const bool any_infinite = a.kind == FloatClass::kInfinite || b.kind == FloatClass::kInfinite;
  const bool any_zero = a.kind == FloatClass::kZero || b.kind == FloatClass::kZero;
  if (any_nan || (any_infinite && any_zero)) return {FloatClass::kNan, negative, 0, 0};
  return {any_infinite ? FloatClass::kInfinite : FloatClass::kZero, negative, 0, 0};
}

/// The bits of sum * 2^quantum_exponent rounded to nearest even to fp16; zero is +0. |sum| < 2^61.
QG_HOST_DEVICE constexpr uint32_t RoundToFloat16(int64_t sum, int quantum_exponent) {
  if (sum == 0) return 0;
  const uint64_t magnitude = sum < 0 ? uint64_t(0) - static_cast<uint64_t>(sum) : uint64_t(sum);
  const int leading = 63 - LeadingZeros(magnitude);
  const uint32_t code =
      cast_steps::RoundAndPack<Float16, 60>(magnitude << (60 - leading), leading + quantum_exponent,
                                            ElementRounding::kNearestEven, Overflow::kNan);
  return code == 0 ? 0 : code | (sum < 0 ? 0x8000u : 0u);
}

/// Terms of a step that are kept between its two passes.
inline constexpr int kTermsKept = 32;

/// One step over terms term_at(0 .. count), each with `fraction_bits`. The accumulator and the
/// result are bits of fp32, or of fp16 where the rule says so.
template <class TermAt>
QG_HOST_DEVICE constexpr uint32_t Step(const FusedRule& rule, int count, int fraction_bits,
                                       const TermAt& term_at, uint32_t c_bits) {
  const bool f16 = rule.f16_accumulator;
  const Unpacked c = f16 ? Unpack<Float16>(static_cast<uint16_t>(c_bits)) : Unpack<Float32>(c_bits);
  bool nan = c.kind == FloatClass::kNan;
  bool positive_infinity = c.kind == FloatClass::kInfinite && !c.negative;
  bool negative_infinity = c.kind == FloatClass::kInfinite && c.negative;
  int exponent_max = kFusedExponentFloor;
  if (c.kind == FloatClass::kFinite && c.exponent > exponent_max) exponent_max = c.exponent;
  FusedTerm kept[kTermsKept];  // The second pass makes the others again.
  for (int i = 0; i < count; ++i) {
    const FusedTerm term = term_at(i);
    if (i < kTermsKept) kept[i] = term;
    if (term.kind == FloatClass::kFinite) {
      exponent_max = term.exponent > exponent_max ? term.exponent : exponent_max;
      continue;
    }
    nan |= term.kind == FloatClass::kNan;
    positive_infinity |= term.kind == FloatClass::kInfinite && !term.negative;
    negative_infinity |= term.kind == FloatClass::kInfinite && term.negative;
  }
  if (nan || (positive_infinity && negative_infinity)) {
    return f16 ? uint32_t(Float16::kCanonicalNan) : uint32_t(Float32::kCanonicalNan);
  }
  if (positive_infinity) return f16 ? 0x7C00u : 0x7F800000u;
  if (negative_infinity) return f16 ? 0xFC00u : 0xFF800000u;

  const auto aligned = [&](bool negative, uint64_t significand, int exponent, int bits) {
    const int64_t magnitude =
        ShiftTruncating(significand, rule.align_bits - bits - (exponent_max - exponent));
    const int64_t sign = negative ? -1 : 0;
    return (magnitude ^ sign) - sign;
  };
  int64_t sum = 0;
  if (c.kind == FloatClass::kFinite) {
    sum = aligned(c.negative, c.significand, c.exponent,
                  f16 ? Float16::kMantissaBits : Float32::kMantissaBits);
  }
  for (int i = 0; i < count; ++i) {
    const FusedTerm term = i < kTermsKept ? kept[i] : term_at(i);
    if (term.kind != FloatClass::kFinite) continue;
    sum += aligned(term.negative, term.significand, term.exponent, fraction_bits);
  }
  const int quantum = exponent_max - rule.align_bits;
  return f16 ? RoundToFloat16(sum, quantum) : TruncateToFloat32(sum, quantum, rule.out_mantissa);
}

/// One group of E2M1 products from k on, exact, times both scales: a term of exponent exp(scale_a)
/// + exp(scale_b) whatever the sum is; a sum of zero takes no part.
template <class Row>
QG_HOST_DEVICE constexpr FusedTerm GroupTerm(const Row& a, const Row& b, int64_t k, int64_t end,
                                             int group) {
  const FusedTerm scale = Product(a.group_scale(k / group), b.group_scale(k / group));
  if (scale.kind != FloatClass::kFinite) return scale;
  int64_t sum = 0;
  for (int64_t i = k; i < k + group && i < end; ++i) {
    const FusedTerm product = Product(a.element(i), b.element(i));
    // E2M1 exponents are 0 to 2, so the products are whole numbers of quarters.
    const int64_t quarters = static_cast<int64_t>(product.significand << product.exponent);
    sum += product.negative ? -quarters : quarters;
  }
  const uint64_t magnitude = static_cast<uint64_t>(sum < 0 ? -sum : sum);
  return {sum == 0 ? FloatClass::kZero : FloatClass::kFinite, sum < 0, scale.exponent,
          magnitude * scale.significand};
}

/// Chained steps over k in [begin, end) from +0: bits of the accumulator's type.
template <class Row>
QG_HOST_DEVICE constexpr uint32_t Chain(const FusedRule& rule, const Row& a, const Row& b,
                                        int64_t begin, int64_t end) {
  uint32_t accumulator = 0;
  const int fraction_bits = a.fraction_bits + b.fraction_bits;
  if (rule.group > 1) {
    const int scaled_bits =
        fraction_bits + a.group_scale_fraction_bits + b.group_scale_fraction_bits;
    for (int64_t k = begin; k < end; k += rule.step) {
      const auto term = [&](int i) {
        const int64_t at = k + int64_t(i) * rule.group;
        return at < end ? GroupTerm(a, b, at, end, rule.group)
                        : FusedTerm{FloatClass::kZero, false, 0, 0};
      };
      accumulator = Step(rule, rule.step / rule.group, scaled_bits, term, accumulator);
    }
    return accumulator;
  }
  if (rule.order == ProductOrder::kAscending) {
    for (int64_t k = begin; k < end; k += rule.step) {
      const int count = static_cast<int>(end - k < rule.step ? end - k : rule.step);
      const auto term = [&](int i) { return Product(a.element(k + i), b.element(k + i)); };
      accumulator = Step(rule, count, fraction_bits, term, accumulator);
    }
    return accumulator;
  }
  for (int64_t first = 0; begin + first < (end + 31) / 32 * 32; first += rule.step) {
    const auto term = [&](int i) {
      const int64_t k = PairsOfFour(begin, first + i);
      return k < end ? Product(AsFloat16(a.element(k), a.fraction_bits),
                               AsFloat16(b.element(k), b.fraction_bits))
                     : FusedTerm{FloatClass::kZero, false, 0, 0};
    };
    accumulator = Step(rule, rule.step, fraction_bits, term, accumulator);
  }
  return accumulator;
}

/// The value of an accumulator's bits.
QG_HOST_DEVICE constexpr float AccumulatorValue(const FusedRule& rule, uint32_t bits) {
  return rule.f16_accumulator ? DecodeFloat<Float16>(static_cast<uint16_t>(bits))
                              : std::bit_cast<float>(bits);
}

/// The total after one more part.
QG_HOST_DEVICE inline float Promote(const FusedRule& rule, float total, float part, float scale_a,
                                    float scale_b) {
  switch (rule.promotion) {
    case Promotion::kScaled: {
      const float scale = scale_a * scale_b;
      return std::fma(part, scale, total);
    }
    case Promotion::kScaledTwice: {
      const float scaled = part * scale_a;
      return std::fma(scaled, scale_b, total);
    }
    default:
      break;
  }
  if (!rule.f16_accumulator) return total + part;
  // Exact in fp64, rounded once.
  return DecodeFloat<Float16>(EncodeDouble<Float16>(static_cast<double>(total) + part));
}

}  // namespace fused_rule_steps

/// The accumulator of one output under `rule`: sum over i < k of a[i] * b[i], before any epilogue.
/// An fp16 accumulator is returned as the fp32 number of the same value. NaN is any NaN.
template <class Row>
QG_HOST_DEVICE inline float DotUnder(const FusedRule& rule, const Row& a, const Row& b, int64_t k) {
  namespace steps = fused_rule_steps;
  const int64_t slice_k = SliceLength(rule, k);
  float total = 0;
  for (int64_t i = 0; i < rule.slices && i * slice_k < k; ++i) {
    const int64_t begin = i * slice_k;
    const int64_t end = begin + slice_k < k ? begin + slice_k : k;
    float slice = 0;
    if (rule.promotion == Promotion::kNone) {
      slice = steps::AccumulatorValue(rule, steps::Chain(rule, a, b, begin, end));
    } else {
      for (int64_t part = begin; part < end; part += rule.promote_k) {
        const int64_t part_end = part + rule.promote_k < end ? part + rule.promote_k : end;
        const float sum = steps::AccumulatorValue(rule, steps::Chain(rule, a, b, part, part_end));
        const int64_t block = part / rule.promote_k;
        slice = steps::Promote(rule, slice, sum, a.block_scale(block), b.block_scale(block));
      }
    }
    total = i == 0 ? slice : total + slice;
  }
  return total;
}

}  // namespace quantgate
