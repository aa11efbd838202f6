// SeriesGrid: one metric family over the product of its labels. Label values are known sets, looked
// up without touching the maps of the metrics library; a series is added at once or at its first
// event. Thread-safe.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
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

/// Whether the series of a family are there from the start, as zeros, or each from its first event.
enum class SeriesStart { kWithServer, kFirstEvent };

/// The series of one family, which are numbered.
template <typename Metric>
class NumberedSeries {
 public:
  using Labels = std::map<std::string, std::string>;

  template <typename Family, typename... Arguments>
  NumberedSeries(Family& family, SeriesStart start, size_t count,
                 std::function<Labels(size_t)> labels_of, const Arguments&... arguments)
      : add_([=, &family](size_t number) { return &family.Add(labels_of(number), arguments...); }),
        series_(count) {
    if (start == SeriesStart::kFirstEvent) return;
    for (size_t number = 0; number < count; ++number) (*this)[number];
  }

  /// The family gives every thread that adds the same labels the same series, so it does not matter
  /// whose pointer stays.
  Metric& operator[](size_t number) {
    std::atomic<Metric*>& slot = series_[number];
    Metric* series = slot.load(std::memory_order_acquire);
    if (series == nullptr) {
      series = add_(number);
      slot.store(series, std::memory_order_release);
    }
    return *series;
  }

 private:
  const std::function<Metric*(size_t)> add_;
  std::vector<std::atomic<Metric*>> series_;
};

/// The series of one family over the product of its axes. A value that is not in its axis counts as
/// the axis's last value.
template <typename Metric>
class SeriesGrid {
 public:
  template <typename Family, typename... Arguments>
  SeriesGrid(Family& family, std::vector<LabelAxis> axes, const Arguments&... arguments)
      : SeriesGrid(family, SeriesStart::kWithServer, std::move(axes), arguments...) {}
  template <typename Family, typename... Arguments>
  SeriesGrid(Family& family, SeriesStart start, std::vector<LabelAxis> axes,
             const Arguments&... arguments)
      : axes_(std::move(axes)),
        series_(
            family, start, CountOf(axes_),
            [axes = axes_](size_t number) { return LabelsOf(axes, number); }, arguments...) {}

  /// The series with these label values, which are in the order of the axes.
  template <typename... Values>
  Metric& operator()(const Values&... values) {
    size_t number = 0;
    [[maybe_unused]] size_t axis = 0;
    ((number = number * axes_[axis].values.size() + IndexOf(axes_[axis], values), ++axis), ...);
    return series_[number];
  }

 private:
  static size_t CountOf(const std::vector<LabelAxis>& axes) {
    size_t count = 1;
    for (const LabelAxis& axis : axes) count *= axis.values.size();
    return count;
  }

  static std::map<std::string, std::string> LabelsOf(const std::vector<LabelAxis>& axes,
                                                     size_t number) {
    std::map<std::string, std::string> labels;
    for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
      labels[axis->name] = axis->values[number % axis->values.size()];
      number /= axis->values.size();
    }
    return labels;
  }

  static size_t IndexOf(const LabelAxis& axis, std::string_view value) {
    const auto found = std::find(axis.values.begin(), axis.values.end(), value);
    return found == axis.values.end() ? axis.values.size() - 1
                                      : static_cast<size_t>(found - axis.values.begin());
  }

  const std::vector<LabelAxis> axes_;
  NumberedSeries<Metric> series_;
};

}  // namespace quantgate
