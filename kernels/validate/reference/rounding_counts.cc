#include "kernels/validate/reference/rounding_counts.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

namespace quantgate {
namespace {

template <class F>
constexpr std::array<float, 256> MakeValues() {
  std::array<float, 256> values = {};
  constexpr int kCodes = 1 << FormatConstants<F>::kBits;
  for (int code = 0; code < 256; ++code) {
    values[code] = DecodeFloat<F>(static_cast<uint8_t>(code % kCodes));
  }
  return values;
}
template <class F>
constexpr std::array<float, 256> kCodeValues = MakeValues<F>();

template <class F>
constexpr CodeFormat MakeFormat(DType dtype, const char* name) {
  return {dtype,
          name,
          [](float value, ElementRounding rounding, Overflow overflow) -> uint8_t {
            return EncodeFloat<F>(value, rounding, overflow);
          },
          kCodeValues<F>.data(),
          FormatConstants<F>::kSignMask,
          FormatConstants<F>::kMaxFinite,
          F::kSpecials != Specials::kNone};
}

constexpr CodeFormat kCodeFormats[] = {
    MakeFormat<E4M3>(DType::kF8E4M3, "f8_e4m3"),   MakeFormat<E5M2>(DType::kF8E5M2, "f8_e5m2"),
    MakeFormat<E2M3>(DType::kF6E2M3, "f6_e2m3"),   MakeFormat<E3M2>(DType::kF6E3M2, "f6_e3m2"),
    MakeFormat<E2M1>(DType::kF4E2M1x2, "f4_e2m1"),
};

/// The values of an FP8 format with one zero and one NaN.
template <int mantissa_bits, int bias>
constexpr std::array<float, 256> MakeFnuzValues() {
  std::array<float, 256> values = {};
  for (int code = 0; code < 256; ++code) {
    const int field = (code & 0x7F) >> mantissa_bits;
    const int mantissa = code & ((1 << mantissa_bits) - 1);
    double value = mantissa + (field > 0 ? 1 << mantissa_bits : 0);
    const int exponent = (field > 0 ? field : 1) - bias - mantissa_bits;
    for (int i = 0; i < -exponent; ++i) value /= 2;
    for (int i = 0; i < exponent; ++i) value *= 2;
    values[code] = static_cast<float>(code < 128 ? value : -value);
  }
  values[0x80] = std::numeric_limits<float>::quiet_NaN();
  return values;
}
template <int mantissa_bits, int bias>
constexpr std::array<float, 256> kFnuzValues = MakeFnuzValues<mantissa_bits, bias>();

template <int mantissa_bits, int bias>
uint8_t EncodeFnuz(float value, ElementRounding rounding, Overflow overflow) {
  constexpr uint8_t kNan = 0x80, kMax = 0x7F;
  const auto& values = kFnuzValues<mantissa_bits, bias>;
  if (std::isnan(value)) return kNan;
  const double magnitude = std::fabs(value);
  const uint8_t sign = std::signbit(value) ? 0x80 : 0;
  const float* const above =
      std::upper_bound(values.data(), values.data() + kMax + 1, static_cast<float>(magnitude));
  const auto lower = static_cast<uint8_t>(above - values.data() - 1);
  if (lower == kMax) {
    // Beyond the largest value lies, by the same distance, what does not fit.
    const double half = (double(values[kMax]) - values[kMax - 1]) / 2;
    const bool overflows = magnitude >= values[kMax] + half;  // A tie goes to the even code.
    return overflows && overflow == Overflow::kNan ? kNan : static_cast<uint8_t>(kMax | sign);
  }
  const double below = magnitude - values[lower], left = values[lower + 1] - magnitude;
  const bool tie_up = rounding == ElementRounding::kNearestAway || lower % 2 == 1;
  const bool up = below > left || (below == left && tie_up);
  const auto code = static_cast<uint8_t>(lower + (up ? 1 : 0));
  return code == 0 ? uint8_t(0) : static_cast<uint8_t>(code | sign);
}

template <int mantissa_bits, int bias>
constexpr CodeFormat MakeFnuz(DType dtype, const char* name) {
  return {dtype,
          name,
          EncodeFnuz<mantissa_bits, bias>,
          kFnuzValues<mantissa_bits, bias>.data(),
          0x80,
          0x7F,
          true,
          true,
          true};
}

constexpr CodeFormat kFnuzFormats[] = {
    MakeFnuz<3, 8>(DType::kF8E4M3, "f8_e4m3fnuz"),
    MakeFnuz<2, 16>(DType::kF8E5M2, "f8_e5m2fnuz"),
};

constexpr CodeFormat kOneZeroE2M1 = {
    DType::kF4E2M1x2,
    "f4_e2m1, zeros positive",
    [](float value, ElementRounding rounding, Overflow overflow) -> uint8_t {
      const uint8_t code = EncodeFloat<E2M1>(value, rounding, overflow);
      return code == FormatConstants<E2M1>::kSignMask ? uint8_t{0} : code;
    },
    kCodeValues<E2M1>.data(),
    FormatConstants<E2M1>::kSignMask,
    FormatConstants<E2M1>::kMaxFinite,
    false,
    false,
    true};

using Expected = std::array<uint8_t, kCodeRoundingCount>;

Expected All(uint8_t code) {
  Expected expected;
  expected.fill(code);
  return expected;
}

uint8_t& At(Expected& expected, CodeRounding rounding) {
  return expected[static_cast<int>(rounding)];
}

/// The code that each rule gives a magnitude between two codes; `nearest` is nearest_even's. Codes
/// are those of magnitudes.
Expected OfNeighbours(uint8_t lower, uint8_t nearest, bool is_tie, bool is_negative) {
  const auto upper = static_cast<uint8_t>(lower + 1);
  Expected expected = All(nearest);
  At(expected, CodeRounding::kTowardZero) = lower;
  At(expected, CodeRounding::kAwayFromZero) = upper;
  if (!is_tie) return expected;
  At(expected, CodeRounding::kNearestAway) = upper;
  At(expected, CodeRounding::kNearestTowardZero) = lower;
  At(expected, CodeRounding::kNearestOdd) = nearest == lower ? upper : lower;
  At(expected, CodeRounding::kNearestUp) = is_negative ? lower : upper;
  At(expected, CodeRounding::kNearestDown) = is_negative ? upper : lower;
  return expected;
}

/// The code that each rule gives a value beyond the largest finite code. A tie there tells only
/// even from away.
Expected OfOverflow(const CodeFormat& format, Overflow overflow, float scaled, uint8_t sign) {
  const auto largest = static_cast<uint8_t>(sign | format.max);
  if (overflow == Overflow::kSaturate) return All(largest);
  Expected expected = All(format.encode(scaled, ElementRounding::kNearestEven, overflow));
  At(expected, CodeRounding::kNearestAway) =
      format.encode(scaled, ElementRounding::kNearestAway, overflow);
  At(expected, CodeRounding::kTowardZero) = largest;
  At(expected, CodeRounding::kAwayFromZero) =
      format.encode(std::copysign(INFINITY, scaled), ElementRounding::kNearestEven, overflow);
  return expected;
}

/// Whether two codes are equal; all NaN codes of a format are.
bool IsSame(const CodeFormat& format, uint8_t a, uint8_t b) {
  return a == b || (format.has_nan && std::isnan(format.values[a]) && std::isnan(format.values[b]));
}

void Keep(FirstMiss& first, int64_t at, uint8_t given, uint8_t expected) {
  if (first.at < 0 || at < first.at) first = {at, given, expected};
}

void CountRules(std::array<RuleCount, kCodeRoundingCount>& rules, const CodeFormat& format,
                const Expected& expected, uint8_t given, int64_t at, int64_t equal) {
  for (int i = 0; i < kCodeRoundingCount; ++i) {
    if (!IsSame(format, expected[i], expected[0])) rules[i].telling += equal;
    if (IsSame(format, expected[i], given)) {
      rules[i].matches += equal;
    } else {
      Keep(rules[i].first, at, given, expected[i]);
    }
  }
}

}  // namespace

std::span<const CodeFormat> AllCodeFormats() { return kCodeFormats; }
std::span<const CodeFormat> FnuzCodeFormats() { return kFnuzFormats; }
const CodeFormat& OneZeroE2M1() { return kOneZeroE2M1; }

std::string_view CodeRoundingName(CodeRounding rounding) {
  constexpr std::string_view kNames[kCodeRoundingCount] = {
      "nearest_even", "nearest_away", "nearest_toward_zero", "nearest_odd",
      "nearest_up",   "nearest_down", "toward_zero",         "away_from_zero"};
  return kNames[static_cast<int>(rounding)];
}

void RoundingCounts::AddEqual(const CodeFormat& format, Overflow overflow, float scaled,
                              uint8_t given, int64_t at, int64_t equal) {
  count += equal;
  const uint8_t sign = std::signbit(scaled) ? format.sign : uint8_t(0);
  if (scaled == 0) {
    zeros += equal;
    const uint8_t expected[kZeroSignCount] = {format.Signed(0, sign), 0,
                                              format.Signed(0, format.sign)};
    for (int i = 0; i < kZeroSignCount; ++i) {
      if (expected[i] != expected[0]) zero_signs[i].telling += equal;
      if (given == expected[i]) {
        zero_signs[i].matches += equal;
      } else {
        Keep(zero_signs[i].first, at, given, expected[i]);
      }
    }
    return;
  }
  const float magnitude = std::fabs(scaled);
  const bool is_beyond = magnitude > format.values[format.max];
  if (std::isnan(scaled) || is_beyond) {
    if (is_beyond) overflowing += equal;
    const Expected expected =
        is_beyond ? OfOverflow(format, overflow, scaled, sign)
                  : All(format.encode(scaled, ElementRounding::kNearestEven, overflow));
    CountRules(rules, format, expected, given, at, equal);
    if (is_beyond) {
      const Expected other = OfOverflow(format, Overflow::kNan, scaled, sign);
      for (int i = 0; i < kCodeRoundingCount; ++i) {
        const bool tells = !format.has_nan || other[i] != (sign | format.max);
        if (tells) rules[i].overflow_telling += equal;
      }
    }
    if (IsSame(format, expected[0], given)) {
      neighbours += equal;
    } else {
      Keep(first_non_neighbour, at, given, expected[0]);
    }
    return;
  }
  const uint8_t nearest =
      format.encode(magnitude, ElementRounding::kNearestEven, Overflow::kSaturate);
  const float value = format.values[nearest];
  if (value == magnitude) {
    const uint8_t code = format.Signed(nearest, sign);
    CountRules(rules, format, All(code), given, at, equal);
    if (given == code) {
      neighbours += equal;
    } else {
      Keep(first_non_neighbour, at, given, code);
    }
    return;
  }
  const auto lower = static_cast<uint8_t>(value > magnitude ? nearest - 1 : nearest);
  const double below = format.values[lower];
  const double fraction = (double(magnitude) - below) / (format.values[lower + 1] - below);
  const bool is_tie = fraction == 0.5;
  between += equal;
  if (is_tie) ties += equal;
  Expected expected = OfNeighbours(lower, nearest, is_tie, sign != 0);
  for (uint8_t& code : expected) code = format.Signed(code, sign);
  CountRules(rules, format, expected, given, at, equal);
  const bool is_lower = given == format.Signed(lower, sign);
  const bool is_upper = given == (sign | (lower + 1));
  if (!is_lower && !is_upper) {
    return Keep(first_non_neighbour, at, given, format.Signed(lower, sign));
  }
  neighbours += equal;
  if (counts_spread) {
    fraction_chance.Add(fraction, is_upper);
    eight_bits.Add(fraction, is_upper);
  }
  for (int i = 0; i < kCodeRoundingCount; ++i) {
    if (expected[i] == given) continue;
    (is_upper ? rules[i].step_up : rules[i].step_down) += equal;
    rules[i].off_tie_max = std::max(rules[i].off_tie_max, std::fabs(fraction - 0.5));
  }
}

ZeroSign RoundingCounts::BestZeroSign() const {
  ZeroSign best = ZeroSign::kKept;
  for (const ZeroSign sign : {ZeroSign::kPositive, ZeroSign::kNegative}) {
    if (of(sign).matches > of(best).matches) best = sign;
  }
  return best;
}

RoundingTally::RoundingTally(const CodeFormat& format, Overflow overflow, bool counts_spread)
    : format_(format), overflow_(overflow) {
  counts_.counts_spread = counts_spread;
  const auto bits_of = [](float value) { return std::bit_cast<uint32_t>(value); };
  least_ = bits_of(std::ldexp(format.values[1], -kOctavesBelow)) >> kCellShift << kCellShift;
  range_ = bits_of(format.max_value()) - least_;
  const uint32_t cells = (range_ >> kCellShift) + 1;
  neighbours_.resize(cells << 2);
  alike_.resize(cells << 3);
  others_.resize(cells << 2);
  for (uint32_t cell = 0; cell < cells << 2; ++cell) {
    const uint32_t beyond = cell >> 1 & 1;
    const auto magnitude = std::bit_cast<float>((least_ + (cell >> 2 << kCellShift)) | beyond);
    const uint8_t nearest =
        format.encode(magnitude, ElementRounding::kNearestEven, Overflow::kSaturate);
    const float value = format.values[nearest];
    const int lower = value > magnitude ? nearest - 1 : nearest;
    const int upper = value == magnitude ? lower : lower + 1;
    const uint8_t sign = (cell & 1) != 0 ? format.sign : uint8_t(0);
    neighbours_[cell] = {format.Signed(static_cast<uint8_t>(lower), sign),
                         format.Signed(static_cast<uint8_t>(upper), sign)};
  }
}

void RoundingTally::AddToSpread(float magnitude, const Neighbours& neighbours, uint8_t given) {
  const double below = std::fabs(format_.values[neighbours.lower]);
  const double above = std::fabs(format_.values[neighbours.upper]);
  const double fraction = (double(magnitude) - below) / (above - below);
  counts_.fraction_chance.Add(fraction, given == neighbours.upper);
  counts_.eight_bits.Add(fraction, given == neighbours.upper);
}

RoundingCounts RoundingTally::Take() {
  const bool counts_spread = std::exchange(counts_.counts_spread, false);  // It has them already.
  for (size_t i = 0; i < alike_.size(); ++i) {
    const Alike& alike = alike_[i];
    if (alike.count == 0) continue;
    const uint32_t cell = static_cast<uint32_t>(i) >> 1;
    const uint8_t given = i % 2 == 0 ? neighbours_[cell].lower : neighbours_[cell].upper;
    const uint32_t sign = cell << 31;
    // The farthest from the tie is one of the two; which of them the others are like is no matter.
    counts_.AddEqual(format_, overflow_, std::bit_cast<float>(alike.least | sign), given,
                     alike.first, 1);
    if (alike.count == 1) continue;
    counts_.AddEqual(format_, overflow_, std::bit_cast<float>(alike.most | sign), given,
                     alike.first, alike.count - 1);
  }
  for (size_t cell = 0; cell < others_.size(); ++cell) {
    const Other& other = others_[cell];
    if (other.count == 0) continue;
    const uint32_t sign = static_cast<uint32_t>(cell) << 31;
    counts_.AddEqual(format_, overflow_, std::bit_cast<float>(other.magnitude | sign), other.given,
                     other.first, other.count);
  }
  alike_.clear();
  others_.clear();
  counts_.counts_spread = counts_spread;
  return std::move(counts_);
}

}  // namespace quantgate
