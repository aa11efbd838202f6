// ParallelForEach's pieces, their order, and cancellation.
#include "kernels/base/parallel_for_each.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
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
      ParallelForEach(context, count, [&](int64_t i) {
        ++calls[static_cast<size_t>(i)];
        // Whoever has index i leaves at most the other threads' before it unbegun.
        EXPECT_GE(begun++, i - std::max(0, threads - 1));
      });
      for (const auto& each : calls) EXPECT_EQ(each, 1) << threads << " threads, " << count;
    }
  }
}

TEST(ParallelForEach, StopsWhenCancelled) {
  Cancellation cancellation;
  ExecutionContext context;
  context.threads = 2;
  context.cancellation = &cancellation;
  std::atomic<int64_t> calls{0};
  ParallelForEach(context, 100000, [&](int64_t) {
    ++calls;
    cancellation.Cancel();
  });
  EXPECT_GE(calls, 1);
  EXPECT_LE(calls, 2);
}

}  // namespace
}  // namespace quantgate
