// How CPU work runs: instruction set, thread count, cancellation. Passed down explicitly, so that
// tests can run one body over every instruction set and thread count in one process.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"

namespace quantgate {

/// Code paths of the CPU engine, each of which needs more of the processor than the one before.
/// All give the same bits.
enum class Isa {
  kScalar,  ///< Portable C++.
  kAvx2,    ///< AVX2 with FMA and F16C.
  kAvx512,  ///< AVX-512 F, BW, DQ, VL, VBMI and VNNI.
};

std::string_view IsaName(Isa isa);

/// The best path this processor can run, by CPUID.
Isa BestIsa();

/// Every path this processor can run, slowest first, for tests and tools that compare them.
std::vector<Isa> RunnableIsas();

/// CPUs that this process may run on (its affinity mask), at least 1.
int AvailableCpus();

/// Lets a caller stop work between operations by a flag or a deadline, which the code that computes
/// checks. Thread-safe.
class Cancellation {
 public:
  Cancellation() = default;
  /// `deadline` is on the clock of SteadyNow.
  explicit Cancellation(absl::Time deadline) : deadline_(deadline) {}
  Cancellation(const Cancellation&) = delete;
  Cancellation& operator=(const Cancellation&) = delete;

  void Cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  absl::Time deadline() const { return deadline_; }

  /// OK, or CANCELLED, or DEADLINE_EXCEEDED.
  absl::Status Check() const;

 private:
  std::atomic<bool> cancelled_{false};
  const absl::Time deadline_ = absl::InfiniteFuture();
};

/// How one operation runs. Copied freely; what `cancellation` points to must outlive the operation.
struct ExecutionContext {
  Isa isa = BestIsa();
  int threads = AvailableCpus();
  const Cancellation* cancellation = nullptr;  ///< Not owned; null: cannot be cancelled.

  absl::Status CheckCancelled() const {
    return cancellation == nullptr ? absl::OkStatus() : cancellation->Check();
  }
};

/// Calls body(begin, end) over disjoint pieces of [0, count), each a multiple of `grain` long
/// except the last, on at most context.threads threads. Workers run with IEEE subnormals (no FTZ,
/// no DAZ) and round to nearest even, whatever the calling thread has set. Pieces not yet started
/// are skipped once the context is cancelled; the caller must look at context.CheckCancelled()
/// afterwards.
void ParallelFor(const ExecutionContext& context, int64_t count, int64_t grain,
                 absl::FunctionRef<void(int64_t begin, int64_t end)> body);

/// Gives out the pieces [0, count) in increasing order, to several threads, until the context is
/// cancelled.
class WorkFeed {
 public:
  WorkFeed(const ExecutionContext& context, int64_t count) : context_(context), count_(count) {}

  /// The next piece; nothing when all are taken or the context is cancelled.
  std::optional<int64_t> Next();
  /// How many pieces nobody has taken yet.
  int64_t left() const { return std::max<int64_t>(0, count_ - next_); }

 private:
  const ExecutionContext& context_;
  const int64_t count_;
  std::atomic<int64_t> next_{0};
};

/// Calls worker(feed) on at most context.threads threads, and on helpers where the calling thread
/// shares its loops (loop_sharing.h). Each worker takes pieces of [0, count) from the feed until
/// there are none, and may keep working memory between pieces. For few pieces of much work each, of
/// which the last may be smaller. Workers run in the floating-point environment of ParallelFor, and
/// cancellation is as there.
void ParallelForEach(const ExecutionContext& context, int64_t count,
                     absl::FunctionRef<void(WorkFeed& feed)> worker);

/// Sets IEEE subnormals and rounding to nearest even for the current scope; restores on exit.
class ScopedIeeeEnvironment {
 public:
  ScopedIeeeEnvironment();
  ~ScopedIeeeEnvironment();
  ScopedIeeeEnvironment(const ScopedIeeeEnvironment&) = delete;
  ScopedIeeeEnvironment& operator=(const ScopedIeeeEnvironment&) = delete;

 private:
  unsigned saved_control_;
};

}  // namespace quantgate
