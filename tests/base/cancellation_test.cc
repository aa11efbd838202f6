#include "kernels/base/cancellation.h"

#include <gtest/gtest.h>

#include <thread>

#include "kernels/base/steady_time.h"

namespace quantgate {
namespace {

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

}  // namespace
}  // namespace quantgate
