#include "server/allocator.h"

#include <malloc.h>

namespace quantgate {

void KeepLargeBuffers() {
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);  // The largest that glibc takes.
  ::mallopt(M_TRIM_THRESHOLD, 256 << 20);
  ::mallopt(M_TOP_PAD, 16 << 20);
}

}  // namespace quantgate
