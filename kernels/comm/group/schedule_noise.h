// Schedule noise: random delays that shuffle the order in which ranks get to their calls, so that a
// test sees many of the orders that can be.
#pragma once

#include <cstdint>

namespace quantgate {

/// Delays are functions of seed, rank, call and point alone. Seed 0: none.
struct ScheduleNoise {
  uint64_t seed = 0;
};

/// Where in a call of a rank a delay may be.
enum class NoisePoint : uint32_t { kBeforePosting, kBeforeReading, kBeforeTask };

/// Keeps the calling thread for 0 to 1 ms, most often for much less, letting others run meanwhile.
void Delay(const ScheduleNoise& noise, int rank, uint64_t call, NoisePoint point);

}  // namespace quantgate
