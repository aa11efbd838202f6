// Calls that move bytes and those that take maxima: every byte lands where it belongs, for every
// number of ranks, with even, uneven and empty shards.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/comm/ranks.h"

namespace quantgate {
namespace QG_TEST_FILE {

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16,     DType::kF8E4M3,
                             DType::kU8,  DType::kF4E2M1x2, DType::kI64};

/// Rows of each rank: as many for all, a different number for each beginning with none, none.
std::vector<std::vector<int64_t>> RowsOfRanks(int size) {
  std::vector<std::vector<int64_t>> cases(3);
  for (int rank = 0; rank < size; ++rank) {
    cases[0].push_back(4);
    cases[1].push_back(rank * 3);
    cases[2].push_back(0);
  }
  return cases;
}

TEST(AllGather, JoinsShardsInRankOrder) {
  for (const int size : kWorldSizes) {
    Ranks ranks(size);
    for (const DType dtype : kDTypes) {
      for (const std::vector<int64_t>& rows : RowsOfRanks(size)) {
        std::vector<Tensor> shards;
        int64_t total = 0;
        for (int rank = 0; rank < size; ++rank) {
          shards.push_back(MarkedTensor(rank, dtype, {rows[rank], 5, 2}));
          total += rows[rank];
        }
        const std::vector<Tensor> wholes = ranks.TensorOfEach(
            [&](Rank& rank) { return rank.group("world").AllGather(shards[rank.index()]); });
        for (const Tensor& whole : wholes) {
          EXPECT_EQ(whole.shape(), (Shape{total, 5, 2}));
          EXPECT_EQ(whole.dtype(), dtype);
          EXPECT_EQ(BytesOf(whole), BytesOf(shards)) << size << " " << DTypeName(dtype);
        }
      }
    }
  }
}

TEST(AllGather, GivesThePartsByThemselves) {
  for (const int size : kWorldSizes) {
    Ranks ranks(size);
    ranks.TensorOfEach([&](Rank& rank) -> absl::StatusOr<Tensor> {
      const Tensor shard = MarkedTensor(rank.index(), DType::kF16, {rank.index(), 3});
      const auto parts = rank.group("world").AllGatherParts(shard);
      EXPECT_EQ(parts->size(), static_cast<size_t>(size));
      for (int from = 0; from < size; ++from) {
        EXPECT_EQ((*parts)[from].shape(), (Shape{from, 3}));
        EXPECT_EQ(BytesOf((*parts)[from]), BytesOf(MarkedTensor(from, DType::kF16, {from, 3})));
      }
      return shard;
    });
  }
}

TEST(AllGather, FollowsTheOrderOfTheGroupAndNotOfTheWorld) {
  Ranks ranks(3);
  ASSERT_TRUE(ranks.world().AddGroups("tp", {{2, 0, 1}}).ok());
  const std::vector<Tensor> wholes = ranks.TensorOfEach([&](Rank& rank) {
    return rank.group("tp").AllGather(MarkedTensor(rank.index(), DType::kU8, {2, 4}));
  });
  std::vector<Tensor> expected;
  for (const int rank : {2, 0, 1}) expected.push_back(MarkedTensor(rank, DType::kU8, {2, 4}));
  for (const Tensor& whole : wholes) EXPECT_EQ(BytesOf(whole), BytesOf(expected));
}

TEST(AllToAll, HandsEachPartToItsOwner) {
  // From member i to member j: i + 2 j rows, of bytes that only they have.
  const auto part = [](int from, int to) {
    return MarkedTensor(from * 8 + to, DType::kF8E5M2, {from + 2 * to, 6});
  };
  for (const int size : kWorldSizes) {
    Ranks ranks(size);
    ranks.TensorOfEach([&](Rank& rank) -> absl::StatusOr<Tensor> {
      std::vector<Tensor> parts;
      for (int to = 0; to < size; ++to) parts.push_back(part(rank.index(), to));
      const auto received = rank.group("world").AllToAll(parts);
      EXPECT_EQ(received->size(), static_cast<size_t>(size));
      for (int from = 0; from < size; ++from) {
        EXPECT_EQ((*received)[from].shape(), part(from, rank.index()).shape());
        EXPECT_EQ(BytesOf((*received)[from]), BytesOf(part(from, rank.index())));
      }
      return parts[0];
    });
  }
}

TEST(AllReduceMax, TakesNumbersBeforeNan) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const int size : kWorldSizes) {
    Ranks ranks(size);
    // Element 0: the rank; 1: a NaN on all but the last; 2: NaN on all; 3: infinity on the first;
    // 4: the smallest subnormal on the last.
    const std::vector<Tensor> maxima = ranks.TensorOfEach([&](Rank& rank) {
      const bool is_last = rank.index() == size - 1;
      const float values[] = {static_cast<float>(rank.index()), is_last ? 0.5f : kNan, kNan,
                              rank.index() == 0 ? kInf : 3.0f, is_last ? 0x1p-149f : 0.0f};
      return rank.group("world").AllReduceMax(
          *Tensor::FromBytes(DType::kF32, {5}, std::as_bytes(std::span(values))));
    });
    for (const Tensor& maximum : maxima) {
      const float* found = maximum.as<float>();
      EXPECT_EQ(found[0], static_cast<float>(size - 1));
      EXPECT_EQ(found[1], 0.5f);
      EXPECT_TRUE(std::isnan(found[2]));
      EXPECT_EQ(found[3], kInf);
      EXPECT_EQ(found[4], 0x1p-149f);
    }
  }
}

