// ParallelForEach's pieces, their order, and cancellation.
#include "kernels/base/parallel_for_each.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <vector>

namespace quantgate {
namespace {

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

}  // namespace
}  // namespace quantgate
