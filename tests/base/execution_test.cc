// Pieces, their order, threads, floating-point environment and cancellation of ParallelFor and
// ParallelForEach.
#include "kernels/base/execution.h"

#include <gtest/gtest.h>
#include <immintrin.h>
#include <sched.h>
#include <tbb/global_control.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <iterator>
#include <limits>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/steady_time.h"

namespace quantgate {
namespace QG_TEST_FILE {

constexpr unsigned kFlushToZero = 1u << 15;
constexpr unsigned kDenormalsAreZero = 1u << 6;
constexpr unsigned kRoundUp = 2u << 13;

ExecutionContext WithThreads(int threads) {
  ExecutionContext context;
  context.threads = threads;
  return context;
}

// Sets the caller's control word for one test and puts the old one back.
class ScopedControl {
 public:
  explicit ScopedControl(unsigned bits) : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | bits); }
  ~ScopedControl() { _mm_setcsr(saved_); }

 private:
  const unsigned saved_;
};

TEST(ParallelFor, CoversEveryIndexOnceInPiecesOfTheGrain) {
  for (int threads : {1, 2, 5}) {
    for (int64_t count : {0, 1, 7, 8, 9, 1000}) {
      for (int64_t grain : {1, 3, 8, 5000}) {
        std::mutex mutex;
        std::vector<std::pair<int64_t, int64_t>> pieces;
        ParallelFor(WithThreads(threads), count, grain, [&](int64_t begin, int64_t end) {
          const std::lock_guard lock(mutex);
          pieces.emplace_back(begin, end);
        });
        std::sort(pieces.begin(), pieces.end());
        int64_t covered = 0;
        for (const auto& [begin, end] : pieces) {
          EXPECT_EQ(begin, covered);
          EXPECT_EQ(end, std::min(count, begin + grain));
          covered = end;
        }
        EXPECT_EQ(covered, count);
      }
    }
  }
}

TEST(ParallelFor, TakesAGrainBelowOneAsOne) {
  std::atomic<int64_t> calls{0};
  ParallelFor(WithThreads(1), 4, 0, [&](int64_t begin, int64_t end) {
    EXPECT_EQ(end, begin + 1);
    ++calls;
  });
  EXPECT_EQ(calls, 4);
}

TEST(ParallelFor, RunsOnNoMoreThreadsThanAsked) {
  // As on a machine with more processors than are asked for.
  const tbb::global_control many(tbb::global_control::max_allowed_parallelism, 8);
  for (int threads : {1, 2, 3}) {
    std::atomic<int> running{0};
    std::atomic<int> most{0};
    ParallelFor(WithThreads(threads), 400, 1, [&](int64_t, int64_t) {
      const int now = ++running;
      int seen = most.load();
      while (now > seen && !most.compare_exchange_weak(seen, now)) {
      }
      std::this_thread::yield();
      --running;
    });
    EXPECT_LE(most, threads);
    EXPECT_GE(most, 1);
  }
}

TEST(ParallelFor, LoopsInsideLoopsAndOfSeveralThreadsDoNotWaitForEachOther) {
  constexpr int64_t kOuter = 20, kInner = 50;
  const auto count_all = [&](std::atomic<int64_t>& calls) {
    ParallelFor(WithThreads(2), kOuter, 1, [&](int64_t, int64_t) {
      for (const int threads : {2, 3}) {
        ParallelFor(WithThreads(threads), kInner, 1, [&](int64_t, int64_t) { ++calls; });
      }
    });
  };
  std::atomic<int64_t> calls{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) callers.emplace_back([&] { count_all(calls); });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(calls, 4 * kOuter * 2 * kInner);
}

TEST(ParallelFor, OneThreadIsTheCallersThread) {
  const auto caller = std::this_thread::get_id();
  ParallelFor(WithThreads(1), 8, 1,
              [&](int64_t, int64_t) { EXPECT_EQ(std::this_thread::get_id(), caller); });
}

TEST(ParallelFor, KeepsSubnormalsAndRoundingWhateverTheCallerHasSet) {
  const ScopedControl control(kFlushToZero | kDenormalsAreZero | kRoundUp);
  const unsigned before = _mm_getcsr();
  const volatile float smallest_normal = std::numeric_limits<float>::min();
  const volatile float smallest_subnormal = std::numeric_limits<float>::denorm_min();
  const volatile float one = 1.0f;
  const volatile float quarter_ulp = 0x1p-25f;
  for (int threads : {1, 2}) {
    std::atomic<int> wrong{0};
    ParallelFor(WithThreads(threads), 64, 1, [&](int64_t, int64_t) {
      if (smallest_normal / 2 != 0x1p-127f) ++wrong;  // FTZ would give 0.
      if (!(smallest_subnormal > 0)) ++wrong;         // DAZ would compare 0 with 0.
      if (one + quarter_ulp != 1.0f) ++wrong;         // Rounding up would give 1 + 2^-23.
    });
    EXPECT_EQ(wrong, 0);
  }
  // The sticky exception flags (bits 0 to 5) may change; the control bits are the caller's again.
  EXPECT_EQ(_mm_getcsr() & ~0x3Fu, before & ~0x3Fu);
}

TEST(ScopedIeeeEnvironment, RestoresOnExit) {
  const ScopedControl control(kFlushToZero | kRoundUp);
  const unsigned before = _mm_getcsr();
  {
    const ScopedIeeeEnvironment ieee;
    EXPECT_EQ(_mm_getcsr() & (kFlushToZero | kDenormalsAreZero | (3u << 13)), 0u);
  }
  EXPECT_EQ(_mm_getcsr() & ~0x3Fu, before & ~0x3Fu);
}

