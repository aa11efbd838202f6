// Who has what when: the schedules against their definitions, by simulation.
#include "kernels/comm/overlap/overlap_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace quantgate {
namespace QG_TEST_FILE {

using testing::HasSubstr;

TEST(RowMapTest, ShardsAndPiecesLieEndToEnd) {
  const auto map = RowMap::Create(std::vector<int64_t>{5, 0, 8}, 3, 2);
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_EQ(map->rows(), 13);
  EXPECT_EQ(map->shard(1), (RowInterval{5, 0}));
  EXPECT_EQ(map->shard(2), (RowInterval{5, 8}));
  // Five rows are three multiples of two, the last one short.
  EXPECT_EQ(map->piece(0, 0), (RowInterval{0, 2}));
  EXPECT_EQ(map->piece(0, 1), (RowInterval{2, 2}));
  EXPECT_EQ(map->piece(0, 2), (RowInterval{4, 1}));
  EXPECT_EQ(map->piece(1, 2), (RowInterval{5, 0}));
  // Eight rows are four multiples: two, one and one.
  EXPECT_EQ(map->piece(2, 0), (RowInterval{5, 4}));
  EXPECT_EQ(map->piece(2, 1), (RowInterval{9, 2}));
  EXPECT_EQ(map->piece(2, 2), (RowInterval{11, 2}));
}

TEST(RowMapTest, RefusesWhatIsNoCut) {
  EXPECT_THAT(RowMap::Create(std::vector<int64_t>{4, -1}, 1, 1).status().message(),
              HasSubstr("rows[1] is -1"));
  EXPECT_THAT(RowMap::Create(std::vector<int64_t>{4}, 0, 1).status().message(),
              HasSubstr("pieces is 0"));
  EXPECT_THAT(RowMap::Create(std::vector<int64_t>{4}, 1, 0).status().message(),
              HasSubstr("multiple is 0"));
  EXPECT_THAT(RowMap::Create({}, 1, 1).status().message(), HasSubstr("rows is empty"));
}

/// Runs the steps of all ranks: in each, a rank receives only what its source had before.
void SimulateRing(int ranks, bool aggregate) {
  SCOPED_TRACE(testing::Message() << ranks << " ranks, aggregate " << aggregate);
  std::vector<std::set<int>> has(ranks);
  std::vector<std::multiset<int>> multiplied(ranks);
  for (int rank = 0; rank < ranks; ++rank) has[rank] = {rank};
  const size_t steps = RingAllGatherSteps(0, ranks, aggregate).size();
  EXPECT_EQ(static_cast<int>(steps), aggregate ? ranks / 2 : ranks);
  for (size_t step = 0; step < steps; ++step) {
    const std::vector<std::set<int>> before = has;
    for (int rank = 0; rank < ranks; ++rank) {
      int last = -1;
      const std::vector<RingStep> of_rank = RingAllGatherSteps(rank, ranks, aggregate);
      for (const RingShard& shard : of_rank[step]) {
        EXPECT_EQ(before[shard.from].count(shard.owner), 1u)
            << "rank " << rank << " step " << step << " takes " << shard.owner << " from "
            << shard.from;
        if (last >= 0) {
          EXPECT_EQ(shard.owner, last + 1) << "a pair is multiplied as one";
        }
        last = shard.owner;
        has[rank].insert(shard.owner);
        multiplied[rank].insert(shard.owner);
      }
    }
  }
  for (int rank = 0; rank < ranks; ++rank) {
    for (int owner = 0; owner < ranks; ++owner) {
      EXPECT_EQ(multiplied[rank].count(owner), 1u) << "rank " << rank << ", shard " << owner;
    }
  }
}

TEST(RingAllGatherTest, EveryRankMultipliesEveryShardOnce) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    SimulateRing(ranks, false);
    if (ranks % 2 == 0) SimulateRing(ranks, true);
  }
}

TEST(RingAllGatherTest, GoesDownFromTheRanksOwn) {
  // docs/ranks.md section 10.2: rank 1 of 4.
  std::vector<int> owners, from;
  for (const RingStep& step : RingAllGatherSteps(1, 4, false)) {
    owners.push_back(step[0].owner);
    from.push_back(step[0].from);
  }
  EXPECT_EQ(owners, (std::vector<int>{1, 0, 3, 2}));
  EXPECT_EQ(from, (std::vector<int>{1, 0, 0, 0}));
}

TEST(RingAllGatherTest, AggregateGoesDownByPairs) {
  const std::vector<RingStep> steps = RingAllGatherSteps(3, 6, true);
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[0][0].owner, 2);
  EXPECT_EQ(steps[0][0].from, 2);
  EXPECT_EQ(steps[0][1].owner, 3);
  EXPECT_EQ(steps[0][1].from, 3);
  EXPECT_EQ(steps[1][0].owner, 0);
  EXPECT_EQ(steps[1][1].from, 1);
  EXPECT_EQ(steps[2][0].owner, 4);
}

TEST(ReduceScatterTest, EveryRankMultipliesEveryOwnersRowsOnceAndItsOwnLast) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      std::set<int> owners;
      for (int step = 0; step < ranks; ++step) {
        owners.insert(ReduceScatterOwner(rank, step, ranks));
      }
      EXPECT_EQ(static_cast<int>(owners.size()), ranks);
      EXPECT_EQ(ReduceScatterOwner(rank, ranks - 1, ranks), rank);
      EXPECT_EQ(ReduceScatterOwner(rank, 0, ranks), (rank + 1) % ranks);
    }
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
