// Communicators that a world leaves to later ones of the process: they give right bytes to engines
// that did not make them, and none that a call is stuck on comes back.
#include "kernels/comm/nccl/nccl_communicators.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <iostream>
#include <optional>

#include "absl/time/clock.h"
#include "tests/comm/nccl/nccl_ranks.h"

namespace quantgate {
namespace QG_TEST_FILE {

using Counts = std::array<int64_t, kCommunicatorEvents>;  // Made, leased, closed, aborted.

class NcclCommunicatorsTest : public testing::Test {
 protected:
  /// A world from its beginning to its end, in which both ranks get what both bring.
  void UseWorld(float values, std::array<int, NcclRanks::kSize> devices = {0, 1}) {
    NcclRanks ranks(absl::Seconds(60), &*cache_, devices);
    ExpectGathers(ranks, values);
  }
  static void ExpectGathers(NcclRanks& ranks, float values) {
    for (const absl::Status& status : ranks.Gather({0, 1}, values)) {
      EXPECT_TRUE(status.ok()) << status;
    }
    const absl::Status settled = ranks.transport().Settle();
    EXPECT_TRUE(settled.ok()) << settled;
    for (int rank = 0; rank < NcclRanks::kSize; ++rank) ranks.ExpectGathered(rank, values);
  }
  Counts Counted() const { return statistics_.ReadCommunicators(); }

  CommStatistics statistics_;
  std::optional<CommunicatorCache> cache_{std::in_place, &statistics_};
};

TEST_F(NcclCommunicatorsTest, ServeFiftyWorldsInTurn) {
  for (int world = 0; world < 50; ++world) {
    const absl::Time begin = absl::Now();
    UseWorld(static_cast<float>(1 + 2 * world));
    if (world % 10 > 1) continue;
    size_t free = 0, total = 0;
    ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
    std::cerr << "world " << world << ": " << absl::Now() - begin << ", "
              << (total - free) / (1 << 20) << " MiB in use on the device\n";
  }
  EXPECT_EQ(Counted(), (Counts{2, 2 * 49, 0, 0}));
  cache_.reset();
  EXPECT_EQ(Counted(), (Counts{2, 2 * 49, 2, 0}));
}

TEST_F(NcclCommunicatorsTest, AreOfOneWorldAtATime) {
  UseWorld(1);
  {
    NcclRanks first(absl::Seconds(60), &*cache_), second(absl::Seconds(60), &*cache_);
    EXPECT_EQ(Counted(), (Counts{4, 2, 0, 0}));
    for (int round = 0; round < 3; ++round) {
      ExpectGathers(first, 10);
      ExpectGathers(second, 20);
    }
  }
  NcclRanks third(absl::Seconds(60), &*cache_), fourth(absl::Seconds(60), &*cache_);
  EXPECT_EQ(Counted(), (Counts{4, 6, 0, 0}));
  ExpectGathers(fourth, 30);
  ExpectGathers(third, 40);
}

TEST_F(NcclCommunicatorsTest, AreOfAnOrderOfDevices) {
  UseWorld(1, {0, 1});
  UseWorld(3, {1, 0});
  EXPECT_EQ(Counted(), (Counts{4, 0, 0, 0}));
  UseWorld(5, {0, 1});
  UseWorld(7, {1, 0});
  EXPECT_EQ(Counted(), (Counts{4, 4, 0, 0}));
}

/// The host finds that a rank does not come, before anything is on a stream.
TEST_F(NcclCommunicatorsTest, SurviveARankThatDoesNotCome) {
  for (int round = 0; round < 3; ++round) {
    {
      NcclRanks ranks(absl::Milliseconds(200), &*cache_);
      ExpectGathers(ranks, 1);
      const absl::Status status = ranks.Gather({round % 2}, 100)[round % 2];
      EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    }
    UseWorld(static_cast<float>(10 + round));
  }
  EXPECT_EQ(Counted(), (Counts{2, 2 * 5, 0, 0}));
}

/// A call that one device does not get to holds the other's kernel: both are aborted.
TEST_F(NcclCommunicatorsTest, AreNotLeasedAgainAfterAStuckCall) {
  UseWorld(1);
  {
    NcclRanks ranks(absl::Seconds(1), &*cache_);
    ExpectGathers(ranks, 3);  // Connects.
    StreamHold hold(ranks.device(1));
    for (const absl::Status& status : ranks.Gather({0, 1}, 100)) {
      EXPECT_TRUE(status.ok()) << status;
    }
    const absl::Status stuck = ranks.transport().Settle();
    EXPECT_EQ(stuck.code(), absl::StatusCode::kDeadlineExceeded) << stuck;
    hold.LetGo();
  }
  EXPECT_EQ(Counted(), (Counts{2, 2, 0, 2}));
  for (int world = 0; world < 3; ++world) UseWorld(static_cast<float>(5 + world));
  EXPECT_EQ(Counted(), (Counts{4, 2 + 4, 0, 2}));
}

/// Those that nobody leases are not disturbed by a call that is stuck on others.
TEST_F(NcclCommunicatorsTest, OutliveOthersThatAreAborted) {
  {
    NcclRanks ranks(absl::Seconds(1), &*cache_);
    UseWorld(1);
    ExpectGathers(ranks, 3);
    StreamHold hold(ranks.device(0));
    ranks.Gather({0, 1}, 100);
    EXPECT_FALSE(ranks.transport().Settle().ok());
    hold.LetGo();
  }
  EXPECT_EQ(Counted(), (Counts{4, 0, 0, 2}));
  for (int world = 0; world < 3; ++world) UseWorld(static_cast<float>(5 + world));
  EXPECT_EQ(Counted(), (Counts{4, 6, 0, 2}));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
