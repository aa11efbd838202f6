// How codes lie beside the values that they stand for: which rules of rounding give them, how many
// values tell those apart, and how far off the codes are that a rule does not give.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/numerics/cast.h"
#include "kernels/tensor/dtype.h"
#include "kernels/validate/explain/stochastic_spread.h"

namespace quantgate {

/// One element format by functions and values.
struct CodeFormat {
  DType dtype;  ///< As stored: kF4E2M1x2 for packed FP4.
  const char* name;
  uint8_t (*encode)(float value, ElementRounding rounding, Overflow overflow);
  const float* values;  ///< Of the 256 codes; those beyond the format's width repeat.
  uint8_t sign;         ///< The sign bit.
  uint8_t max;          ///< The code of the largest finite magnitude.
  bool has_nan;
};

std::span<const CodeFormat> AllCodeFormats();

/// Rules that make one code of a value. The first six differ at exact ties alone.
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
/// Rounds to nearest, whatever it does at ties.
constexpr bool IsNearest(CodeRounding rounding) { return rounding < CodeRounding::kTowardZero; }

/// What becomes of the sign of a zero.
enum class ZeroSign { kKept, kPositive, kNegative };
inline constexpr int kZeroSignCount = 3;

/// The first code that a rule does not give.
struct FirstMiss {
  int64_t at = -1;  ///< None.
  uint8_t given = 0, expected = 0;
};

/// Codes that one rule gives, of values that are not zeros.
struct RuleCount {
  int64_t matches = 0;
  int64_t telling = 0;  ///< Values of which nearest_even makes another code.
  /// Values beyond the largest code of which saturation and overflow make different codes: one that
  /// is rounded to the largest code does not tell them apart. All, where the format has no other.
  int64_t overflow_telling = 0;
  /// Codes that it does not give, the value's other neighbour: the larger, the smaller magnitude.
  int64_t step_up = 0, step_down = 0;
  double off_tie_max = 0;  ///< Of these: how far from a tie, as a part of the codes' distance.
  FirstMiss first;
};

/// Codes of zeros by what becomes of the sign.
struct ZeroCount {
  int64_t matches = 0;
  int64_t telling = 0;  ///< Zeros of which kKept makes another code.
  FirstMiss first;
};

/// Of all values of a tensor under one way to scale them. Not thread-safe.
struct RoundingCounts {
  int64_t count = 0;
  int64_t zeros = 0;
  int64_t between = 0;      ///< Values between two codes, on which alone a rule of rounding shows.
  int64_t ties = 0;         ///< Of these, exactly halfway.
  int64_t overflowing = 0;  ///< Values beyond the largest finite code.
  int64_t neighbours = 0;   ///< Codes that are exact, or one of the two beside their value.
  std::array<RuleCount, kCodeRoundingCount> rules;
  std::array<ZeroCount, kZeroSignCount> zero_signs;
  FirstMiss first_stranger;  ///< The first code that is no neighbour.
  StochasticSpread fraction_chance{StochasticChance::kFraction};
  StochasticSpread eight_bits{StochasticChance::kEightBits};

  /// `given` is the code of the scaled value, `at` where it stands.
  void Add(const CodeFormat& format, Overflow overflow, float scaled, uint8_t given, int64_t at);
  const RuleCount& of(CodeRounding rounding) const { return rules[static_cast<int>(rounding)]; }
  const ZeroCount& of(ZeroSign sign) const { return zero_signs[static_cast<int>(sign)]; }
  /// The one that gives most zeros; kKept among equals.
  ZeroSign BestZeroSign() const;
};

}  // namespace quantgate
