// Bounds on the training sessions that a server holds.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace quantgate {

struct SessionLimits {
  int sessions_max = 1024;
  int64_t bytes_max = int64_t{16} << 30;  ///< Of all sessions together.
  absl::Duration lease_default = absl::Minutes(15);
  absl::Duration lease_max = absl::Hours(24);
  /// A session that was not used for so long gives way to others, the least recently used first.
  absl::Duration idle_min = absl::Minutes(1);
};

}  // namespace quantgate
