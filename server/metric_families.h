// Families of series that all exist from the start: label values are known sets, looked up without
// touching Prometheus' own maps. Included by metrics.cc only.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quantgate {

/// One label and every value it can take.
struct LabelAxis {
  std::string name;
  std::vector<std::string> values;
};

/// The series of one family over the product of its axes. Unknown values are those of the last
/// entry of their axis.
template <typename Metric>
class SeriesGrid {
 public:
  template <typename... Arguments>
  SeriesGrid(prometheus::Family<Metric>& family, std::vector<LabelAxis> axes,
             const Arguments&... arguments)
      : axes_(std::move(axes)) {
    size_t count = 1;
    for (const LabelAxis& axis : axes_) count *= axis.values.size();
    for (size_t i = 0; i < count; ++i) {
      prometheus::Labels labels;
      size_t rest = i;
      for (auto axis = axes_.rbegin(); axis != axes_.rend(); ++axis) {
        labels[axis->name] = axis->values[rest % axis->values.size()];
        rest /= axis->values.size();
      }
      series_.push_back(&family.Add(labels, arguments...));
    }
  }

  /// Values in the order of the axes.
  template <typename... Values>
  Metric& operator()(const Values&... values) {
    size_t index = 0;
    size_t axis = 0;
    ((index = index * axes_[axis].values.size() + IndexOf(axes_[axis], values), ++axis), ...);
    return *series_[index];
  }

 private:
  static size_t IndexOf(const LabelAxis& axis, std::string_view value) {
    const auto found = std::find(axis.values.begin(), axis.values.end(), value);
    return found == axis.values.end() ? axis.values.size() - 1
                                      : static_cast<size_t>(found - axis.values.begin());
  }

  std::vector<LabelAxis> axes_;
  std::vector<Metric*> series_;
};

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

}  // namespace quantgate
