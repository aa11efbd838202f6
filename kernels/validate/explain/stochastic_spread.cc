#include "kernels/validate/explain/stochastic_spread.h"

#include <algorithm>
#include <cmath>

namespace quantgate {
namespace {

// Each test alone rejects with a chance of kSpreadLevel / 7 = 1.43e-4.
constexpr double kTestLevel = kSpreadLevel / 7;
/// A standard normal exceeds kNormalCritical in magnitude with the chance kTestLevel, and
/// kRippleCritical with a sixteenth of it.
constexpr double kNormalCritical = 3.80317, kRippleCritical = 4.44162;
/// By degrees of freedom, 1 to 64: what chi-square exceeds with the chance kTestLevel.
constexpr double kChiSquareCritical[] = {
    14.465,  17.708,  20.362,  22.738,  24.944,  27.032,  29.031,  30.960,  32.832,  34.657,
    36.442,  38.192,  39.912,  41.604,  43.272,  44.919,  46.545,  48.154,  49.746,  51.323,
    52.885,  54.435,  55.972,  57.497,  59.012,  60.517,  62.012,  63.499,  64.976,  66.446,
    67.908,  69.362,  70.810,  72.251,  73.685,  75.113,  76.536,  77.953,  79.364,  80.770,
    82.171,  83.568,  84.960,  86.347,  87.730,  89.108,  90.483,  91.853,  93.220,  94.583,
    95.943,  97.299,  98.652,  100.001, 101.347, 102.690, 104.030, 105.367, 106.701, 108.033,
    109.361, 110.687, 112.011, 113.332};
/// The least variance of a bin. A sum with less is not near enough to normal, so bins are joined
/// until they have it.
constexpr double kBinVarianceMin = 9;
constexpr int kBins = 16, kFineBins = 64;
/// Ripples have 2, 4, 8 ... 256 parts, from their ends and from their middles: 16 of them.
constexpr int kRipplePartsMax = 256;

/// The place of p within its part, from -1/2 to 1/2. [0, 1) has `parts` equal parts, of which the
/// first begins at `from`, in units of a part.
double PlaceInPart(double p, int parts, double from) {
  const double place = parts * p - from + 1;  // At least 0, so that a cast takes its floor.
  return place - static_cast<int>(place) - 0.5;
}

}  // namespace

void StochasticSpread::Add(double fraction, bool up) {
  const double p =
      chance_ == StochasticChance::kFraction ? fraction : std::floor(fraction * 256) / 256;
  Sums& cell = cells_[std::min(static_cast<int>(p * kCells), kCells - 1)];
  ++count_;
  cell.excess += (up ? 1 : 0) - p;
  cell.variance += p * (1 - p);
  rarest_ = std::min(rarest_, up ? p : 1 - p);
}

StochasticSpread::Weighted StochasticSpread::WeightedBy(
    const std::function<double(double p)>& weight) const {
  double sum = 0;
  Weighted weighted;
  for (int i = 0; i < kCells; ++i) {
    const double w = weight((i + 0.5) / kCells);
    sum += w * cells_[i].excess;
    weighted.variance += w * w * cells_[i].variance;
  }
  if (weighted.variance > 0) weighted.value = sum / std::sqrt(weighted.variance);
  return weighted;
}

double StochasticSpread::ChiSquare(int bin_count, int& bins) const {
  double chi_square = 0;
  Sums joined;
  for (int i = 0; i < kCells; ++i) {
    joined.excess += cells_[i].excess;
    joined.variance += cells_[i].variance;
    const bool is_end = (i + 1) % (kCells / bin_count) == 0;
    if (!is_end || joined.variance < kBinVarianceMin) continue;
    chi_square += joined.excess * joined.excess / joined.variance;
    ++bins;
    joined = {};
  }
  return chi_square;  // A bin that is not full at the end is left to the other tests.
}

SpreadResult StochasticSpread::Result() const {
  SpreadResult result;
  result.count = count_;
  const Weighted all = WeightedBy([](double) { return 1.0; });
  const Weighted slope = WeightedBy([](double p) { return p - 0.5; });
  result.variance = all.variance;
  result.chi_square = ChiSquare(kBins, result.bins);
  result.fine_chi_square = ChiSquare(kFineBins, result.fine_bins);
  result.rarest = rarest_ * static_cast<double>(count_);
  result.is_enough = count_ >= kSpreadCountMin && result.variance >= kSpreadVarianceMin &&
                     slope.variance >= kSlopeVarianceMin;
  if (!result.is_enough) return result;
  result.bias = all.value;
  result.slope = slope.value;
  const auto place = [&](int parts, double from) {
    const Weighted weighted = WeightedBy([&](double p) { return PlaceInPart(p, parts, from); });
    return weighted.variance >= kSlopeVarianceMin ? weighted.value : 0;
  };
  result.nearness = place(1, 0.5);
  for (int parts = 2; parts <= kRipplePartsMax; parts *= 2) {
    for (const double from : {0.0, 0.5}) {
      const double ripple = place(parts, from);
      if (std::fabs(ripple) <= std::fabs(result.ripple)) continue;
      result.ripple = ripple;
      result.ripple_parts = parts;
    }
  }
  result.passes = std::fabs(result.bias) <= kNormalCritical &&
                  std::fabs(result.slope) <= kNormalCritical &&
                  std::fabs(result.nearness) <= kNormalCritical &&
                  std::fabs(result.ripple) <= kRippleCritical &&
                  result.chi_square <= kChiSquareCritical[result.bins - 1] &&
                  result.fine_chi_square <= kChiSquareCritical[result.fine_bins - 1] &&
                  // By the union bound, at most kTestLevel for the whole.
                  result.rarest >= kTestLevel;
  return result;
}

}  // namespace quantgate
