// Ranks that do not make the same calls: every member gets the same typed error, later calls get it
// too, and a new world on the same engines works.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <latch>

#include "tests/comm/ranks.h"

namespace quantgate {
namespace QG_TEST_FILE {

using testing::AllOf;
using testing::ContainsRegex;
using testing::Each;
using testing::HasSubstr;
using testing::Property;

using Call = std::function<absl::Status(Rank&)>;

auto IsError(absl::StatusCode code, const std::string& part) {
  return AllOf(Property(&absl::Status::code, code),
               Property(&absl::Status::message, HasSubstr(part)));
}

Tensor Zeros(DType dtype, Shape shape) {
  Tensor tensor = *Tensor::Allocate(dtype, std::move(shape));
  std::fill_n(tensor.data(), tensor.byte_size(), std::byte{0});
  return tensor;
}

Call AllGather(DType dtype, Shape shape) {
  return [=](Rank& rank) { return rank.group("world").AllGather(Zeros(dtype, shape)).status(); };
}
Call AllReduce(ReductionProfile profile) {
  return [=](Rank& rank) {
    return rank.group("world").AllReduce(Zeros(DType::kBF16, {6, 4}), profile).status();
  };
}
Call ReduceScatter(std::vector<int64_t> rows) {
  return [=](Rank& rank) {
    return rank.group("world").ReduceScatter(Zeros(DType::kBF16, {6, 4}), rows, {}).status();
  };
}
Call Barrier() {
  return [](Rank& rank) { return rank.group("world").Barrier(); };
}
Call Agreement(std::string what) {
  return
      [=](Rank& rank) { return rank.group("world").CheckAgreement(what, Zeros(DType::kF32, {1})); };
}
Call Nothing() {
  return [](Rank&) { return absl::OkStatus(); };
}

/// A world of 3 on the engines of `ranks` gathers as it should.
void ExpectNewWorldWorks(Ranks ranks) {
  Ranks again(std::move(ranks), {});
  again.TensorOfEach([](Rank& rank) {
    return rank.group("world").AllGather(MarkedTensor(rank.index(), DType::kU8, {2, 3}));
  });
}

struct MismatchCase {
  const char* name;
  Call others;  ///< Of ranks 0 and 2.
  Call one;     ///< Of rank 1.
  absl::StatusCode code = absl::StatusCode::kFailedPrecondition;
  const char* message = "every member must make the same call";
};

std::vector<MismatchCase> MismatchCases() {
  const Call gather = AllGather(DType::kBF16, {2, 4});
  return {
      {"call", gather, Barrier()},
      {"parts", gather,
       [](Rank& rank) {
         return rank.group("world").AllGatherParts(Zeros(DType::kBF16, {2, 4})).status();
       }},
      {"dtype", gather, AllGather(DType::kF16, {2, 4}), absl::StatusCode::kFailedPrecondition,
       "f16[2x4]"},
      {"columns", gather, AllGather(DType::kBF16, {2, 5})},
      {"dims", gather, AllGather(DType::kBF16, {2, 4, 1})},
      {"profile", AllReduce({}), AllReduce({ReductionKind::kUbP2p}),
       absl::StatusCode::kFailedPrecondition, "all_reduce bf16[6x4] (ub_p2p)"},
      {"rows", ReduceScatter({2, 2, 2}), ReduceScatter({1, 2, 3}),
       absl::StatusCode::kFailedPrecondition, "rows 1, 2, 3"},
      {"sum", ReduceScatter({2, 2, 2}), AllReduce({})},
      {"what is agreed on", Agreement("a"), Agreement("b")},
      {"maximum's dims",
       [](Rank& rank) {
         return rank.group("world").AllReduceMax(Zeros(DType::kF32, {2})).status();
       },
       [](Rank& rank) {
         return rank.group("world").AllReduceMax(Zeros(DType::kF32, {1})).status();
       }},
      {"end early", gather, Nothing(), absl::StatusCode::kFailedPrecondition,
       "rank 1 has ended without it"},
      {"rows that do not add up", ReduceScatter({2, 2, 2}), ReduceScatter({2, 2, 1}),
       absl::StatusCode::kInvalidArgument,
       "group world: rank 1: rows is 2, 2, 1: must add up to the first dim of bf16[6x4]"},
      {"no tensor", gather,
       [](Rank& rank) { return rank.group("world").AllGather(Tensor()).status(); },
       absl::StatusCode::kInvalidArgument, "rank 1: all_gather.tensor is absent"},
      {"sum of codes", ReduceScatter({2, 2, 2}),
       [](Rank& rank) {
         return rank.group("world")
             .ReduceScatter(Zeros(DType::kF8E4M3, {6, 4}), std::vector<int64_t>{2, 2, 2}, {})
             .status();
       },
       absl::StatusCode::kInvalidArgument, "summed tensors must be f32, bf16 or f16"},
      {"too few parts", gather,
       [](Rank& rank) {
         return rank.group("world")
             .AllToAll(std::vector<Tensor>{Zeros(DType::kU8, {1}), Zeros(DType::kU8, {1})})
             .status();
       },
       absl::StatusCode::kInvalidArgument, "all_to_all.parts is of 2"},
  };
}

TEST(Mismatch, GivesEveryMemberTheSameError) {
  for (const MismatchCase& mismatch : MismatchCases()) {
    SCOPED_TRACE(mismatch.name);
    Ranks ranks(3);
    std::vector<absl::Status> later(3);
    const std::vector<absl::Status> statuses = ranks.StatusOfEach([&](Rank& rank) {
      const absl::Status status = (rank.index() == 1 ? mismatch.one : mismatch.others)(rank);
      later[rank.index()] = rank.group("world").Barrier();
      return status;
    });
    // A rank that has left out a call goes wrong at its next one.
    if (mismatch.message == std::string("rank 1 has ended without it")) {
      EXPECT_THAT(later, Each(IsError(mismatch.code, "rank 1 barrier")));
      continue;
    }
    EXPECT_THAT(statuses, Each(IsError(mismatch.code, mismatch.message)));
    EXPECT_THAT(later, Each(statuses[0]));
    EXPECT_EQ(ranks.world().Run([](Rank&) { return absl::OkStatus(); }, nullptr), statuses[0]);
    ExpectNewWorldWorks(std::move(ranks));
  }
}

TEST(Mismatch, NamesBothRanksAndTheCall) {
  Ranks ranks(2);
  const std::vector<absl::Status> statuses = ranks.StatusOfEach([](Rank& rank) -> absl::Status {
    if (absl::Status barrier = rank.group("world").Barrier(); !barrier.ok()) return barrier;
    return rank.index() == 0 ? AllGather(DType::kBF16, {8, 16})(rank) : ReduceScatter({3, 3})(rank);
  });
  EXPECT_THAT(
      statuses,
      Each(IsError(absl::StatusCode::kFailedPrecondition,
                   "group world, call 2: rank 0 all_gather bf16[8x16], rank 1 reduce_scatter "
                   "bf16[6x4] rows 3, 3 (rank_asc_fp32); every member must make the same call")));
}

TEST(Mismatch, OfOrderIsFoundAtTheFirstCall) {
  Ranks ranks(2);
  const Call first = AllGather(DType::kU8, {1, 2}), second = AllReduce({});
  const auto statuses = ranks.StatusOfEach([&](Rank& rank) -> absl::Status {
    const absl::Status status = (rank.index() == 0 ? first : second)(rank);
    return status.ok() ? (rank.index() == 0 ? second : first)(rank) : status;
  });
  EXPECT_THAT(statuses, Each(IsError(absl::StatusCode::kFailedPrecondition, "call 1")));
}

TEST(Mismatch, OfASkippedCallIsFoundWhenTheOtherEnds) {
  // Both make calls of one kind and shape; rank 1 makes one less.
  Ranks ranks(2);
  const auto statuses = ranks.StatusOfEach([&](Rank& rank) -> absl::Status {
    const Call call = AllReduce({});
    for (int i = 0; i < (rank.index() == 0 ? 3 : 2); ++i) {
      if (absl::Status status = call(rank); !status.ok()) return status;
    }
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses[0], IsError(absl::StatusCode::kFailedPrecondition,
                                   "rank 1 has ended without it, rank 0 waits for it"));
}

TEST(Mismatch, PoisonsOneGroupAndNotAnother) {
  Ranks ranks(4);
  ASSERT_TRUE(ranks.world().AddGroups("tp", {{0, 1}, {2, 3}}).ok());
  const auto statuses = ranks.StatusOfEach([](Rank& rank) {
    ProcessGroup& group = rank.group("tp");
    const Tensor tensor = Zeros(rank.index() == 1 ? DType::kF32 : DType::kBF16, {2, 2});
    return group.AllGather(tensor).status();
  });
  EXPECT_FALSE(statuses[0].ok());
  EXPECT_EQ(statuses[0], statuses[1]);
  EXPECT_TRUE(statuses[2].ok() && statuses[3].ok());
}

TEST(WrongOrderOfGroups, IsFoundAtOnceAndNamesBoth) {
  Ranks ranks(3);
  ASSERT_TRUE(ranks.world().AddGroups("tp", {{0, 1, 2}}).ok());
  ASSERT_TRUE(ranks.world().AddGroups("dp", {{1, 0}}).ok());
  const auto statuses = ranks.StatusOfEach([](Rank& rank) -> absl::Status {
    if (rank.index() == 2) return rank.group("tp").Barrier();
    const absl::Status status = rank.group(rank.index() == 0 ? "tp" : "dp").Barrier();
    return status.ok() ? rank.group(rank.index() == 0 ? "dp" : "tp").Barrier() : status;
  });
  EXPECT_THAT(statuses, Each(IsError(absl::StatusCode::kFailedPrecondition, "one global order")));
  for (const char* part : {"rank 0 waits for rank", "in group tp, call 1 (barrier)",
                           "rank 1 waits for rank 0 in group dp, call 1 (barrier)"}) {
    EXPECT_THAT(statuses, Each(Property(&absl::Status::message, HasSubstr(part))));
  }
}

TEST(WrongOrderOfGroups, IsFoundAroundAllRanks) {
  Ranks ranks(4);
  for (int rank = 0; rank < 4; ++rank) {
    ASSERT_TRUE(ranks.world().AddGroups(std::string(1, 'a' + rank), {{rank, (rank + 1) % 4}}).ok());
  }
  const auto statuses = ranks.StatusOfEach(
      [](Rank& rank) { return rank.group(std::string(1, 'a' + rank.index())).Barrier(); });
  EXPECT_THAT(statuses, Each(IsError(absl::StatusCode::kFailedPrecondition,
                                     "rank 3 waits for rank 0 in group d")));
}

TEST(Deadline, NamesTheRankThatDidNotCome) {
  Ranks ranks(3, {.deadline = absl::Milliseconds(20)});
  std::latch others_are_done(2);
  const auto statuses = ranks.StatusOfEach([&](Rank& rank) {
    if (rank.index() == 1) others_are_done.wait();
    const absl::Status status = AllGather(DType::kU8, {1, 1})(rank);
    if (rank.index() != 1) others_are_done.count_down();
    return status;
  });
  // On a busy machine another one may not have started yet.
  EXPECT_THAT(statuses, Each(IsError(absl::StatusCode::kDeadlineExceeded,
                                     "group world, call 1 (all_gather u8[1x1]): rank")));
  EXPECT_THAT(std::string(statuses[0].message()),
              ContainsRegex("ranks? [0-2, ]*1[0-2, ]* did not come within 20ms"));
  ExpectNewWorldWorks(std::move(ranks));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
