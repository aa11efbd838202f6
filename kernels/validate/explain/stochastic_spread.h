// Whether codes off the nearest are spread as stochastic rounding's probabilities say
// (docs/quantizers.md section 1.6).
#pragma once

#include <array>
#include <cstdint>
#include <functional>

namespace quantgate {

/// What a value's place between two codes makes of the upper one.
enum class StochasticChance {
  kFraction,   ///< The fraction f of the distance itself.
  kEightBits,  ///< floor(256 f) / 256: f plus a random byte / 256 reaches 1.
};

/// The statistics of one hypothesis, and what is made of them. Those that are standard normal have
/// the sign of what happened less what was expected.
struct SpreadResult {
  int64_t count = 0;      ///< Values between two codes.
  double variance = 0;    ///< Sum of p (1 - p): what the counts below rest on.
  double bias = 0;        ///< Standard normal: sum of (u - p).
  double slope = 0;       ///< Standard normal: sum of (u - p)(p - 1/2); nearest is far above 0.
  double nearness = 0;    ///< Standard normal: the same with the place from a tie, far below 0.
  double ripple = 0;      ///< The farthest from 0 of standard normals of finer places.
  int ripple_parts = 0;   ///< Of how many equal parts of the distance; 0: of none.
  double chi_square = 0;  ///< Of `bins` sums over values of about one p.
  int bins = 0;
  double fine_chi_square = 0;  ///< Of up to four times as many.
  int fine_bins = 0;
  double rarest = 1;       ///< The smallest chance of what happened to a value, times their number.
  bool is_enough = false;  ///< At least kSpreadCountMin values and the variances below.
  bool passes = false;     ///< is_enough, and none of the seven tests rejects.
};

/// The chance that rounding which is stochastic does not pass: each of the seven tests has a
/// seventh.
inline constexpr double kSpreadLevel = 1e-3;
inline constexpr int64_t kSpreadCountMin = 512;
inline constexpr double kSpreadVarianceMin = 64;
/// Of the slope: where all values are ties, any coin does what stochastic rounding does. Finer
/// places with less are left out.
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
  static constexpr int kCells = 1024;  ///< Of p, of equal width.
  struct Sums {
    double excess = 0, variance = 0;  ///< Of u - p and of p (1 - p).
  };

  /// The sum of (u - p) weighted by a cell's p, over its standard deviation, and its variance.
  struct Weighted {
    double value = 0, variance = 0;
  };
  Weighted WeightedBy(const std::function<double(double p)>& weight) const;
  double ChiSquare(int bin_count, int& bins) const;

  StochasticChance chance_;
  int64_t count_ = 0;
  std::array<Sums, kCells> cells_ = {};
  double rarest_ = 1;
};

}  // namespace quantgate
