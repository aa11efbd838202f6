// ProcessSeries: the process_* metrics, as the kernel counts this process. A part of Metrics.
#pragma once

#include <cstdint>

#include "server/metrics/series_families.h"

namespace quantgate {

struct ProcessStatistics {
  int64_t resident_bytes = 0;
  int64_t virtual_bytes = 0;
  double cpu_seconds = 0;
  double start_time_seconds = 0;  ///< Unix time.
  int64_t open_descriptors = 0;
  int64_t max_descriptors = 0;
  int64_t threads = 0;
};

/// What /proc says about this process now; zeros where it cannot be read.
ProcessStatistics ReadProcessStatistics();

class ProcessSeries {
 public:
  explicit ProcessSeries(prometheus::Registry& registry);
  /// Reads the statistics anew. To be called before each scrape.
  void Refresh();

 private:
  prometheus::Counter& cpu_seconds_;
  prometheus::Gauge& resident_bytes_;
  prometheus::Gauge& virtual_bytes_;
  prometheus::Gauge& start_time_;
  prometheus::Gauge& open_descriptors_;
  prometheus::Gauge& max_descriptors_;
  prometheus::Gauge& threads_;
};

}  // namespace quantgate
