// What happens to ranks on GPUs when another does not come, on the host or on its device.
#include "kernels/comm/nccl/nccl_transport.h"

#include <gtest/gtest.h>

#include <future>

#include "tests/comm/nccl/nccl_ranks.h"

namespace quantgate {
namespace QG_TEST_FILE {

TEST(NcclTransport, SettlesWhenAllIsDone) {
  NcclRanks ranks(absl::Seconds(60));
  for (int round = 0; round < 3; ++round) {
    for (const absl::Status& status : ranks.Gather({0, 1})) EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_TRUE(ranks.transport().Settle().ok());
  for (int rank = 0; rank < NcclRanks::kSize; ++rank) ranks.ExpectGathered(rank);
}

TEST(NcclTransport, NamesTheRankThatDidNotCome) {
  NcclRanks ranks(absl::Milliseconds(200));
  const absl::Status status = ranks.Gather({0})[0];
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_NE(status.message().find("group tp: rank 1 did not come"), std::string::npos) << status;
  EXPECT_EQ(ranks.Gather({1})[1], status);  // For whoever comes later too.
  EXPECT_EQ(ranks.transport().Settle(), status);
}

TEST(NcclTransport, EndsWaitsWhenARankHasGone) {
  NcclRanks ranks(absl::Minutes(10));
  auto waiting = std::async(std::launch::async, [&] { return ranks.Gather({0})[0]; });
  const absl::Status cause = absl::AbortedError("rank 1 has gone");
  ranks.transport().Abort(NcclRanks::kGroup, cause);
  EXPECT_EQ(waiting.get(), cause);
}

/// A device that never gets to its part: the others' waiting kernels are ended.
TEST(NcclTransport, EndsCallsThatAreStuckOnADevice) {
  NcclRanks ranks(absl::Seconds(1));
  ranks.Gather({0, 1});  // Connects.
  ASSERT_TRUE(ranks.transport().Settle().ok());
  StreamHold hold(ranks.device(1));
  for (const absl::Status& status : ranks.Gather({0, 1})) EXPECT_TRUE(status.ok()) << status;
  const absl::Status status = ranks.transport().Settle();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_NE(status.message().find("rank 1 did not get to a collective call on the device"),
            std::string::npos)
      << status;
  EXPECT_EQ(ranks.Gather({0, 1})[0], status);
  hold.LetGo();
  for (int rank = 0; rank < NcclRanks::kSize; ++rank) {
    EXPECT_TRUE(ranks.device(rank).Synchronize().ok());
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
