// Worlds: what they refuse, how a run ends, and many schedules of correct programs.
#include "kernels/comm/group/world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <immintrin.h>

#include <algorithm>
#include <latch>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/execution.h"
#include "tests/comm/ranks.h"

namespace quantgate {
namespace QG_TEST_FILE {

using testing::Each;
using testing::HasSubstr;

absl::Status StatusOfCreate(WorldOptions options) {
  return World::Create(std::move(options)).status();
}

TEST(World, RefusesWhatIsNotOne) {
  const auto engine = MakeCpuEngine({.threads = 1});
  EXPECT_EQ(StatusOfCreate({}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(StatusOfCreate({.engines = std::vector<Engine*>(9, engine.get())}).message(),
              HasSubstr("engines is 9"));
  EXPECT_THAT(
      StatusOfCreate({.engines = {engine.get()}, .deadline = absl::ZeroDuration()}).message(),
      HasSubstr("deadline is 0"));
}

TEST(World, RefusesWhatAreNoGroups) {
  Ranks ranks(3);
  World& world = ranks.world();
  EXPECT_TRUE(world.AddGroups("tp", {{0, 2}}).ok());
  EXPECT_THAT(world.AddGroups("a", {{0, 1}, {1, 2}}).message(),
              HasSubstr("groups[a].members is rank 1: the rank appears twice"));
  EXPECT_THAT(world.AddGroups("a", {{0, 3}}).message(),
              HasSubstr("groups[a].members is rank 3: must be in [0, 3)"));
  EXPECT_THAT(world.AddGroups("a", {{0}, {}}).message(), HasSubstr("at least one rank"));
  EXPECT_THAT(world.AddGroups("tp", {{1}}).message(), HasSubstr("groups of this name"));
  EXPECT_THAT(world.AddGroups("world", {{1}}).message(), HasSubstr("groups of this name"));
  EXPECT_EQ(ranks.StatusOfEach([](Rank& rank) { return rank.FindGroup("tp").status(); })[1].code(),
            absl::StatusCode::kNotFound);
}

TEST(World, RunsEachRankInTheFloatingPointEnvironmentOfEngines) {
  Ranks ranks(2);
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);  // Flush to zero, denormals are zero: threads inherit it.
  ranks.StatusOfEach([](Rank& rank) {
    EXPECT_EQ(_mm_getcsr() & 0xFFC0, 0x1F80u);
    return absl::OkStatus();
  });
  _mm_setcsr(before);
}

// A loop whose pieces wait for each other, so that it ends only with a thread for each.
void RunTogether(int threads) {
  std::latch all(threads);
  ParallelForEach({.threads = 1}, threads, [&](WorkFeed& feed) {
    while (feed.Next().has_value()) all.arrive_and_wait();
  });
}

TEST(World, RanksThatWaitOrHaveEndedLendTheirCpus) {
  Ranks ranks(2);
  const int threads = std::min(2, AvailableCpus());
  for (const bool waits : {true, false}) {
    const auto statuses = ranks.StatusOfEach([&](Rank& rank) {
      if (rank.index() == 1) RunTogether(threads);
      return waits ? rank.group(kWorldGroup).Barrier() : absl::OkStatus();
    });
    EXPECT_THAT(statuses, Each(absl::OkStatus()));
  }
}

TEST(World, AbortsAllGroupsWithTheFirstFailure) {
  Ranks ranks(4);
  ASSERT_TRUE(ranks.world().AddGroups("tp", {{0, 1}, {2, 3}}).ok());
  std::vector<absl::Status> statuses(4);
  const absl::Status status = ranks.world().Run(
      [&](Rank& rank) -> absl::Status {
        if (rank.index() == 2) return absl::OutOfRangeError("no such weight");
        return statuses[rank.index()] = rank.group("world").Barrier();
      },
      nullptr);
  EXPECT_EQ(status, absl::OutOfRangeError("rank 2: no such weight"));
  for (const int rank : {0, 1, 3}) {
    EXPECT_EQ(statuses[rank].code(), absl::StatusCode::kAborted);
    EXPECT_EQ(statuses[rank].message(), "the run was aborted: rank 2: no such weight");
  }
  // All groups are, also those that nobody waited in.
  EXPECT_FALSE(ranks.world().Run([](Rank&) { return absl::OkStatus(); }, nullptr).ok());
}

TEST(World, GivesTheErrorOfAGroupAsItIs) {
  Ranks ranks(2);
  const absl::Status status = ranks.world().Run(
      [](Rank& rank) {
        return rank.group("world")
            .AllGather(MarkedTensor(0, rank.index() == 0 ? DType::kU8 : DType::kI16, {1, 1}))
            .status();
      },
      nullptr);
  EXPECT_EQ(status.message(),
            "group world, call 1: rank 0 all_gather u8[1x1], rank 1 all_gather i16[1x1]; every "
            "member must make the same call");
}

TEST(World, AbortsWhenItIsCancelled) {
  Ranks ranks(3);
  Cancellation cancellation;
  std::latch others_are_done(2);
  std::vector<absl::Status> statuses(3);
  const absl::Status status = ranks.world().Run(
      [&](Rank& rank) {
        if (rank.index() == 1) {
          cancellation.Cancel();
          others_are_done.wait();
          return absl::OkStatus();
        }
        statuses[rank.index()] = rank.group("world").Barrier();
        others_are_done.count_down();
        return statuses[rank.index()];
      },
      &cancellation);
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  for (const int rank : {0, 2}) EXPECT_EQ(statuses[rank].code(), absl::StatusCode::kCancelled);
}

TEST(World, TellsWhoIsStuckAndWaitsForIt) {
  std::latch told(1);
  std::vector<absl::Status> whys;
  CommStatistics statistics;
  WorldOptions options;
  options.deadline = absl::Milliseconds(50);
  options.statistics = &statistics;
  options.on_stuck = [&](const absl::Status& why) {
    whys.push_back(why);
    told.count_down();
  };
  Ranks ranks(3, std::move(options));
  bool has_returned = false;
  const absl::Status status = ranks.world().Run(
      [&](Rank& rank) {
        if (rank.index() != 1) return rank.group("world").Barrier();
        told.wait();
        has_returned = true;
        return absl::OkStatus();
      },
      nullptr);
  EXPECT_TRUE(has_returned);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  const std::string why =
      absl::StrCat(status.message(), "; rank 1 did not return from the engine within 50ms of that");
  EXPECT_EQ(whys, std::vector{absl::DeadlineExceededError(why)});
  EXPECT_EQ(statistics.Read(CollectiveBackend::kLocal).stuck_ranks, 1);
}

TEST(World, CancelsTheRanksOfAFailedRun) {
  int stuck = 0;
  WorldOptions options;
  options.on_stuck = [&](const absl::Status&) { ++stuck; };
  Ranks ranks(2, std::move(options));
  const absl::Status status = ranks.world().Run(
      [&](Rank& rank) {
        if (rank.index() == 0) return absl::OutOfRangeError("no such weight");
        // As an engine's operation does.
        while (rank.cancellation()->Check().ok()) _mm_pause();
        return rank.cancellation()->Check();
      },
      nullptr);
  EXPECT_EQ(status, absl::OutOfRangeError("rank 0: no such weight"));
  EXPECT_EQ(stuck, 0);
}

TEST(World, RunsAgainAndKeepsItsGroups) {
  Ranks ranks(2);
  ASSERT_TRUE(ranks.world().AddGroups("tp", {{0, 1}}).ok());
  for (int run = 0; run < 3; ++run) {
    EXPECT_THAT(ranks.StatusOfEach([](Rank& rank) { return rank.group("tp").Barrier(); }),
                Each(absl::OkStatus()));
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
