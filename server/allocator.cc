#include "server/allocator.h"

#include <malloc.h>

#include <algorithm>

namespace quantgate {

void KeepLargeBuffers() {
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);  // The largest that glibc takes.
  ::mallopt(M_TRIM_THRESHOLD, 256 << 20);
  ::mallopt(M_TOP_PAD, 16 << 20);
}

// Looking through the heap takes milliseconds, and what is given back costs page faults when it is
// needed again: not for little, nor between two requests.
void HeapTrimmer::Observe(int64_t load) {
  constexpr int64_t kWorthIt = 16 << 20;
  constexpr int kQuietTimes = 3;
  peak_ = std::max(peak_, load);
  quiet_times_ = load > peak_ / 4 ? 0 : quiet_times_ + 1;
  if (peak_ < kWorthIt || quiet_times_ < kQuietTimes) return;
  ::malloc_trim(0);
  peak_ = load;
  quiet_times_ = 0;
}

}  // namespace quantgate
