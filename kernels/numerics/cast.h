// Casts between binary32 (and binary64) and the smaller formats of float_format.h, written once for
// all formats, integers only, so that every engine gives the same bits. Vector code restates these;
// tests prove it equal.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/base/host_device.h"
#include "kernels/numerics/float_format.h"

namespace quantgate {

enum class ElementRounding {
  kNearestEven,
  kNearestAway,
  kNearestZero,  ///< Ties toward zero.
  kStochastic,   ///< For nvfp4, by stochastic_rounding.h, which takes a random byte; the casts of
                 ///< this file do not have it.
};
enum class Overflow {
  kSaturate,  ///< To the largest finite value, infinities too: Transformer Engine, CUDA SATFINITE.
  kNan,  ///< Beyond the maximum: infinity where the format has one (bf16, f16, E5M2), else NaN:
         ///< ml_dtypes.
};

/// What a cast does beyond the largest finite value unless told otherwise: FP8 saturates
/// (docs/quantizers.md section 1.1), the 16- and 32-bit IEEE formats go to infinity.
template <class F>
inline constexpr Overflow kUsualOverflow =
    FormatConstants<F>::kBits <= 8 ? Overflow::kSaturate : Overflow::kNan;

/// The magnitude code of infinity; for formats without infinities that of NaN, and for formats with
/// neither that of the largest value.
template <class F>
inline constexpr typename F::Storage kBeyondMaxFinite =
    F::kSpecials == Specials::kIeee ? typename F::Storage(FormatConstants<F>::kMaxFinite + 1)
                                    : F::kCanonicalNan;

namespace cast_steps {

/// Steps 3 to 6 of an encode: the finite magnitude significand * 2^(exponent - kFractionBits),
/// significand below 2^(kFractionBits + 1), to the magnitude code of F.
template <class F, int kFractionBits>
QG_HOST_DEVICE constexpr uint32_t RoundAndPack(uint64_t significand, int exponent,
                                               ElementRounding rounding, Overflow overflow) {
  using C = FormatConstants<F>;
  static_assert(F::kMantissaBits < kFractionBits, "a cast to a narrower mantissa");
  // 3. Quantum: numbers below the smallest normal share its exponent, so both kinds round at a
  // fixed bit.
  const int target = exponent < C::kExponentMin ? C::kExponentMin : exponent;
  int shift = target - exponent + (kFractionBits - F::kMantissaBits);
  // Invariant: shift >= 1. At kFractionBits + 2 the whole significand is below half a quantum; more
  // is the same.
  if (shift > kFractionBits + 2) shift = kFractionBits + 2;
  // 4. Round: the significand is  kept | half | sticky  with `shift` bits below kept.
  const uint64_t half = uint64_t(1) << (shift - 1);
  uint64_t kept = significand >> shift;
  const uint64_t dropped = significand & (half + (half - 1));
  const bool tie_up = rounding == ElementRounding::kNearestAway ||
                      (rounding != ElementRounding::kNearestZero && (kept & 1) != 0);
  kept += uint64_t(dropped > half) | uint64_t(dropped == half && tie_up);
  // 5. Pack by addition: kept carries the implicit bit, which adds the 1 that turns (target -
  // kExponentMin) into the exponent field; a subnormal has no implicit bit and field 0; a round-up
  // to the next binade carries over.
  const uint64_t code = (uint64_t(target - C::kExponentMin) << F::kMantissaBits) + kept;
  // 6. Overflow: codes are ordered as values, so one comparison sees every way past the maximum.
  if (code > C::kMaxFinite) {
    return overflow == Overflow::kSaturate ? C::kMaxFinite : kBeyondMaxFinite<F>;
  }
  return static_cast<uint32_t>(code);
}

/// Adds the sign to a magnitude code. NaN is canonical and gets no sign, nor does a zero that has
/// none.
template <class F>
QG_HOST_DEVICE constexpr typename F::Storage WithSign(uint32_t magnitude, bool negative) {
  using Storage = typename F::Storage;
  if (F::kSpecials != Specials::kNone && magnitude == F::kCanonicalNan) return F::kCanonicalNan;
  if (F::kSpecials == Specials::kFnuz && magnitude == 0) return 0;
  return Storage(magnitude | (negative ? FormatConstants<F>::kSignMask : Storage(0)));
}

}  // namespace cast_steps

/// The code of `value` in F. NaN gives the canonical NaN; the sign of zero, and of what rounds to
/// zero, is kept where the format has one.
template <class F>
QG_HOST_DEVICE constexpr typename F::Storage EncodeFloat(
    float value, ElementRounding rounding = ElementRounding::kNearestEven,
    Overflow overflow = kUsualOverflow<F>) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const bool negative = bits >> 31;
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  // 1. Not finite.
  if (magnitude > 0x7F800000) return F::kCanonicalNan;
  if (magnitude == 0x7F800000) {
    return cast_steps::WithSign<F>(
        overflow == Overflow::kSaturate ? FormatConstants<F>::kMaxFinite : kBeyondMaxFinite<F>,
        negative);
  }
  // 2. Unpack; zero and subnormals keep the exponent of the smallest normal and have no implicit
  // bit.
  const int field = static_cast<int>(magnitude >> 23);
  const uint32_t significand = (magnitude & 0x7FFFFF) | (field != 0 ? 0x800000u : 0u);
  const int exponent = (field != 0 ? field : 1) - 127;
  return cast_steps::WithSign<F>(
      cast_steps::RoundAndPack<F, 23>(significand, exponent, rounding, overflow), negative);
}