TEST(ParallelFor, SkipsWhatHasNotStartedWhenCancelled) {
  for (int threads : {1, 2}) {
    Cancellation cancellation;
    ExecutionContext context = WithThreads(threads);
    context.cancellation = &cancellation;
    std::atomic<int64_t> calls{0};
    ParallelFor(context, 100000, 1, [&](int64_t, int64_t) {
      ++calls;
      cancellation.Cancel();
    });
    // Each thread may have passed the check once before the first piece cancelled.
    EXPECT_GE(calls, 1);
    EXPECT_LE(calls, threads);
    EXPECT_EQ(context.CheckCancelled().code(), absl::StatusCode::kCancelled);
  }
}

TEST(ExecutionContext, WithoutACancellationCannotBeCancelled) {
  EXPECT_TRUE(ExecutionContext().CheckCancelled().ok());
}

// The kernel's own list of processor features, read independently of CPUID.
std::set<std::string> CpuFlags() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  std::string line;
  while (std::getline(cpuinfo, line)) {
    if (!line.starts_with("flags")) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    return {std::istream_iterator<std::string>(words), {}};
  }
  return {};
}

TEST(BestIsa, IsWhatTheKernelSaysTheProcessorHas) {
  const std::set<std::string> flags = CpuFlags();
  const auto has_all = [&](const std::vector<std::string>& names) {
    return std::all_of(names.begin(), names.end(),
                       [&](const std::string& name) { return flags.contains(name); });
  };
  Isa expected = Isa::kScalar;
  if (has_all({"avx2", "fma", "f16c"})) {
    expected = has_all({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vbmi", "avx512_vnni"})
                   ? Isa::kAvx512
                   : Isa::kAvx2;
  }
  EXPECT_EQ(BestIsa(), expected);
}

TEST(AvailableCpus, CountsTheAffinityMask) {
  EXPECT_GE(AvailableCpus(), 1);
  EXPECT_LE(AvailableCpus(), static_cast<int>(std::thread::hardware_concurrency()));
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &all)) continue;
    CPU_SET(cpu, &one);
    break;
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(AvailableCpus(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
}

TEST(ParallelForEach, TakesEveryIndexOnceAndBeginsThemInOrder) {
  for (int threads : {0, 1, 2, 5}) {
    for (int64_t count : {0, 1, 3, 1000}) {
      ExecutionContext context;
      context.threads = threads;
      std::vector<std::atomic<int>> calls(static_cast<size_t>(count));
      std::atomic<int64_t> begun{0};
      ParallelForEach(context, count, [&](WorkFeed& feed) {
        while (const std::optional<int64_t> i = feed.Next()) {
          ++calls[static_cast<size_t>(*i)];
          // Whoever has index i leaves at most the other threads' before it unbegun.
          EXPECT_GE(begun++, *i - std::max(0, threads - 1));
        }
      });
      for (const auto& each : calls) EXPECT_EQ(each, 1) << threads << " threads, " << count;
    }
  }
}

TEST(ParallelForEach, CallsNoMoreWorkersThanThereAreThreadsOrPieces) {
  for (int threads : {1, 3, 8}) {
    for (int64_t count : {0, 2, 100}) {
      ExecutionContext context;
      context.threads = threads;
      std::atomic<int64_t> workers{0};
      ParallelForEach(context, count, [&](WorkFeed& feed) {
        ++workers;
        while (feed.Next().has_value()) {
        }
      });
      EXPECT_LE(workers, std::min<int64_t>(threads, count));
      EXPECT_EQ(workers > 0, count > 0);
    }
  }
}

TEST(ParallelForEach, StopsWhenCancelled) {
  Cancellation cancellation;
  ExecutionContext context;
  context.threads = 2;
  context.cancellation = &cancellation;
  std::atomic<int64_t> calls{0};
  ParallelForEach(context, 100000, [&](WorkFeed& feed) {
    while (feed.Next().has_value()) {
      ++calls;
      cancellation.Cancel();
    }
  });
  EXPECT_GE(calls, 1);
  EXPECT_LE(calls, 2);
}

TEST(Cancellation, IsOkUntilCancelled) {
  Cancellation cancellation;
  EXPECT_EQ(cancellation.deadline(), absl::InfiniteFuture());
  EXPECT_TRUE(cancellation.Check().ok());
  cancellation.Cancel();
  EXPECT_EQ(cancellation.Check().code(), absl::StatusCode::kCancelled);
  cancellation.Cancel();
  EXPECT_EQ(cancellation.Check().code(), absl::StatusCode::kCancelled);
}

TEST(Cancellation, EndsAtItsDeadline) {
  EXPECT_EQ(Cancellation(SteadyNow()).Check().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Cancellation(absl::InfinitePast()).Check().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Cancellation(SteadyNow() + absl::Hours(1)).Check().ok());
}

TEST(Cancellation, ACallersCancelComesBeforeThePastDeadline) {
  Cancellation cancellation(absl::InfinitePast());
  cancellation.Cancel();
  EXPECT_EQ(cancellation.Check().code(), absl::StatusCode::kCancelled);
}

TEST(Cancellation, IsSeenByOtherThreads) {
  Cancellation cancellation;
  std::thread worker([&] {
    while (cancellation.Check().ok()) std::this_thread::yield();
  });
  cancellation.Cancel();
  worker.join();
  EXPECT_EQ(cancellation.Check().code(), absl::StatusCode::kCancelled);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
