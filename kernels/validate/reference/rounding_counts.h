// Comparing given codes with the values that they were rounded from: which rounding rules give the
// codes, how many values tell the rules apart, and how far off other codes are.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/numerics/cast.h"
#include "kernels/tensor/dtype.h"
#include "kernels/validate/explain/stochastic_spread.h"

namespace quantgate {

/// One element format: its cast, and the values of its codes.
struct CodeFormat {
  DType dtype;  ///< The dtype in which codes are stored: kF4E2M1x2 for packed FP4.
  const char* name;
  uint8_t (*encode)(float value, ElementRounding rounding, Overflow overflow);
  const float* values;  ///< The values of 256 codes; codes beyond the format's width repeat.
  uint8_t sign;         ///< The sign bit.
  uint8_t max;          ///< The code of the largest finite magnitude.
  bool has_nan;
  /// The zero has no sign and the byte 0x80 is the one NaN, as in AMD's FP8 of gfx942. No DType is
  /// such a format; `dtype` is that of the format without FNUZ.
  bool is_fnuz = false;

  float max_value() const { return values[max]; }
  /// The code of a magnitude's code with this sign bit (0: none).
  uint8_t Signed(uint8_t magnitude, uint8_t sign_bit) const {
    return is_fnuz && magnitude == 0 ? uint8_t(0) : static_cast<uint8_t>(magnitude | sign_bit);
  }
};

/// The formats that tensors have.
std::span<const CodeFormat> AllCodeFormats();
/// E4M3FNUZ (bias 8, largest 240) and E5M2FNUZ (bias 16, largest 57344).
std::span<const CodeFormat> FnuzCodeFormats();

/// Deterministic rounding rules. The first six differ only at exact ties.
enum class CodeRounding {
  kNearestEven,
  kNearestAway,
  kNearestTowardZero,
  kNearestOdd,
  kNearestUp,    ///< Ties toward +infinity.
  kNearestDown,  ///< Ties toward -infinity.
  kTowardZero,
  kAwayFromZero,
};
inline constexpr int kCodeRoundingCount = 8;
/// "nearest_even", "nearest_toward_zero", "away_from_zero".
std::string_view CodeRoundingName(CodeRounding rounding);
/// Whether a rule rounds to nearest, whatever it does at ties.
constexpr bool IsNearest(CodeRounding rounding) { return rounding < CodeRounding::kTowardZero; }

/// What a cast does to the sign of a zero.
enum class ZeroSign { kKept, kPositive, kNegative };
inline constexpr int kZeroSignCount = 3;

/// The first code that a rule does not give.
struct FirstMiss {
  int64_t at = -1;  ///< Index of the code; -1: the rule gives all codes.
  uint8_t given = 0, expected = 0;
};

/// How one rule compares with the given codes of values that are not zeros.
struct RuleCount {
  int64_t matches = 0;  ///< Codes that the rule gives.
  int64_t telling = 0;  ///< Values for which nearest_even gives another code than this rule.
  /// Values beyond the largest code for which saturation and overflow give different codes. A value
  /// that is rounded to the largest code does not tell them apart. All values beyond the largest
  /// code, if the format has no NaN.
  int64_t overflow_telling = 0;
  /// Codes that the rule does not give but that are the value's other neighbour, of larger and of
  /// smaller magnitude.
  int64_t step_up = 0, step_down = 0;
  double off_tie_max = 0;  ///< The farthest of these from a tie, in units of the codes' distance.
  FirstMiss first;
};

/// How one treatment of signs compares with the given codes of zeros.
struct ZeroCount {
  int64_t matches = 0;
  int64_t telling = 0;  ///< Zeros for which kKept gives another code than this treatment.
  FirstMiss first;
};

/// Counts over all values of a tensor under one way to scale them. Not thread-safe.
struct RoundingCounts {
  bool counts_spread = true;  ///< Whether the two StochasticSpread are filled.
  int64_t count = 0;
  int64_t zeros = 0;
  int64_t between = 0;      ///< Values between two codes; only these show the rounding rule.
  int64_t ties = 0;         ///< Values exactly halfway between two codes.
  int64_t overflowing = 0;  ///< Values beyond the largest finite code.
  int64_t neighbours = 0;   ///< Codes that are exact or one of the two neighbours of their value.
  std::array<RuleCount, kCodeRoundingCount> rules;
  std::array<ZeroCount, kZeroSignCount> zero_signs;
  FirstMiss first_non_neighbour;  ///< The first code that is no neighbour of its value.
  StochasticSpread fraction_chance{StochasticChance::kFraction};
  StochasticSpread eight_bits{StochasticChance::kEightBits};

  /// Adds one value: `given` is the code of the scaled value, `at` its index.
  void Add(const CodeFormat& format, Overflow overflow, float scaled, uint8_t given, int64_t at);
  const RuleCount& of(CodeRounding rounding) const { return rules[static_cast<int>(rounding)]; }
  const ZeroCount& of(ZeroSign sign) const { return zero_signs[static_cast<int>(sign)]; }
  /// The treatment that gives most zeros; kKept among equals.
  ZeroSign BestZeroSign() const;
};

}  // namespace quantgate
