// Element types as ordered codes: the properties of each type that a bitwise comparison uses.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/compare/parity_report.h"
#include "kernels/numerics/float_format.h"
#include "kernels/tensor/dtype.h"
#include "kernels/tensor/visit_format.h"

namespace quantgate {

/// IEEE 754 binary64. Only reports use it, so float_format.h does not have it.
struct Float64 {
  using Storage = uint64_t;
  static constexpr int kExponentBits = 11, kMantissaBits = 52, kBias = 1023;
  static constexpr Specials kSpecials = Specials::kIeee;
};

/// Codes of a signed floating-point format. Magnitudes are ordered as values are, and both zeros
/// have magnitude 0, as has the NaN of fnuz formats, which have one zero.
template <class F>
struct FloatCodes {
  using Storage = typename F::Storage;
  using Format = F;
  using C = FormatConstants<F>;
  /// The magnitude above which codes are NaN; infinity itself where the format has one.
  static constexpr Storage kLargestNumber =
      F::kSpecials == Specials::kIeee ? C::kMaxFinite + 1 : C::kMaxFinite;

  static constexpr Storage Magnitude(Storage code) {
    return static_cast<Storage>(code & ~C::kSignMask);
  }
  static constexpr bool IsNegative(Storage code) { return (code & C::kSignMask) != 0; }
  static constexpr bool IsNan(Storage code) {
    if constexpr (F::kSpecials == Specials::kFnuz) return code == C::kSignMask;
    return Magnitude(code) > kLargestNumber;
  }
  static constexpr bool IsInfinite(Storage code) {
    return F::kSpecials == Specials::kIeee && Magnitude(code) == kLargestNumber;
  }
};

/// Integers in two's complement, which have one zero.
template <class StorageType>
struct IntegerCodes {
  using Storage = StorageType;
  static constexpr Storage kSignMask =
      static_cast<Storage>(Storage{1} << (8 * sizeof(Storage) - 1));
  static constexpr Storage Magnitude(Storage code) {
    return IsNegative(code) ? static_cast<Storage>(Storage{0} - code) : code;
  }
  static constexpr bool IsNegative(Storage code) { return (code & kSignMask) != 0; }
  static constexpr bool IsNan(Storage) { return false; }
  static constexpr bool IsInfinite(Storage) { return false; }
};

/// Codes without a sign: bytes, packed pairs of codes, and E8M0 with its NaN.
template <class StorageType, StorageType kNanCode = 0>
struct UnsignedCodes {
  using Storage = StorageType;
  static constexpr Storage Magnitude(Storage code) { return code; }
  static constexpr bool IsNegative(Storage) { return false; }
  static constexpr bool IsNan(Storage code) { return kNanCode != 0 && code == kNanCode; }
  static constexpr bool IsInfinite(Storage) { return false; }
};

/// E8M0 has no zero: code 0 is 2^-127.
struct E8M0Codes : UnsignedCodes<uint8_t, 0xFF> {};

/// The class of a code, without a branch on the sign, which no processor predicts: negative classes
/// mirror the positive ones.
template <class Codes>
constexpr ValueClass ClassOfCode(typename Codes::Storage code) {
  static_assert(static_cast<int>(ValueClass::kNegativeInfinity) == 0 &&
                static_cast<int>(ValueClass::kPositiveInfinity) == 5);
  constexpr bool kHasZero = !std::is_same_v<Codes, E8M0Codes>;
  const int not_zero = kHasZero && Codes::Magnitude(code) == 0 ? 0 : 1;
  const int infinite = Codes::IsInfinite(code) ? 1 : 0;
  const int positive = static_cast<int>(ValueClass::kPositiveZero) + not_zero + infinite;
  const int negative = Codes::IsNegative(code) ? 1 : 0;
  const int value_class = 5 * negative + (1 - 2 * negative) * positive;
  return Codes::IsNan(code) ? ValueClass::kNan : static_cast<ValueClass>(value_class);
}

/// Calls f(Codes{}) with the Codes type of a dtype.
template <class Function>
auto WithCodes(DType dtype, Function f) {
  const auto of_format = [&]<class F>() { return f(FloatCodes<F>{}); };
  return VisitFormatOr(ElementFormats{}, FormatOf(dtype), of_format, [&] {
    switch (dtype) {
      case DType::kF64:
        return f(FloatCodes<Float64>{});
      case DType::kF8E8M0:
        return f(E8M0Codes{});
      case DType::kI8:
        return f(IntegerCodes<uint8_t>{});
      case DType::kI16:
        return f(IntegerCodes<uint16_t>{});
      case DType::kI32:
        return f(IntegerCodes<uint32_t>{});
      case DType::kI64:
        return f(IntegerCodes<uint64_t>{});
      default:  // One byte each: kU8 and two codes.
        return f(UnsignedCodes<uint8_t>{});
    }
  });
}

}  // namespace quantgate