TEST(TwoGroups, DoNotMixWhenInterleaved) {
  Ranks ranks(4);
  ASSERT_TRUE(ranks.world().AddGroups("g1", {{0, 1}, {2, 3}}).ok());
  ASSERT_TRUE(ranks.world().AddGroups("g2", {{0, 2}, {1, 3}}).ok());
  ranks.TensorOfEach([&](Rank& rank) -> absl::StatusOr<Tensor> {
    const Tensor own = MarkedTensor(rank.index(), DType::kU8, {1, 16});
    for (const char* name : {"g1", "g2", "g2", "g1", "g2", "world", "g1"}) {
      ProcessGroup& group = rank.group(name);
      EXPECT_EQ(group.members()[group.rank()], rank.index());
      std::vector<Tensor> expected;
      for (const int member : group.members()) {
        expected.push_back(MarkedTensor(member, DType::kU8, {1, 16}));
      }
      EXPECT_EQ(BytesOf(*group.AllGather(own)), BytesOf(expected)) << name;
    }
    return own;
  });
}

TEST(CheckAgreement, NamesTheFirstRankThatDiffersOnEveryMember) {
  for (const int size : kWorldSizes) {
    Ranks ranks(size);
    const Tensor same = *Tensor::FromScalar(0.25f);
    for (const absl::Status& status : ranks.StatusOfEach(
             [&](Rank& rank) { return rank.group("world").CheckAgreement("scale_inv", same); })) {
      EXPECT_TRUE(status.ok()) << status;
    }
    if (size < 3) continue;
    const std::vector<absl::Status> statuses = ranks.StatusOfEach([&](Rank& rank) {
      return rank.group("world").CheckAgreement(
          "scale_inv of x", *Tensor::FromScalar(rank.index() < 2 ? 0.25f : 0.5f));
    });
    for (const absl::Status& status : statuses) {
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_NE(status.message().find("scale_inv of x differs between ranks: rank 0 has 0x3e800000 "
                                      "(0.25), rank 2 has 0x3f000000 (0.5)"),
                std::string::npos)
          << status;
    }
  }
}

TEST(CheckAgreement, ComparesBytesAndNotNumbers) {
  Ranks ranks(2);
  for (const absl::Status& status : ranks.StatusOfEach([&](Rank& rank) {
         return rank.group("world").CheckAgreement(
             "zero", *Tensor::FromScalar(rank.index() == 0 ? 0.0f : -0.0f));
       })) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
