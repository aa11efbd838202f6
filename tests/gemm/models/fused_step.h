// The fused dot step T(F, outman; a[0..L), b[0..L), c) of docs/tensor-cores.md section 1 in as many
// steps as that section has, for tests: what the rules of kernels/numerics/fused_rule.h and the
// paths that follow them are compared with.
#pragma once

#include "kernels/numerics/fused_step.h"

namespace quantgate {

struct WgmmaFp8 {  // e4m3 and e5m2 on Hopper, in any mix.
  static constexpr int kAlignBits = 13, kOutMantissa = 13;
};

/// The exact product of two codes. NaN, and infinity times zero, are kNan.
template <class FormatA, class FormatB>
constexpr FusedTerm FusedProduct(typename FormatA::Storage a_code,
                                 typename FormatB::Storage b_code) {
  const Unpacked a = Unpack<FormatA>(a_code);
  const Unpacked b = Unpack<FormatB>(b_code);
  const bool negative = a.negative != b.negative;
  const bool any_nan = a.kind == FloatClass::kNan || b.kind == FloatClass::kNan;
  const bool any_infinite = a.kind == FloatClass::kInfinite || b.kind == FloatClass::kInfinite;
  const bool any_zero = a.kind == FloatClass::kZero || b.kind == FloatClass::kZero;
  if (any_nan || (any_infinite && any_zero)) return {FloatClass::kNan, negative, 0, 0};
  if (any_infinite) return {FloatClass::kInfinite, negative, 0, 0};
  if (any_zero) return {FloatClass::kZero, negative, 0, 0};
  return {FloatClass::kFinite, negative, a.exponent + b.exponent,
          static_cast<uint64_t>(a.significand) * b.significand};
}

/// One fused step: the fp32 bits of c + sum over i < length of a[i] * b[i]. `length` is the
/// instruction's L, at most 2^20 for the sum to fit int64: its terms lie below 2^(F+2) <= 2^27.
/// Zero padding of a shorter tail changes nothing. NaN is 0x7FFFFFFF.
template <class Step, class FormatA, class FormatB>
constexpr uint32_t FusedStep(const typename FormatA::Storage* a, const typename FormatB::Storage* b,
                             int length, uint32_t c_bits) {
  constexpr int kProductFraction = FormatA::kMantissaBits + FormatB::kMantissaBits;
  const Unpacked c = Unpack<Float32>(c_bits);

  // 1. Specials, and E: the largest exponent among finite non-zero terms, and the floor.
  bool nan = c.kind == FloatClass::kNan;
  bool positive_infinity = c.kind == FloatClass::kInfinite && !c.negative;
  bool negative_infinity = c.kind == FloatClass::kInfinite && c.negative;
  int exponent_max = c.kind == FloatClass::kFinite ? c.exponent : kFusedExponentFloor;
  for (int i = 0; i < length; ++i) {
    const FusedTerm term = FusedProduct<FormatA, FormatB>(a[i], b[i]);
    nan |= term.kind == FloatClass::kNan;
    positive_infinity |= term.kind == FloatClass::kInfinite && !term.negative;
    negative_infinity |= term.kind == FloatClass::kInfinite && term.negative;
    if (term.kind == FloatClass::kFinite && term.exponent > exponent_max) {
      exponent_max = term.exponent;
    }
  }
  if (nan || (positive_infinity && negative_infinity)) return Float32::kCanonicalNan;
  if (positive_infinity) return 0x7F800000u;
  if (negative_infinity) return 0xFF800000u;

  // 2. Every term in units of 2^(E - F), magnitude truncated: below 2^(F+2), so the sum of 2^20
  // fits int64.
  const auto aligned = [&](bool negative, uint64_t significand, int exponent, int fraction_bits) {
    const int shift = Step::kAlignBits - fraction_bits - (exponent_max - exponent);
    const int64_t magnitude = ShiftTruncating(significand, shift);
    return negative ? -magnitude : magnitude;
  };
  int64_t sum = 0;
  if (c.kind == FloatClass::kFinite) {
    sum = aligned(c.negative, c.significand, c.exponent, Float32::kMantissaBits);
  }
  for (int i = 0; i < length; ++i) {
    const FusedTerm term = FusedProduct<FormatA, FormatB>(a[i], b[i]);
    if (term.kind != FloatClass::kFinite) continue;
    sum += aligned(term.negative, term.significand, term.exponent, kProductFraction);
  }

  // 3. One normalisation and one truncation.
  return TruncateToFloat32(sum, exponent_max - Step::kAlignBits, Step::kOutMantissa);
}

}  // namespace quantgate
