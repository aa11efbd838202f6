// Fixed-point sums of binary floating-point numbers without any rounding (Kulisch's long
// accumulator), and the one rounding at the end. Positive and negative terms are summed separately,
// so that carries stay short.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/base/host_device.h"
#include "kernels/numerics/cast.h"
#include "kernels/numerics/float_format.h"

namespace quantgate {

/// +-(words as one little-endian integer) * 2^kLsbExponent. Zero is not negative.
template <int kLsbExponent, int kWords>
struct WideMagnitude {
  static constexpr int kLsb = kLsbExponent;
  static constexpr int kWordCount = kWords;
  bool negative = false;
  uint64_t words[kWords] = {};

  QG_HOST_DEVICE constexpr bool IsZero() const { return HighestBit() < 0; }
  /// Index of the highest set bit; -1 for zero.
  QG_HOST_DEVICE constexpr int HighestBit() const {
    for (int i = kWords - 1; i >= 0; --i) {
      // Not std::countl_zero, of which nvcc makes 64 (fused_step.h, LeadingZeros).
      if (words[i] != 0) return 64 * i + 63 - __builtin_clzll(words[i]);
    }
    return -1;
  }
  QG_HOST_DEVICE constexpr bool Bit(int index) const {
    return index >= 0 && ((words[index >> 6] >> (index & 63)) & 1) != 0;
  }
  /// True when any bit below `index` is set.
  QG_HOST_DEVICE constexpr bool AnyBitBelow(int index) const {
    if (index <= 0) return false;
    for (int i = 0; i < (index >> 6); ++i) {
      if (words[i] != 0) return true;
    }
    const int rest = index & 63;
    return rest != 0 && (words[index >> 6] & ((uint64_t(1) << rest) - 1)) != 0;
  }
};

/// Terms must be multiples of 2^kLsbExponent, and the sum of each sign must stay below
/// 2^(kLsbExponent + 64 * kWords); the caller must prove both.
template <int kLsbExponent, int kWords>
class WideAccumulator {
 public:
  using Magnitude = WideMagnitude<kLsbExponent, kWords>;

  /// Adds +-significand * 2^exponent.
  QG_HOST_DEVICE constexpr void Add(bool negative, uint64_t significand, int exponent) {
    AddWords(negative, &significand, 1, exponent);
  }

  /// A normal fp64 number or zero; its whole 53-bit significand must lie on the grid.
  QG_HOST_DEVICE constexpr void AddDouble(double value) {
    const uint64_t bits = std::bit_cast<uint64_t>(value);
    const int field = static_cast<int>((bits >> 52) & 0x7FF);
    if (field == 0) return;
    const uint64_t significand = (bits & ((uint64_t(1) << 52) - 1)) | (uint64_t(1) << 52);
    Add((bits >> 63) != 0, significand, field - 1023 - 52);
  }

  /// Adds +-(words[0..count) as an integer) * 2^exponent.
  QG_HOST_DEVICE constexpr void AddWords(bool negative, const uint64_t* words, int count,
                                         int exponent) {
    uint64_t* sum = negative ? negative_ : positive_;
    const int position = exponent - kLsbExponent;
    const int shift = position & 63;
    int index = position >> 6;
    uint64_t below = 0;  // The word under the current one, for the bits that the shift moves up.
    unsigned carry = 0;
    for (int i = 0; i <= count; ++i) {
      const uint64_t word = i < count ? words[i] : 0;
      const uint64_t shifted = shift == 0 ? word : (word << shift) | (below >> (64 - shift));
      below = word;
      if (index < kWords) carry = AddWithCarry(sum[index++], shifted, carry);
    }
    while (carry != 0 && index < kWords) carry = AddWithCarry(sum[index++], 0, carry);
  }

  /// The exact sum so far.
  QG_HOST_DEVICE constexpr Magnitude Total() const {
    Magnitude total;
    int top = kWords - 1;
    while (top > 0 && positive_[top] == negative_[top]) --top;
    total.negative = positive_[top] < negative_[top];
    const uint64_t* larger = total.negative ? negative_ : positive_;
    const uint64_t* smaller = total.negative ? positive_ : negative_;
    unsigned borrow = 0;
    for (int i = 0; i < kWords; ++i) {
      const uint64_t difference = larger[i] - smaller[i];
      total.words[i] = difference - borrow;
      borrow = (larger[i] < smaller[i]) || (difference < borrow) ? 1 : 0;
    }
    return total;
  }

 private:
  QG_HOST_DEVICE static constexpr unsigned AddWithCarry(uint64_t& word, uint64_t addend,
                                                        unsigned carry) {
    const uint64_t partial = word + addend;
    const uint64_t sum = partial + carry;
    const unsigned out = (partial < addend || sum < partial) ? 1 : 0;
    word = sum;
    return out;
  }

  uint64_t positive_[kWords] = {};
  uint64_t negative_[kWords] = {};
};

/// Rounds once, to nearest even, straight to format F. An exact zero is +0; a nonzero value that
/// rounds to zero keeps its sign.
template <class F, class Magnitude>
QG_HOST_DEVICE constexpr typename F::Storage RoundWide(const Magnitude& value,
                                                       Overflow overflow = kUsualOverflow<F>) {
  using C = FormatConstants<F>;
  const int highest = value.HighestBit();
  if (highest < 0) return 0;
  // 1. Exponent of the value, not below that of the subnormals; `cut` is the bit index of one ulp.
  const int exponent = highest + Magnitude::kLsb;
  const int quantum_exponent =
      (exponent > C::kExponentMin ? exponent : C::kExponentMin) - F::kMantissaBits;
  const int cut = quantum_exponent - Magnitude::kLsb;
  // 2. Far beyond the format the code stays at its limit; the rounding below sees the rest.
  uint64_t code = ~uint64_t(0);
  if (exponent <= C::kExponentAllOnes - F::kBias) {
    // 3. The kept bits as an integer, rounded up when above half, or at half and odd.
    uint64_t kept = 0;
    for (int i = F::kMantissaBits; i >= 0; --i) kept = kept << 1 | (value.Bit(cut + i) ? 1 : 0);
    const bool half = value.Bit(cut - 1);
    kept += half && (value.AnyBitBelow(cut - 1) || (kept & 1) != 0) ? 1 : 0;
    // 4. Field - 1 goes above the mantissa: the implicit bit, where there is one, adds the missing
    // 1, and a carry out of the mantissa moves to the next exponent by itself.
    const int binade = quantum_exponent + F::kMantissaBits - C::kExponentMin;
    code = (static_cast<uint64_t>(binade) << F::kMantissaBits) + kept;
  }
  // 5. Above the largest finite code.
  if (code > C::kMaxFinite) {
    code = overflow == Overflow::kSaturate ? C::kMaxFinite : kBeyondMaxFinite<F>;
  }
  return cast_steps::WithSign<F>(static_cast<uint32_t>(code), value.negative);
}

}  // namespace quantgate
