// Moments for leases, ages, idle times, deadlines and what is timed. Wall time is for what people
// read, for what outlives the process, and for what clients say and are told.
#pragma once

#include "absl/time/time.h"

namespace quantgate {

/// What the wall clock would show now, had nobody set it since the first call in this process.
absl::Time SteadyNow();

/// A moment of the wall clock as SteadyNow will show it.
absl::Time SteadyFromWall(absl::Time wall);

}  // namespace quantgate
