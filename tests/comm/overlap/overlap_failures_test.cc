// Overlapped calls in which one rank dies or is stuck: before the call, at each GEMM, copy and sum
// that it has in it, and after. Every member gets the same typed error, within the deadline, and
// the next world on the same engines has the right bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/comm/overlap/overlap_troubles.h"
#include "tests/comm/overlap/overlap_values.h"
#include "tests/comm/troubled_engine.h"

namespace quantgate {
namespace QG_TEST_FILE {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::Property;

auto IsError(absl::StatusCode code, const std::string& part) {
  return AllOf(Property(&absl::Status::code, code),
               Property(&absl::Status::message, HasSubstr(part)));
}

class OverlapFailures : public testing::TestWithParam<OverlapCallCase> {};

TEST_P(OverlapFailures, GiveEveryMemberTheSameErrorAndTheNextWorldTheRightBits) {
  OverlapTrouble none;
  Ranks healthy(kOverlapRanks, OptionsWith(none, absl::Seconds(60)));
  const std::string expected = OverlapOutputs(GetParam(), healthy.world(), none);
  ASSERT_GE(none.operations, 4);  // Before it, at least two tasks, and after it.
  for (int at = 0; at < none.operations; ++at) {
    for (const bool is_stuck : {false, true}) {
      SCOPED_TRACE(absl::StrCat(is_stuck ? "stuck" : "dies", " at operation ", at, " of ",
                                none.operations.load()));
      OverlapTrouble trouble{.is_stuck = is_stuck, .at = at};
      const absl::Duration deadline = is_stuck ? absl::Milliseconds(50) : absl::Seconds(60);
      Ranks ranks(kOverlapRanks, OptionsWith(trouble, deadline));
      const auto statuses = RunTroubled(GetParam(), ranks.world(), trouble);
      EXPECT_THAT(statuses, Each(is_stuck ? IsError(absl::StatusCode::kDeadlineExceeded, "50ms")
                                          : IsError(absl::StatusCode::kUnavailable, "killed")));
      EXPECT_THAT(statuses, Each(statuses[0]));
      Ranks again(std::move(ranks), {});
      OverlapTrouble gone;
      EXPECT_EQ(OverlapOutputs(GetParam(), again.world(), gone), expected);
    }
  }
}

class StuckAllocator final : public ForwardingEngine {
 public:
  StuckAllocator(Engine& engine, OverlapTrouble& trouble)
      : ForwardingEngine(engine), trouble_(trouble) {}
  absl::StatusOr<Tensor> Allocate(DType dtype, Shape shape) override {
    if (absl::Status status = trouble_.Before(); !status.ok()) return status;
    return forwarded().Allocate(dtype, std::move(shape));
  }

 private:
  OverlapTrouble& trouble_;
};

/// Whoever comes first adds the tasks of all ranks; the others wait for that no longer than for
/// anything else.
TEST_P(OverlapFailures, EndWhereTheTasksAreNotAdded) {
  OverlapTrouble stuck{.is_stuck = true, .at = 0};
  WorldOptions options{.deadline = absl::Milliseconds(50)};
  options.wrap_engine = [&](Engine& engine, int) {
    return std::make_unique<StuckAllocator>(engine, stuck);
  };
  Ranks ranks(kOverlapRanks, options);
  const auto statuses = ranks.StatusOfEach([&](Rank& rank) {
    OverlapRank end(rank);
    const absl::Status status = GetParam().call(*end.overlap, rank.index()).status();
    stuck.others_have_ended.count_down();
    return status;
  });
  EXPECT_THAT(statuses, Each(IsError(absl::StatusCode::kDeadlineExceeded, "within 50ms")));
}

TEST_P(OverlapFailures, EndWhenTheRunIsCancelled) {
  OverlapTrouble none;
  Ranks healthy(kOverlapRanks, OptionsWith(none, absl::Seconds(60)));
  OverlapOutputs(GetParam(), healthy.world(), none);
  Cancellation cancellation;
  OverlapTrouble stuck{.is_stuck = true, .at = none.operations / 2};
  WorldOptions options{.deadline = absl::Seconds(60)};
  options.wrap_engine = [&](Engine& engine, int rank) -> std::unique_ptr<Engine> {
    return std::make_unique<TroubledEngine>(engine, [&, rank](bool) {
      if (rank != kTroubledRank) return absl::OkStatus();
      if (stuck.operations == stuck.at) cancellation.Cancel();
      return stuck.Before();
    });
  };
  Ranks ranks(kOverlapRanks, options);
  const auto statuses = RunTroubled(GetParam(), ranks.world(), stuck, &cancellation);
  EXPECT_THAT(statuses, Each(Property(&absl::Status::code, absl::StatusCode::kCancelled)));
}

INSTANTIATE_TEST_SUITE_P(Methods, OverlapFailures, testing::ValuesIn(OverlapCallCases()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace QG_TEST_FILE
}  // namespace quantgate
