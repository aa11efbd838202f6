#include "kernels/validate/stochastic_spread.h"

#include <algorithm>
#include <cmath>

namespace quantgate {
namespace {

// Each test alone rejects with a chance of kSpreadLevel / 4 = 2.5e-4.
constexpr double kTestLevel = kSpreadLevel / 4;
/// The standard normal exceeds it, in magnitude, with that chance.
constexpr double kNormalCritical = 3.66226;
/// Chi-square of 1 to 16 degrees of freedom exceeds them with that chance.
constexpr double kChiSquareCritical[] = {13.412, 16.588, 19.188, 21.517, 23.681, 25.730,
                                         27.692, 29.587, 31.427, 33.221, 34.977, 36.698,
                                         38.390, 40.056, 41.699, 43.321};
/// A sum of less is not near enough to normal: bins are joined until they have it.
constexpr double kBinVarianceMin = 9;

}  // namespace

void StochasticSpread::Add(double fraction, bool up) {
  const double p =
      chance_ == StochasticChance::kFraction ? fraction : std::floor(fraction * 256) / 256;
  const double excess = (up ? 1 : 0) - p, variance = p * (1 - p), lever = p - 0.5;
  const int bin = std::min(static_cast<int>(p * kBins), kBins - 1);
  ++count_;
  excess_[bin] += excess;
  variance_[bin] += variance;
  slope_ += excess * lever;
  slope_variance_ += variance * lever * lever;
  rarest_ = std::min(rarest_, up ? p : 1 - p);
}

SpreadResult StochasticSpread::Result() const {
  SpreadResult result;
  result.count = count_;
  double excess = 0, joined_excess = 0, joined_variance = 0;
  for (int bin = 0; bin < kBins; ++bin) {
    excess += excess_[bin];
    result.variance += variance_[bin];
    joined_excess += excess_[bin];
    joined_variance += variance_[bin];
    if (joined_variance < kBinVarianceMin) continue;
    result.chi_square += joined_excess * joined_excess / joined_variance;
    ++result.bins;
    joined_excess = joined_variance = 0;
  }
  // What is left in the last bins stands in bias and slope alone.
  result.rarest = rarest_ * static_cast<double>(count_);
  result.is_enough = count_ >= kSpreadCountMin && result.variance >= kSpreadVarianceMin &&
                     slope_variance_ >= kSlopeVarianceMin;
  if (!result.is_enough) return result;
  result.bias = excess / std::sqrt(result.variance);
  result.slope = slope_ / std::sqrt(slope_variance_);
  result.passes = std::fabs(result.bias) <= kNormalCritical &&
                  std::fabs(result.slope) <= kNormalCritical &&
                  result.chi_square <= kChiSquareCritical[result.bins - 1] &&
                  // By the union bound, at most kTestLevel for the whole.
                  result.rarest >= kTestLevel;
  return result;
}

}  // namespace quantgate
