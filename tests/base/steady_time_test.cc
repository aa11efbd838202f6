// The clock of leases, ages and deadlines. That no jump of the wall clock moves it, a test cannot
// show without setting that clock.
#include "kernels/base/steady_time.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "absl/time/clock.h"

namespace quantgate {
namespace QG_TEST_FILE {

// Between two readings of the steady clock lies what lies between two of SteadyNow around them.
TEST(SteadyTime, GoesAsTheSteadyClockDoes) {
  using Clock = std::chrono::steady_clock;
  const absl::Time outer_begin = SteadyNow();
  const Clock::time_point begin = Clock::now();
  const absl::Time inner_begin = SteadyNow();
  for (int i = 0; i < 1000; ++i) {
    const absl::Time now = SteadyNow();
    EXPECT_LE(now, SteadyNow());
  }
  const absl::Time inner_end = SteadyNow();
  const absl::Duration between = absl::FromChrono(Clock::now() - begin);
  const absl::Time outer_end = SteadyNow();
  EXPECT_LE(inner_end - inner_begin, between);
  EXPECT_LE(between, outer_end - outer_begin);
}

TEST(SteadyTime, AMomentOfTheWallClockIsAsFarAway) {
  for (const absl::Duration ahead : {absl::Hours(-24), absl::ZeroDuration(), absl::Hours(24)}) {
    const absl::Time before = SteadyNow(), wall_before = absl::Now();
    const absl::Time moment = SteadyFromWall(wall_before + ahead);
    const absl::Duration took = std::max(absl::Now() - wall_before, SteadyNow() - before);
    EXPECT_LE(moment, before + ahead + took);
    EXPECT_GE(moment, before + ahead - took);
  }
  EXPECT_EQ(SteadyFromWall(absl::InfiniteFuture()), absl::InfiniteFuture());
  EXPECT_EQ(SteadyFromWall(absl::InfinitePast()), absl::InfinitePast());
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
