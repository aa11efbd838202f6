// The clock for leases, ages, idle times, deadlines and durations: it never jumps. Wall time is for
// what people read, for what outlives the process, and for what clients say and are told.
#pragma once

#include <chrono>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace quantgate {

/// The time that the wall clock would show now if nobody had set it since the first call in this
/// process.
inline absl::Time SteadyNow() {
  using Clock = std::chrono::steady_clock;
  struct Origin {
    Clock::time_point steady = Clock::now();
    absl::Time wall = absl::Now();
  };
  static const Origin origin;
  return origin.wall + absl::FromChrono(Clock::now() - origin.steady);
}

/// Converts a time of the wall clock to the clock of SteadyNow: it lies as far ahead of SteadyNow()
/// as `wall` is ahead of the wall clock. Infinite times stay infinite.
inline absl::Time SteadyFromWall(absl::Time wall) {
  const absl::Duration ahead = wall - absl::Now();
  return SteadyNow() + ahead;
}

}  // namespace quantgate
