// Random programs of collective calls under random delays, for ranks on GPUs: none stops and none
// gives other bytes, whatever moves them.
#include <gtest/gtest.h>

#include "kernels/comm/nccl/communicator_cache.h"
#include "tests/comm/cuda_worlds.h"
#include "tests/comm/random_programs.h"

namespace quantgate {
namespace QG_TEST_FILE {

constexpr int kSchedules = 100;

TEST(CudaSchedules, NoneOfAHundredStops) {
  for (const CudaWorldCase& world : CudaWorldCases()) {
    if (world.size == 1) continue;
    // Groups are other ones each time: their communicators are made once.
    CommunicatorCache communicators;
    for (int seed = 1; seed <= kSchedules; ++seed) {
      SCOPED_TRACE(CaseText(world) + " " + std::to_string(seed));
      std::mt19937 random(static_cast<uint32_t>(seed));
      const RandomProgram program = RandomProgram::Draw(world.size, random);
      CudaRanks ranks(
          world, {.noise = {.seed = static_cast<uint64_t>(seed)}, .communicators = &communicators});
      const absl::Status status = RunProgram(ranks.world(), program);
      ASSERT_TRUE(status.ok()) << status;
    }
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
