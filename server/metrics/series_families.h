// How the metrics of this server declare families of series, and the labels that several have.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/quantize/recipe/recipe.h"
#include "server/metrics/series_grid.h"

namespace quantgate {

using CounterGrid = SeriesGrid<prometheus::Counter>;
using GaugeGrid = SeriesGrid<prometheus::Gauge>;
using HistogramGrid = SeriesGrid<prometheus::Histogram>;

inline prometheus::Family<prometheus::Counter>& CounterFamily(prometheus::Registry& registry,
                                                              const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}
inline prometheus::Family<prometheus::Gauge>& GaugeFamily(prometheus::Registry& registry,
                                                          const char* name, const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
}
inline prometheus::Family<prometheus::Histogram>& HistogramFamily(prometheus::Registry& registry,
                                                                  const char* name,
                                                                  const char* help) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
}

using Buckets = prometheus::Histogram::BucketBoundaries;

/// `value` as a histogram counts it: values beyond twice the last bucket, and those that are not
/// finite, count as that, so that none of them spoils the sum.
inline double Bounded(double value, const Buckets& buckets) {
  const double beyond = 2 * buckets.back();
  return std::isfinite(value) ? std::min(value, beyond) : beyond;
}

/// Sets a counter to a total that is counted elsewhere. A smaller value leaves it as it is.
inline void RaiseTo(prometheus::Counter& counter, double value) {
  counter.Increment(std::max(0.0, value - counter.Value()));
}
inline void RaiseTo(prometheus::Counter& counter, int64_t value) {
  RaiseTo(counter, static_cast<double>(value));
}

/// The label `name` over the base names of all recipes and `others`, of which the last stands for
/// names that are not known.
inline LabelAxis RecipeAxis(const char* name, const std::vector<std::string>& others) {
  LabelAxis axis{name, {}};
  for (const RecipeDescription& recipe : AllRecipes()) axis.values.push_back(recipe.name);
  axis.values.insert(axis.values.end(), others.begin(), others.end());
  return axis;
}
/// The label "mode": the backward overrides.
inline LabelAxis ModeAxis() {
  LabelAxis axis{"mode", {}};
  for (const auto mode : {BackwardOverride::kNone, BackwardOverride::kHighPrecision,
                          BackwardOverride::kDequantized}) {
    axis.values.emplace_back(BackwardOverrideName(mode));
  }
  return axis;
}

}  // namespace quantgate
