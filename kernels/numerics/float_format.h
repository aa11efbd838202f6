// Binary floating-point formats as data: each is a record of field widths and special codes. The
// algorithms that read the records (Unpack below, cast.h) are written once for all formats. A new
// format adds a record here, one line in format_list.h and a vector file under tests.
#pragma once

#include <cstdint>

#include "kernels/base/host_device.h"

namespace quantgate {

/// What the codes above the largest finite value mean.
enum class Specials {
  kIeee,     ///< Exponent all ones: mantissa 0 is an infinity, else NaN.
  kOnlyNan,  ///< No infinities; exponent and mantissa all ones is NaN (the "fn" formats).
  kNone,     ///< Every code is finite.
  kFnuz,     ///< No infinities and no -0, whose code is the one NaN (the "fnuz" formats).
};

/// IEEE 754 binary32.
struct Float32 {
  using Storage = uint32_t;
  static constexpr int kExponentBits = 8, kMantissaBits = 23, kBias = 127;
  static constexpr Specials kSpecials = Specials::kIeee;
  static constexpr Storage kCanonicalNan =
      0x7FFFFFFF;  // What tensor cores and CUDA conversions return.
};

/// bfloat16: the upper half of binary32.
struct BFloat16 {
  using Storage = uint16_t;
  static constexpr int kExponentBits = 8, kMantissaBits = 7, kBias = 127;
  static constexpr Specials kSpecials = Specials::kIeee;
  static constexpr Storage kCanonicalNan = 0x7FFF;
};

/// IEEE 754 binary16.
struct Float16 {
  using Storage = uint16_t;
  static constexpr int kExponentBits = 5, kMantissaBits = 10, kBias = 15;
  static constexpr Specials kSpecials = Specials::kIeee;
  static constexpr Storage kCanonicalNan = 0x7FFF;
};

/// OCP FP8 E4M3: maximum 448 = 0x7E, NaN 0x7F and 0xFF.
struct E4M3 {
  using Storage = uint8_t;
  static constexpr int kExponentBits = 4, kMantissaBits = 3, kBias = 7;
  static constexpr Specials kSpecials = Specials::kOnlyNan;
  static constexpr Storage kCanonicalNan = 0x7F;
};

/// OCP FP8 E5M2: maximum 57344 = 0x7B, infinity 0x7C.
struct E5M2 {
  using Storage = uint8_t;
  static constexpr int kExponentBits = 5, kMantissaBits = 2, kBias = 15;
  static constexpr Specials kSpecials = Specials::kIeee;
  static constexpr Storage kCanonicalNan = 0x7F;
};

/// AMD's FP8 of gfx940 to gfx942, whose biases are one more than OCP's: maximum 240 and 57344, both
/// 0x7F; the only NaN is 0x80.
struct E4M3Fnuz {
  using Storage = uint8_t;
  static constexpr int kExponentBits = 4, kMantissaBits = 3, kBias = 8;
  static constexpr Specials kSpecials = Specials::kFnuz;
  static constexpr Storage kCanonicalNan = 0x80;
};
struct E5M2Fnuz {
  using Storage = uint8_t;
  static constexpr int kExponentBits = 5, kMantissaBits = 2, kBias = 16;
  static constexpr Specials kSpecials = Specials::kFnuz;
  static constexpr Storage kCanonicalNan = 0x80;
};

/// OCP FP6 E2M3 and E3M2, one code in the low six bits of a byte, and FP4 E2M1: every code is
/// finite. A cast turns NaN into kCanonicalNan, which is the largest value.
struct E2M3 {
  using Storage = uint8_t;
  static constexpr int kExponentBits = 2, kMantissaBits = 3, kBias = 1;
  static constexpr Specials kSpecials = Specials::kNone;
  static constexpr Storage kCanonicalNan = 0x1F;
};
struct E3M2 {
  using Storage = uint8_t;
  static constexpr int kExponentBits = 3, kMantissaBits = 2, kBias = 3;
  static constexpr Specials kSpecials = Specials::kNone;
  static constexpr Storage kCanonicalNan = 0x1F;
};
struct E2M1 {
  using Storage = uint8_t;
  static constexpr int kExponentBits = 2, kMantissaBits = 1, kBias = 1;
  static constexpr Specials kSpecials = Specials::kNone;
  static constexpr Storage kCanonicalNan = 0x7;
};

/// What follows from the record of a format.
template <class F>
struct FormatConstants {
  using Storage = typename F::Storage;
  static constexpr int kBits = 1 + F::kExponentBits + F::kMantissaBits;
  static constexpr Storage kSignMask = Storage(Storage(1) << (kBits - 1));
  static constexpr Storage kMantissaMask = Storage((Storage(1) << F::kMantissaBits) - 1);
  static constexpr int kExponentAllOnes = (1 << F::kExponentBits) - 1;
  /// Exponent of the smallest normal number, which subnormals share.
  static constexpr int kExponentMin = 1 - F::kBias;
  /// Magnitude code of the largest finite value.
  static constexpr Storage kMaxFinite =
      F::kSpecials == Specials::kIeee
          ? Storage((Storage(kExponentAllOnes) << F::kMantissaBits) - 1)
          : Storage(kSignMask - (F::kSpecials == Specials::kOnlyNan ? 2 : 1));
};

enum class FloatClass : uint8_t { kZero, kFinite, kInfinite, kNan };

/// A code taken apart: value = (-1)^negative * significand * 2^(exponent - kMantissaBits). The
/// significand of a subnormal is not renormalised: it stays below 2^kMantissaBits with the exponent
/// of the smallest normal.
struct Unpacked {
  FloatClass kind;
  bool negative;
  int exponent;
  uint32_t significand;
};

/// Takes a code apart. Infinities and NaN have exponent and significand 0.
template <class F>
QG_HOST_DEVICE constexpr Unpacked Unpack(typename F::Storage code) {
  using C = FormatConstants<F>;
  const bool negative = (code & C::kSignMask) != 0;
  if (F::kSpecials == Specials::kFnuz && code == C::kSignMask) {
    return {FloatClass::kNan, false, 0, 0};
  }
  const int field = static_cast<int>((code & ~C::kSignMask) >> F::kMantissaBits);
  const uint32_t mantissa = code & C::kMantissaMask;
  if (F::kSpecials == Specials::kIeee && field == C::kExponentAllOnes) {
    return {mantissa == 0 ? FloatClass::kInfinite : FloatClass::kNan, negative, 0, 0};
  }
  if (F::kSpecials == Specials::kOnlyNan && field == C::kExponentAllOnes &&
      mantissa == C::kMantissaMask) {
    return {FloatClass::kNan, negative, 0, 0};
  }
  if (field == 0) {
    return {mantissa == 0 ? FloatClass::kZero : FloatClass::kFinite, negative, C::kExponentMin,
            mantissa};
  }
  return {FloatClass::kFinite, negative, field - F::kBias,
          mantissa | (uint32_t(1) << F::kMantissaBits)};
}

/// Unpack<F>(code).kind, found by comparing codes, whose order is that of the magnitudes.
template <class F>
QG_HOST_DEVICE constexpr FloatClass FloatClassOf(typename F::Storage code) {
  using C = FormatConstants<F>;
  if (F::kSpecials == Specials::kFnuz && code == C::kSignMask) return FloatClass::kNan;
  const uint32_t magnitude = code & (C::kSignMask - 1u);
  if (magnitude == 0) return FloatClass::kZero;
  if (magnitude <= C::kMaxFinite) return FloatClass::kFinite;
  return F::kSpecials == Specials::kIeee && magnitude == C::kMaxFinite + 1u ? FloatClass::kInfinite
                                                                            : FloatClass::kNan;
}

}  // namespace quantgate
