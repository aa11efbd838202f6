// AccuracySeries: the metrics of what variants of runs computed: bits that differ, errors, and how
// elements were quantized. A part of Metrics, whose conventions it follows.
#pragma once

#include <string_view>

#include "kernels/validate/run/run.h"
#include "server/metrics/series_families.h"

namespace quantgate {

class AccuracySeries {
 public:
  explicit AccuracySeries(prometheus::Registry& registry);

  /// Parity and errors of a variant's outputs; arguments as RunStatistics::VariantMeasured.
  void Measured(const VariantReport& report, std::string_view reference_recipe);
  /// `recipe`: its base name.
  void Quantized(std::string_view recipe, const QuantizationCounts& counts);

 private:
  CounterGrid parity_checks_;
  CounterGrid mismatched_;
  HistogramGrid rel_rmse_;
  HistogramGrid max_ulp_;
  HistogramGrid cosine_distance_;
  CounterGrid quantizer_elements_;
};

}  // namespace quantgate
