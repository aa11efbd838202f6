#include "server/allocator.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>

namespace quantgate {

void KeepLargeBuffers() {
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);  // The largest that glibc takes.
  ::mallopt(M_TRIM_THRESHOLD, 256 << 20);
  ::mallopt(M_TOP_PAD, 16 << 20);
  // Each keeps up to 64 MiB that no trimming gives back; glibc would have eight for each core.
  ::mallopt(M_ARENA_MAX, static_cast<int>(std::max(2L, ::sysconf(_SC_NPROCESSORS_ONLN) / 2)));
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
