// Ranks of scenarios on GPUs of their own, of which there must be enough.
#include "kernels/validate/scenarios/ranks/rank_places.h"

#include <gmock/gmock.h>

#include <string>

#include "kernels/engine/cuda_module.h"

namespace quantgate {
namespace QG_TEST_FILE {

TEST(RankPlacesCuda, NeedAGpuForEachOfTwoRanks) {
  const auto engine = MakeCudaEngine(0);
  ASSERT_TRUE(engine.ok()) << engine.status();
  const absl::Status status = RankPlaces::Create(CollectiveBackend::kNccl, **engine).status();
  if (*CountCudaDevices() > 1) {
    EXPECT_TRUE(status.ok()) << status;
    return;
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(
      std::string(status.message()),
      testing::HasSubstr("parallel_backend is nccl: it needs a GPU for each of the 2 ranks, "
                         "and this host has 1"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
