#include "kernels/base/steady_time.h"

#include <chrono>

#include "absl/time/clock.h"

namespace quantgate {

absl::Time SteadyNow() {
  using Clock = std::chrono::steady_clock;
  struct Origin {
    Clock::time_point steady = Clock::now();
    absl::Time wall = absl::Now();
  };
  static const Origin origin;
  return origin.wall + absl::FromChrono(Clock::now() - origin.steady);
}

absl::Time SteadyFromWall(absl::Time wall) {
  // Infinite ones stay so.
  const absl::Duration ahead = wall - absl::Now();
  return SteadyNow() + ahead;
}

}  // namespace quantgate
