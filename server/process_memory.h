// How the memory of a server process is allocated, and how the process ends when it gets none.
#pragma once

#include <cstdint>

namespace quantgate {

/// Exit code of a process that ends because it was refused memory or a thread.
inline constexpr int kExitWithoutMemory = 5;

/// Writes a line to stderr that names what was refused, "memory" or "a thread", and ends the
/// process at once with kExitWithoutMemory.
[[noreturn]] void EndWithout(const char* what);

/// From this call on, a process that ends because memory or a thread was refused, be it by an
/// uncaught exception or by an assertion of a library, ends as by EndWithout. Other ends stay as
/// they were. Under a bounded address space (RLIMIT_AS) the allocator's arenas and the stacks of
/// threads take less of it. For programs, before threads start. Returns false, and writes a line to
/// stderr, where the bound is below what a server needs to start.
bool PrepareForLittleMemory();

/// Under a bounded address space, reserves stacks for the threads that gRPC may start later, when
/// no addresses are left. Call it after PrepareForLittleMemory, once the threads that run from the
/// start have been started.
void KeepThreadStacks();

/// Keeps buffers up to 32 MiB in the heap, where they are used again, instead of mapping each anew:
/// zeroing fresh pages costs as much as copying the data. For programs; a library leaves the
/// allocator alone.
void KeepLargeBuffers();

/// Gives freed memory back to the system after a peak; by itself the allocator keeps what lies
/// between blocks in use. Not thread-safe.
class HeapTrimmer {
 public:
  /// Call it every second with roughly the bytes that are needed at that time.
  void Observe(int64_t load);

 private:
  int64_t peak_ = 0;  ///< Largest load since memory was last given back.
  int quiet_times_ = 0;
};

}  // namespace quantgate
