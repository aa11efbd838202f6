// Comparing given codes with the values that they were rounded from: which rounding rules give the
// codes, how many values tell the rules apart, and how far off other codes are.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

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
  bool has_one_zero = false;  ///< The code of every zero is 0, as of FNUZ.

  float max_value() const { return values[max]; }
  /// The code of a magnitude's code with this sign bit (0: none).
  uint8_t Signed(uint8_t magnitude, uint8_t sign_bit) const {
    return has_one_zero && magnitude == 0 ? uint8_t(0) : static_cast<uint8_t>(magnitude | sign_bit);
  }
};

/// The formats that tensors have.
std::span<const CodeFormat> AllCodeFormats();
/// E4M3FNUZ (bias 8, largest 240) and E5M2FNUZ (bias 16, largest 57344).
std::span<const CodeFormat> FnuzCodeFormats();
/// E2M1 as ggml's MXFP4 writes it, where what is zero or rounds to it has the code 0.
const CodeFormat& OneZeroE2M1();

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
  void Add(const CodeFormat& format, Overflow overflow, float scaled, uint8_t given, int64_t at) {
    AddEqual(format, overflow, scaled, given, at, 1);
  }
  /// Adds `equal` values alike, the first of them at index `at`; to the spread only one of them.
  void AddEqual(const CodeFormat& format, Overflow overflow, float scaled, uint8_t given,
                int64_t at, int64_t equal);
  const RuleCount& of(CodeRounding rounding) const { return rules[static_cast<int>(rounding)]; }
  const ZeroCount& of(ZeroSign sign) const { return zero_signs[static_cast<int>(sign)]; }
  /// The treatment that gives most zeros; kKept among equals.
  ZeroSign BestZeroSign() const;
};

/// Fills RoundingCounts of the values of a large tensor: what RoundingCounts::Add would count one
/// by one. Values between the same two codes and on the same side of their tie differ only in how
/// far from the tie they are, so they are tallied, with the least and the largest of them, and
/// counted at the end; to the spread each is added at once. So are values whose code is neither of
/// the two, of which only the first one's is told. Indices ascend. Not thread-safe.
class RoundingTally {
 public:
  /// Keeps the reference. `counts_spread`: RoundingCounts::counts_spread.
  RoundingTally(const CodeFormat& format, Overflow overflow, bool counts_spread);

  void Add(float scaled, uint8_t given, int64_t at) {
    const auto bits = std::bit_cast<uint32_t>(scaled);
    // Below `least_` it wraps around.
    const uint32_t magnitude = bits & 0x7FFFFFFF, place = magnitude - least_;
    if (place <= range_) {
      const uint32_t cell = place >> kCellShift << 2 |
                            uint32_t((magnitude & ((1u << kCellShift) - 1)) != 0) << 1 | bits >> 31;
      const Neighbours& neighbours = neighbours_[cell];
      if (given == neighbours.lower || given == neighbours.upper) {
        Alike& alike = alike_[cell << 1 | uint32_t(given != neighbours.lower)];
        if (alike.count++ == 0) alike.first = at;
        alike.least = std::min(alike.least, magnitude);
        alike.most = std::max(alike.most, magnitude);
        if (counts_.counts_spread && neighbours.lower != neighbours.upper) {
          AddToSpread(std::bit_cast<float>(magnitude), neighbours, given);
        }
        return;
      }
      Other& other = others_[cell];
      if (other.count++ == 0) {
        other.first = at;
        other.magnitude = magnitude;
        other.given = given;
      }
      return;
    }
    counts_.Add(format_, overflow_, scaled, given, at);
  }
  /// What was added. Afterwards nothing more may be.
  RoundingCounts Take();

 private:
  /// The codes of formats, and what lies halfway between them, have at most 4 bits after the
  /// leading one: bits below these only tell whether a value is beyond that boundary.
  static constexpr int kCellShift = 23 - 4;
  /// Values of fewer octaves than these below the least code are added one by one, as zeros are.
  static constexpr int kOctavesBelow = 8;

  /// The codes around the values of a cell; the same where they are a code's.
  struct Neighbours {
    uint8_t lower, upper;
  };
  /// The values of a cell that have the same code. Magnitudes are the bits of fp32.
  struct Alike {
    int64_t count = 0, first = 0;
    uint32_t least = 0xFFFFFFFF, most = 0;
  };

  /// The values of a cell that have other codes than the two around them.
  struct Other {
    int64_t count = 0, first = 0;
    uint32_t magnitude = 0;  ///< Of the first.
    uint8_t given = 0;       ///< The first one's code.
  };

  void AddToSpread(float magnitude, const Neighbours& neighbours, uint8_t given);

  const CodeFormat& format_;
  const Overflow overflow_;
  uint32_t least_ = 0, range_ = 0;  ///< Bits of the least magnitude of cells, and beyond it.
  std::vector<Neighbours> neighbours_;
  std::vector<Alike> alike_;
  std::vector<Other> others_;
  RoundingCounts counts_;
};

}  // namespace quantgate
