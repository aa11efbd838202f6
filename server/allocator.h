// How glibc's allocator serves a server that receives and sends in pieces of a mebibyte.
#pragma once

#include <cstdint>

namespace quantgate {

/// Keeps buffers up to 32 MiB in the heap, where they are used again, instead of mapping each anew:
/// zeroing fresh pages costs as much as copying the data. For programs; a library leaves the
/// allocator alone.
void KeepLargeBuffers();

/// Gives memory back to the system when what needed it is over: the allocator keeps what lies
/// between blocks in use. Not thread-safe.
class HeapTrimmer {
 public:
  /// To be told every second how many bytes are needed, however roughly.
  void Observe(int64_t load);

 private:
  int64_t peak_ = 0;  ///< Since memory was given back last.
  int quiet_times_ = 0;
};

}  // namespace quantgate
