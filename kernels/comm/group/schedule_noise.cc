#include "kernels/comm/group/schedule_noise.h"

#include <chrono>
#include <thread>

#include "kernels/numerics/philox.h"

namespace quantgate {

void Delay(const ScheduleNoise& noise, int rank, uint64_t call, NoisePoint point) {
  if (noise.seed == 0) return;
  const uint32_t stream = static_cast<uint32_t>(rank) * 16 + static_cast<uint32_t>(point);
  const PhiloxCounter random = PhiloxBlock(noise.seed, call, stream);
  // Half of the time none; else up to 2^0, 2^1, ..., 2^9 microseconds, so that every scale is met.
  if (random.word[0] % 2 == 0) return;
  const uint32_t microseconds = random.word[2] % (uint32_t{2} << (random.word[1] % 10));
  const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(microseconds);
  while (std::chrono::steady_clock::now() < end) std::this_thread::yield();
}

}  // namespace quantgate
