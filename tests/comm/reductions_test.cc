// Sums over ranks have the bits that their profile says: against sums by hand, for every number of
// ranks, with even, uneven and no rows.
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "tests/comm/ranks.h"
#include "tests/comm/sum_reference.h"

namespace quantgate {
namespace QG_TEST_FILE {

constexpr const char* kProfiles[] = {"rank_asc_fp32", "ub_p2p",         "ub_atomic",
                                     "nccl_ring",     "bf16_rotated:0", "bf16_rotated:1"};

ReductionProfile Profile(const char* name) { return *ParseReductionProfile(name); }

std::vector<int64_t> EqualRows(int size, int64_t rows) { return std::vector<int64_t>(size, rows); }

/// None for the first owner, then 1, 2, ...
std::vector<int64_t> RisingRows(int size) {
  std::vector<int64_t> rows(size);
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

std::vector<Tensor> Partials(int size, DType dtype, const Shape& shape) {
  std::vector<Tensor> partials;
  for (int rank = 0; rank < size; ++rank) partials.push_back(OrderSensitive(rank, dtype, shape));
  return partials;
}

std::vector<Tensor> ReduceScatter(Ranks& ranks, const std::vector<Tensor>& partials,
                                  const std::vector<int64_t>& rows, const char* profile) {
  return ranks.TensorOfEach([&](Rank& rank) {
    return rank.group("world").ReduceScatter(partials[rank.index()], rows, Profile(profile));
  });
}

std::vector<Tensor> AllReduce(Ranks& ranks, const std::vector<Tensor>& partials,
                              const char* profile) {
  return ranks.TensorOfEach([&](Rank& rank) {
    return rank.group("world").AllReduce(partials[rank.index()], Profile(profile));
  });
}

TEST(ReductionProfile, NamesComeBack) {
  for (const char* name : kProfiles) EXPECT_EQ(ReductionProfileName(Profile(name)), name);
  EXPECT_EQ(ReductionProfileName(Profile("nccl")), "nccl");
  EXPECT_EQ(ReductionProfileName({}), "rank_asc_fp32");
}

TEST(ReductionProfile, OthersAreRefusedByName) {
  for (const char* text : {"", "nccl_rings", "nccl:1", "bf16_rotated", "bf16_rotated:",
                           "bf16_rotated:-1", "bf16_rotated:8", "bf16_rotated:x"}) {
    const absl::Status status = ParseReductionProfile(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_NE(status.message().find("bf16_rotated:W"), std::string::npos);
  }
}

TEST(ReductionProfile, OrdersOfFourRanks) {
  const auto order = [](const char* name, int owner) {
    return OrderOf(Profile(name), owner, 4)->ranks;
  };
  EXPECT_EQ(order("rank_asc_fp32", 2), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(order("ub_p2p", 2), (std::vector<int>{2, 1, 0, 3}));
  EXPECT_EQ(order("ub_atomic", 2), (std::vector<int>{2, 3, 0, 1}));
  EXPECT_EQ(order("nccl_ring", 2), (std::vector<int>{3, 0, 1, 2}));
  EXPECT_EQ(order("bf16_rotated:3", 2), (std::vector<int>{1, 2, 3, 0}));
  EXPECT_EQ(OrderOf(Profile("nccl"), 0, 4).status().code(), absl::StatusCode::kUnimplemented);
}

TEST(ReduceScatter, HasTheBitsOfItsProfile) {
  for (const int size : kWorldSizes) {
    Ranks ranks(size);
    for (const auto& rows : {EqualRows(size, 3), RisingRows(size), EqualRows(size, 0)}) {
      const int64_t total = std::accumulate(rows.begin(), rows.end(), int64_t{0});
      for (const DType dtype : {DType::kBF16, DType::kF32}) {
        const std::vector<Tensor> partials = Partials(size, dtype, {total, 37});
        for (const char* profile : kProfiles) {
          const std::vector<Tensor> blocks = ReduceScatter(ranks, partials, rows, profile);
          EXPECT_EQ(BytesOf(blocks), SumByHand(partials, profile, rows)) << size << " " << profile;
          for (int rank = 0; rank < size; ++rank) {
            EXPECT_EQ(blocks[rank].shape(), (Shape{rows[rank], 37}));
            EXPECT_EQ(blocks[rank].dtype(), dtype);
          }
        }
      }
    }
  }
}

TEST(AllReduce, HasTheBitsOfItsProfileOnEveryRank) {
  for (const int size : kWorldSizes) {
    Ranks ranks(size);
    // 1 row: all but the first own none; 11: uneven; 300: too large to be summed by all.
    for (const int64_t rows : {1, 11, 300}) {
      std::vector<int64_t> rows_of_owners(size, rows / size);
      for (int64_t i = 0; i < rows % size; ++i) ++rows_of_owners[i];
      for (const DType dtype : {DType::kBF16, DType::kF32}) {
        const std::vector<Tensor> partials = Partials(size, dtype, {rows, 5, 9});
        for (const char* profile : kProfiles) {
          const std::string expected = SumByHand(partials, profile, rows_of_owners);
          for (const Tensor& sum : AllReduce(ranks, partials, profile)) {
            EXPECT_EQ(sum.shape(), (Shape{rows, 5, 9}));
            EXPECT_EQ(BytesOf(sum), expected) << size << " " << profile << " " << rows;
          }
        }
      }
    }
  }
}

TEST(AllReduce, IsReduceScatterThenAllGatherWhereTheOrderIsEveryOwners) {
  for (const int size : kWorldSizes) {
    Ranks ranks(size);
    for (const int64_t rows : {3 * size, 101 * size}) {
      const std::vector<Tensor> partials = Partials(size, DType::kBF16, {rows, 40});
      const auto blocks =
          ReduceScatter(ranks, partials, EqualRows(size, rows / size), "rank_asc_fp32");
      const auto joined = ranks.TensorOfEach(
          [&](Rank& rank) { return rank.group("world").AllGather(blocks[rank.index()]); });
      const auto sums = AllReduce(ranks, partials, "rank_asc_fp32");
      for (int rank = 0; rank < size; ++rank) {
        EXPECT_EQ(BytesOf(joined[rank]), BytesOf(sums[rank]));
      }
    }
  }
}

TEST(Reductions, AreOneForTwoRanks) {
  Ranks ranks(2);
  const std::vector<Tensor> partials = Partials(2, DType::kBF16, {64, 64});
  std::set<std::string> results;
  for (const char* profile : kProfiles) {
    results.insert(BytesOf(AllReduce(ranks, partials, profile)[1]));
  }
  EXPECT_EQ(results.size(), 1u);
}

TEST(Reductions, DifferForFourRanksWhereOrderMatters) {
  Ranks ranks(4);
  const std::vector<Tensor> partials = Partials(4, DType::kBF16, {64, 64});
  std::set<std::string> results;
  for (const char* profile : kProfiles) {
    results.insert(BytesOf(AllReduce(ranks, partials, profile)[0]));
  }
  // nccl_ring and bf16_rotated:1 are one order by two names.
  EXPECT_EQ(results.size(), std::size(kProfiles) - 1);
}

TEST(Reductions, AreOneWhereEverySumIsExact) {
  Ranks ranks(8);
  std::vector<Tensor> partials;
  for (int rank = 0; rank < 8; ++rank) {
    partials.push_back(SmallIntegers(rank, DType::kBF16, {64, 64}));
  }
  std::set<std::string> results;
  for (const char* profile : kProfiles) {
    results.insert(BytesOf(AllReduce(ranks, partials, profile)[3]));
  }
  EXPECT_EQ(results.size(), 1u);
}

TEST(Reductions, ByTheLibraryAreRefusedWithoutOne) {
  Ranks ranks(2);
  for (const absl::Status& status : ranks.StatusOfEach([&](Rank& rank) {
         return rank.group("world")
             .AllReduce(OrderSensitive(0, DType::kBF16, {4, 4}), Profile("nccl"))
             .status();
       })) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
