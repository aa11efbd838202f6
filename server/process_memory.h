// A line on stderr when the process ends since it could not have memory or a thread.
#pragma once

#include <cstdint>

namespace quantgate {

/// Exit code of a process that ended so.
inline constexpr int kExitWithoutMemory = 5;

/// Ends the process so, at once: "memory" or "a thread".
[[noreturn]] void EndWithout(const char* what);

/// Makes little of a bounded address space (RLIMIT_AS) go to the allocator's arenas and the stacks
/// of threads, and lets a process that cannot go on within it say so and exit with
/// kExitWithoutMemory: an exception that nobody catches, and the assertions of libraries that have
/// asked in vain. What ends for another reason ends as ever. For programs, before threads start.
/// False where the bound is below what a server needs to start; the line is written then.
bool PrepareForLittleMemory();

/// Within a bounded address space: keeps stacks for the threads that gRPC may yet start, so that it
/// has them when no addresses are left. Behind PrepareForLittleMemory, once those that run from the
/// start have theirs.
void KeepThreadStacks();

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
