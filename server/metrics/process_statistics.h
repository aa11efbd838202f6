// What the kernel says about this process, for the process_* metrics.
#pragma once

#include <cstdint>

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

ProcessStatistics ReadProcessStatistics();

}  // namespace quantgate