/// As EncodeFloat from binary64, in one rounding; F may be Float32 too.
template <class F>
QG_HOST_DEVICE constexpr typename F::Storage EncodeDouble(
    double value, ElementRounding rounding = ElementRounding::kNearestEven,
    Overflow overflow = kUsualOverflow<F>) {
  const uint64_t bits = std::bit_cast<uint64_t>(value);
  const bool negative = bits >> 63;
  const uint64_t magnitude = bits & ~(uint64_t(1) << 63);
  const uint64_t infinity = uint64_t(0x7FF) << 52;
  if (magnitude > infinity) return F::kCanonicalNan;
  if (magnitude == infinity) {
    return cast_steps::WithSign<F>(
        overflow == Overflow::kSaturate ? FormatConstants<F>::kMaxFinite : kBeyondMaxFinite<F>,
        negative);
  }
  const int field = static_cast<int>(magnitude >> 52);
  const uint64_t implicit = uint64_t(1) << 52;
  const uint64_t significand = (magnitude & (implicit - 1)) | (field != 0 ? implicit : 0);
  const int exponent = (field != 0 ? field : 1) - 1023;
  return cast_steps::WithSign<F>(
      cast_steps::RoundAndPack<F, 52>(significand, exponent, rounding, overflow), negative);
}

/// binary32 with every NaN made canonical, as outputs must be (docs/numerics.md section 2).
QG_HOST_DEVICE constexpr float CanonicalFloat(float value) {
  return (std::bit_cast<uint32_t>(value) & 0x7FFFFFFF) > 0x7F800000
             ? std::bit_cast<float>(uint32_t(Float32::kCanonicalNan))
             : value;
}

/// The value of a code, exact: every value of these formats is a binary32 number. NaN gives
/// 0x7FFFFFFF.
template <class F>
QG_HOST_DEVICE constexpr float DecodeFloat(typename F::Storage code) {
  // The exponent range of binary32: the code is its upper bits.
  if constexpr (F::kExponentBits == 8) {
    return CanonicalFloat(std::bit_cast<float>(uint32_t(code) << (23 - F::kMantissaBits)));
  }
  const Unpacked u = Unpack<F>(code);
  const uint32_t sign = u.negative ? 0x80000000u : 0u;
  switch (u.kind) {
    case FloatClass::kNan:
      return std::bit_cast<float>(uint32_t(Float32::kCanonicalNan));
    case FloatClass::kInfinite:
      return std::bit_cast<float>(sign | 0x7F800000u);
    case FloatClass::kZero:
      return std::bit_cast<float>(sign);
    case FloatClass::kFinite:
      break;
  }
  // Shift the leading bit to the implicit position; binary32 has the exponents for it.
  uint32_t significand = u.significand << (23 - F::kMantissaBits);
  int exponent = u.exponent;
  while (significand < 0x800000) {
    significand <<= 1;
    --exponent;
  }
  // As in step 5: the implicit bit is added into the exponent field.
  return std::bit_cast<float>(sign | ((uint32_t(exponent + 126) << 23) + significand));
}

}  // namespace quantgate
