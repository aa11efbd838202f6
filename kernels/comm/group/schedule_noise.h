// Schedule noise: random delays that shuffle the order in which ranks get to their calls, so that a
// test sees many of the possible orders.
#pragma once

#include <cstdint>

namespace quantgate {

/// Each delay is a function of seed, rank, call and point alone. Seed 0 means no delays.
struct ScheduleNoise {
  uint64_t seed = 0;
};

/// The points in a rank's call at which it may be delayed.
enum class NoisePoint : uint32_t { kBeforePosting, kBeforeReading, kBeforeTask };

/// Delays the calling thread by 0 to 1 ms, most often much less; other threads run meanwhile.
void Delay(const ScheduleNoise& noise, int rank, uint64_t call, NoisePoint point);

}  // namespace quantgate
