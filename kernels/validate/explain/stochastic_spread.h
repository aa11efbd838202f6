// A statistical test whether codes are distributed as stochastic rounding's probabilities say
// (docs/quantizers.md section 1.6).
#pragma once

#include <array>
#include <cstdint>
#include <functional>

namespace quantgate {

/// The chance of rounding up, as a function of a value's place between two codes.
enum class StochasticChance {
  kFraction,   ///< The fraction f of the codes' distance.
  kEightBits,  ///< floor(256 f) / 256: f plus a random byte / 256 reaches 1.
};

/// The statistics of one hypothesis, and the verdict. p is the expected chance of the upper code; u
/// is 1 for the upper code, else 0. Standard normal statistics have the sign of observed minus
/// expected.
struct SpreadResult {
  int64_t count = 0;      ///< Values between two codes.
  double variance = 0;    ///< Sum of p (1 - p), on which the statistics below rest.
  double bias = 0;        ///< Standard normal: sum of (u - p).
  double slope = 0;       ///< Standard normal: sum of (u - p)(p - 1/2); nearest is far above 0.
  double nearness = 0;    ///< Standard normal: the same with the place from a tie, far below 0.
  double ripple = 0;      ///< The standard normal, farthest from 0, of finer places.
  int ripple_parts = 0;   ///< The number of equal parts in that ripple; 0 if none was measured.
  double chi_square = 0;  ///< Over `bins` sums of values with about the same p.
  int bins = 0;
  double fine_chi_square = 0;  ///< Over up to four times as many bins.
  int fine_bins = 0;
  double rarest = 1;       ///< The smallest chance of any value's outcome, times the count.
  bool is_enough = false;  ///< At least kSpreadCountMin values and the variances below.
  bool passes = false;     ///< is_enough, and none of the seven tests rejects.
};

/// The chance that truly stochastic rounding does not pass. Each of the seven tests has a seventh.
inline constexpr double kSpreadLevel = 1e-3;
inline constexpr int64_t kSpreadCountMin = 512;
inline constexpr double kSpreadVarianceMin = 64;
/// The least variance of the slope: if all values are ties, any coin toss looks like stochastic
/// rounding. Finer places with less variance are left out.
inline constexpr double kSlopeVarianceMin = 4;

/// Collects the values of one tensor that lie between two codes. Not thread-safe.
class StochasticSpread {
 public:
  explicit StochasticSpread(StochasticChance chance) : chance_(chance) {}

  /// `fraction` in (0, 1): the place of the value's magnitude between the lower and the upper code.
  /// `up`: its code is the upper one.
  void Add(double fraction, bool up);
  SpreadResult Result() const;

 private:
  static constexpr int kCells = 1024;  ///< Cells of p, of equal width.
  struct Sums {
    double excess = 0, variance = 0;  ///< Sums of u - p and of p (1 - p).
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
