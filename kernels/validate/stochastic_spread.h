// Whether codes off the nearest are spread as stochastic rounding's probabilities say
// (docs/quantizers.md section 1.6).
#pragma once

#include <array>
#include <cstdint>

namespace quantgate {

/// What a value's place between two codes makes of the upper one.
enum class StochasticChance {
  kFraction,   ///< The fraction f of the distance itself.
  kEightBits,  ///< floor(256 f) / 256: f plus a random byte / 256 reaches 1.
};

/// The statistics of one hypothesis, and what is made of them.
struct SpreadResult {
  int64_t count = 0;      ///< Values between two codes.
  double variance = 0;    ///< Sum of p (1 - p): what the counts below rest on.
  double bias = 0;        ///< Standard normal: sum of (u - p).
  double slope = 0;       ///< Standard normal: sum of (u - p)(p - 1/2); nearest is far above 0.
  double chi_square = 0;  ///< Of `bins` sums over values of about one p.
  int bins = 0;
  double rarest = 1;       ///< The smallest chance of what happened to a value, times their number.
  bool is_enough = false;  ///< At least kSpreadCountMin values and the variances below.
  bool passes = false;     ///< is_enough, and none of the four tests rejects.
};

/// The chance that rounding which is stochastic does not pass: each of the four tests has a fourth.
inline constexpr double kSpreadLevel = 1e-3;
inline constexpr int64_t kSpreadCountMin = 512;
inline constexpr double kSpreadVarianceMin = 64;
/// Of the slope: where all values are ties, any coin does what stochastic rounding does.
inline constexpr double kSlopeVarianceMin = 4;

/// Sums over the values of one tensor, each between two codes. Not thread-safe.
class StochasticSpread {
 public:
  explicit StochasticSpread(StochasticChance chance) : chance_(chance) {}

  /// `fraction` in (0, 1): how far the value's magnitude lies from the lower code to the upper;
  /// `up`: its code is the upper.
  void Add(double fraction, bool up);
  SpreadResult Result() const;

 private:
  static constexpr int kBins = 16;  ///< Of p, of equal width.

  StochasticChance chance_;
  int64_t count_ = 0;
  std::array<double, kBins> excess_ = {}, variance_ = {};  ///< Sums of u - p and of p (1 - p).
  double slope_ = 0, slope_variance_ = 0;
  double rarest_ = 1;
};

}  // namespace quantgate
