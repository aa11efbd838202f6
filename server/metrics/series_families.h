// Families of series as the metrics of this server declare them.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

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

// What is not finite counts beyond the last bucket, without spoiling the sum.
inline double Bounded(double value, const Buckets& buckets) {
  const double beyond = 2 * buckets.back();
  return std::isfinite(value) ? std::min(value, beyond) : beyond;
}

/// For a counter that somebody else counts.
inline void RaiseTo(prometheus::Counter& counter, double value) {
  counter.Increment(std::max(0.0, value - counter.Value()));
}
inline void RaiseTo(prometheus::Counter& counter, int64_t value) {
  RaiseTo(counter, static_cast<double>(value));
}

}  // namespace quantgate
