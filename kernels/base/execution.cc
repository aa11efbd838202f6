#include "kernels/base/execution.h"

#include <immintrin.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>

#ifdef __SANITIZE_THREAD__
#include <thread>
#else
#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <atomic>
#include <exception>
#include <map>
#endif

#include "kernels/base/loop_sharing.h"
#include "kernels/base/steady_time.h"

namespace quantgate {
namespace {

constexpr unsigned kMxcsrDefault =
    0x1F80;  // All exceptions masked, RN, no FTZ (bit 15), no DAZ (bit 6).

using RunPieces = absl::FunctionRef<void(int64_t piece_begin, int64_t piece_end)>;

#ifdef __SANITIZE_THREAD__
// TBB's library is not built for ThreadSanitizer, which then sees neither the hand-over of a piece
// to a thread nor the end of a loop, and takes both for races. Plain threads show it all.
void RunOnThreads(int threads, int64_t pieces, RunPieces run) {
  const int64_t parts = std::min<int64_t>(threads, pieces);
  std::vector<std::jthread> others;
  for (int64_t part = 1; part < parts; ++part) {
    others.emplace_back([=] { run(pieces * part / parts, pieces * (part + 1) / parts); });
  }
  run(0, pieces / parts);
}
#else
// An arena of the calling thread for this number of threads. It is kept, since TBB's workers seldom
// find their way to an arena that lives for a single loop, least of all on a machine with other
// work; and it is not shared, since threads would wait for each other's loops.
tbb::task_arena& ArenaOf(int threads) {
  thread_local std::map<int, tbb::task_arena> arenas;
  return arenas.try_emplace(threads, threads).first->second;
}

// Whether this process was forked from one that had TBB's workers. They are not in the child, whose
// loops would wait for them.
std::atomic<bool> was_forked = false;

bool HasWorkers() {
  static const int noted = pthread_atfork(nullptr, nullptr, [] { was_forked = true; });
  return noted == 0 && !was_forked;
}

// What a piece throws goes past TBB to the caller. An exception of TBB's own ends the process: it
// leaves an arena half initialized, and whoever uses the arena next waits for the other half for
// ever.
void RunOnThreads(int threads, int64_t pieces, RunPieces run) {
  if (!HasWorkers()) return run(0, pieces);
  std::atomic<bool> has_thrown = false;
  std::exception_ptr thrown;
  const auto run_range = [&](const tbb::blocked_range<int64_t>& range) {
    if (has_thrown.load(std::memory_order_relaxed)) return;
    try {
      run(range.begin(), range.end());
    } catch (...) {
      if (!has_thrown.exchange(true)) thrown = std::current_exception();
    }
  };
  [&]() noexcept {
    ArenaOf(threads).execute(
        [&] { tbb::parallel_for(tbb::blocked_range<int64_t>(0, pieces, 1), run_range); });
  }();
  if (thrown != nullptr) std::rethrow_exception(thrown);
}
#endif

}  // namespace

std::string_view IsaName(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "unknown";
}

Isa BestIsa() {
  static const Isa best = [] {
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("f16c");
    if (!avx2) return Isa::kScalar;
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512vbmi") &&
                        __builtin_cpu_supports("avx512vnni");
    return avx512 ? Isa::kAvx512 : Isa::kAvx2;
  }();
  return best;
}

std::vector<Isa> RunnableIsas() {
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (isa <= BestIsa()) isas.push_back(isa);
  }
  return isas;
}

int AvailableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

absl::Status Cancellation::Check() const {
  if (cancelled_.load(std::memory_order_relaxed)) {
    return absl::CancelledError("cancelled by caller");
  }
  if (deadline_ != absl::InfiniteFuture() && SteadyNow() >= deadline_) {
    return absl::DeadlineExceededError("deadline passed before the work was done");
  }
  return absl::OkStatus();
}

ScopedIeeeEnvironment::ScopedIeeeEnvironment() : saved_control_(_mm_getcsr()) {
  _mm_setcsr(kMxcsrDefault);
}
ScopedIeeeEnvironment::~ScopedIeeeEnvironment() { _mm_setcsr(saved_control_); }

void ParallelFor(const ExecutionContext& context, int64_t count, int64_t grain,
                 absl::FunctionRef<void(int64_t, int64_t)> body) {
  if (count <= 0) return;
  grain = std::max<int64_t>(1, grain);
  const int64_t pieces = (count + grain - 1) / grain;
  const auto run = [&](int64_t piece_begin, int64_t piece_end) {
    ScopedIeeeEnvironment ieee;
    for (int64_t piece = piece_begin; piece < piece_end; ++piece) {
      if (!context.CheckCancelled().ok()) return;
      body(piece * grain, std::min(count, (piece + 1) * grain));
    }
  };
  if (context.threads <= 1 || pieces == 1) return run(0, pieces);
  RunOnThreads(context.threads, pieces, run);
}

std::optional<int64_t> WorkFeed::Next() {
  if (!context_.CheckCancelled().ok()) return std::nullopt;
  const int64_t i = next_++;
  return i < count_ ? std::optional(i) : std::nullopt;
}

void ParallelForEach(const ExecutionContext& context, int64_t count,
                     absl::FunctionRef<void(WorkFeed&)> worker) {
  WorkFeed feed(context, count);
  const LoopSharing::OpenLoop open(feed, worker);
  const int64_t threads = std::min<int64_t>(std::max(1, context.threads), count);
  ParallelFor(context, threads, 1, [&](int64_t, int64_t) {
    // A thread that comes late needs no working memory.
    if (feed.left() > 0) worker(feed);
  });
}

}  // namespace quantgate
