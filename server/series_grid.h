// SeriesGrid: one metric family over the product of its labels. All series exist from the start:
// label values are known sets, looked up without touching the maps of the metrics library.
#pragma once

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
  template <typename Family, typename... Arguments>
  SeriesGrid(Family& family, std::vector<LabelAxis> axes, const Arguments&... arguments)
      : axes_(std::move(axes)) {
    size_t count = 1;
    for (const LabelAxis& axis : axes_) count *= axis.values.size();
    for (size_t i = 0; i < count; ++i) {
      std::map<std::string, std::string> labels;
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
    [[maybe_unused]] size_t axis = 0;
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

}  // namespace quantgate
