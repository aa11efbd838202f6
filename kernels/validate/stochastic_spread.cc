#include "kernels/validate/stochastic_spread.h"

#include <algorithm>
#include <cmath>

namespace quantgate {
namespace {

/// Each test alone rejects with at most that chance.
constexpr double kTestLevel = kSpreadLevel / 7;
/// A sum of less is not near enough to normal: bins are joined until they have it.
constexpr double kBinVarianceMin = 9;
constexpr int kBins = 16, kFineBins = 64;
/// Ripples have 2, 4, 8 ... 256 parts, from their ends and from their middles.
constexpr int kRipplePartsMax = 256, kRippleCount = 16;

double NormalExceeds(double magnitude) { return std::erfc(std::fabs(magnitude) / std::sqrt(2.0)); }

/// A finite sum: of two more degrees the chance is (value / 2)^(degrees / 2) e^(-value / 2) /
/// gamma(degrees / 2 + 1) more.
double ChiSquareExceeds(double value, int degrees) {
  const double half = value / 2;
  double at = degrees % 2 == 0 ? 1 : 0.5;  // Half of the degrees so far.
  double chance = degrees % 2 == 0 ? std::exp(-half) : std::erfc(std::sqrt(half));
  double more = std::pow(half, at) * std::exp(-half) / std::tgamma(at + 1);
  while (2 * at < degrees) {
    chance += more;
    at += 1;
    more *= half / at;
  }
  return chance;
}

/// From -1/2 to 1/2 along each of the parts of [0, 1), the first of which begins at `from`.
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
  return chi_square;  // What is left in the last bins stands in the other tests alone.
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
  result.passes = NormalExceeds(result.bias) >= kTestLevel &&
                  NormalExceeds(result.slope) >= kTestLevel &&
                  NormalExceeds(result.nearness) >= kTestLevel &&
                  NormalExceeds(result.ripple) >= kTestLevel / kRippleCount &&
                  ChiSquareExceeds(result.chi_square, result.bins) >= kTestLevel &&
                  ChiSquareExceeds(result.fine_chi_square, result.fine_bins) >= kTestLevel &&
                  // By the union bound, at most kTestLevel for the whole.
                  result.rarest >= kTestLevel;
  return result;
}

}  // namespace quantgate
