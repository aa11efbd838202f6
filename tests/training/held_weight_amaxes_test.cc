// The amax group of weights that are held quantized, which is the session's: with the group that
// divides a weight, its codes are those of one rank from the opening on and after every update, as
// is the checkpoint.
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/training/amax_records.h"
#include "tests/training/parallel/parallel_fixture.h"
#include "tests/training/same_sessions.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kWide = 128;

/// The rows of each quarter have an amax of their own, and so the columns.
std::map<std::string, Tensor> Weight() {
  Tensor weight = Normal(31, {kWide, kWide});
  constexpr uint16_t kLarge[] = {0x40c0, 0x4120, 0x4160, 0x4190};  // 6, 10, 14, 18.
  for (int64_t part = 0; part < 4; ++part) {
    weight.as<uint16_t>()[part * kWide / 4 * kWide + part * kWide / 4] = kLarge[part];
  }
  return {{"fc1.weight", std::move(weight)}};
}

SessionSpec Held(const std::string& recipe, ParallelMode mode) {
  SessionSpec spec = LinearLayers(recipe, {mode});
  spec.weights = WeightStorage::kQuantized;
  return spec;
}

/// One layer divided over tensor-parallel ranks.
SessionSpec OnRanks(SessionSpec spec, ParallelSpec parallel, const AmaxGroups& groups) {
  spec.parallel = std::move(parallel);
  spec.parallel->amax_groups = WithGroupsOfCall(groups, {});
  return spec;
}

ForwardStep Batch(uint64_t seed) {
  ForwardStep step;
  step.x = Normal(seed, {64, kWide});
  return step;
}

/// `wanted` of y, dx and dw have the bits of the other session.
void ExpectSameOutputs(const absl::StatusOr<SessionStepResult>& a,
                       const absl::StatusOr<SessionStepResult>& b,
                       const std::vector<std::string>& wanted, bool is_same) {
  for (const std::string& name : wanted) {
    EXPECT_EQ(SameBits(OutputOf(a, name), OutputOf(b, name)), is_same) << name;
  }
}

struct DividedCase {
  ParallelMode mode;
  TensorRole divided;                                ///< Beside the weight.
  std::vector<std::string> of_forward, of_backward;  ///< What no sum over ranks is in.
};

// docs/ranks.md section 5: "topology" becomes "yes" where divided operands have the amaxes of
// the whole. Without the weight's group the bits are others.
TEST(HeldWeightAmaxes, DividedWeightsTrainAsOnOneRank) {
  const auto engine = MakeCpuEngine({.threads = 1});
  const DividedCase cases[] = {{ParallelMode::kColumn, TensorRole::kGradOutput, {"y"}, {"fc1.dw"}},
                               {ParallelMode::kRow, TensorRole::kInput, {}, {"dx", "fc1.dw"}}};
  for (const char* recipe : {"fp8_current", "nvfp4:disable_stochastic_rounding=true"}) {
    for (const DividedCase& one : cases) {
      for (const int ranks : {2, 4}) {
        for (const bool is_named : {false, true}) {
          SCOPED_TRACE(absl::StrCat(recipe, " ", std::string(ParallelModeName(one.mode)), " on ",
                                    ranks, is_named ? " named" : ""));
          AmaxGroups groups = AmaxGroupsOf({{one.divided, "tensor"}});
          if (is_named) groups[TensorRole::kWeight] = *ParseAmaxGroup("tensor");
          const SessionSpec spec = Held(recipe, one.mode);
          const auto whole = OpenRanks(*engine, OnOneRank(spec), Weight());
          const auto session = OpenRanks(*engine, OnRanks(spec, Ranks(ranks), groups), Weight());
          ASSERT_TRUE(whole != nullptr && session != nullptr);
          for (uint64_t step = 0; step < 3; ++step) {
            const auto y = whole->Forward(Batch(10 + step), nullptr);
            const auto ranks_y = session->Forward(Batch(10 + step), nullptr);
            ExpectSameOutputs(ranks_y, y, one.of_forward, is_named);
            const BackwardStep backward{"0", Normal(20 + step, {64, kWide})};
            const auto dx = whole->Backward(backward, nullptr);
            const auto ranks_dx = session->Backward(backward, nullptr);
            // Only dx reads the weight, and what a forward read shows in y alone.
            if (is_named) ExpectSameOutputs(ranks_dx, dx, one.of_backward, true);
            ASSERT_TRUE(whole->Optimize({}, nullptr).ok());
            ASSERT_TRUE(session->Optimize({}, nullptr).ok());
          }
          if (is_named) ExpectSameFiles(*whole, *session);
        }
      }
    }
  }
}

// Codes under scales of their own are no parts of a whole, under one scale they are.
TEST(HeldWeightAmaxes, CheckpointsAreWholeUnderOneScale) {
  const auto engine = MakeCpuEngine({.threads = 1});
  const SessionSpec spec = Held("fp8_current", ParallelMode::kColumn);
  for (const char* group : {"default", "none", "tensor", "world", "0,1"}) {
    SCOPED_TRACE(group);
    const AmaxGroups groups = AmaxGroupsOf({{TensorRole::kWeight, group}});
    const auto session = OpenRanks(*engine, OnRanks(spec, Ranks(2), groups), Weight());
    const auto file = session->Checkpoint(nullptr);
    ASSERT_TRUE(file.ok()) << file.status();
    const bool is_own = std::string(group) == "default" || std::string(group) == "none";
    EXPECT_EQ(file->metadata.count("ranks"), is_own ? 1u : 0u);
    if (is_own) continue;
    const auto restored =
        RestoreSession(*engine, OnRanks(spec, Ranks(4), groups), *file, nullptr, nullptr);
    if (std::string(group) == "0,1") {
      EXPECT_FALSE(restored.ok());  // Of four ranks it leaves out two.
      continue;
    }
    ASSERT_TRUE(restored.ok()) << restored.status();
    ExpectSameFiles(*session, **restored);
  }
}

// Of a forward that follows the session's group or names others for other roles, an update has the
// weight's all the same; and so has what a change of recipe quantizes anew.
TEST(HeldWeightAmaxes, TheGroupIsTheSessionsWhateverForwardsName) {
  const auto engine = MakeCpuEngine({.threads = 1});
  const SessionSpec spec = Held("fp8_current", ParallelMode::kColumn);
  const AmaxGroups groups =
      AmaxGroupsOf({{TensorRole::kWeight, "tensor"}, {TensorRole::kGradOutput, "tensor"}});
  const auto whole = OpenRanks(*engine, OnOneRank(spec), Weight());
  const auto session = OpenRanks(*engine, OnRanks(spec, Ranks(2), groups), Weight());
  ForwardStep step = Batch(10);
  ASSERT_TRUE(whole->Forward(step, nullptr).ok());
  step.amax_groups = AmaxGroupsOf({{TensorRole::kInput, "none"}});
  ASSERT_TRUE(session->Forward(step, nullptr).ok());
  for (Session* const each : {whole.get(), session.get()}) {
    ASSERT_TRUE(each->Backward({"0", Normal(20, {64, kWide})}, nullptr).ok());
    ASSERT_TRUE(each->Optimize({}, nullptr).ok());
  }
  ExpectSameFiles(*whole, *session);
  const Recipe powers = *Recipe::Parse("fp8_current:power_2_scales=true");
  for (Session* const each : {whole.get(), session.get()}) {
    ASSERT_TRUE(each->ChangeRecipe(powers).ok());
  }
  ExpectSameFiles(*whole, *session);

  for (const char* group : {"none", "tensor", "default"}) {
    ForwardStep named = Batch(11);
    named.amax_groups = AmaxGroupsOf({{TensorRole::kWeight, group}});
    const absl::Status status = session->Forward(named, nullptr).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(absl::StrCat("amax_groups[weight] is ", group, ": ")),
                      HasSubstr("weights that are held quantized"), HasSubstr("the session's")));
  }
}

// An update notes the amax of the codes that it makes, and the next forward reduces it: over all
// ranks, or over the session's group. Row 0 of a history is rolled away.
TEST(HeldWeightAmaxes, DelayedScalingReducesThemInForward) {
  const auto engine = MakeCpuEngine({.threads = 1});
  const SessionSpec spec = Held("fp8_delayed", ParallelMode::kColumn);
  struct Case {
    const char* group;
    std::vector<float> of_rank;  ///< A quarter of the rows on each.
  };
  const Case cases[] = {{"default", {18, 18, 18, 18}},
                        {"tensor", {18, 18, 18, 18}},
                        {"none", {6, 10, 14, 18}},
                        {"0,1/2,3", {10, 10, 18, 18}}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.group);
    const AmaxGroups groups = AmaxGroupsOf({{TensorRole::kWeight, one.group}});
    const auto session = OpenRanks(*engine, OnRanks(spec, Ranks(4), groups), Weight());
    ASSERT_TRUE(session->Forward(Batch(10), nullptr).ok());
    for (size_t rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(LargestOf(*session, absl::StrCat("rank", rank, ".fc1.weight.amax_history")),
                one.of_rank[rank]);
    }
  }
}

ParallelSpec FullySharded(ParallelSpec parallel) {
  parallel.fully_sharded = true;
  return parallel;
}
ParallelSpec WithFragments(ParallelSpec parallel) {
  parallel.distributed_optimizer = true;
  return parallel;
}

// Copies with rows of a divided weight, or with elements of its masters, quantize it under the
// amaxes of any group as whole copies do: those of all pieces of a part, then those of the parts.
TEST(HeldWeightAmaxes, CopiesWithPiecesOfAWeightTakeAnyGroup) {
  const auto engine = MakeCpuEngine({.threads = 1});
  for (const char* recipe : {"fp8_current", "nvfp4:disable_stochastic_rounding=true"}) {
    const SessionSpec spec = Held(recipe, ParallelMode::kColumn);
    for (const char* group :
         {"default", "none", "tensor", "data", "world", "3,2,1,0", "0,3/1,2", "0,2/1,3"}) {
      const AmaxGroups groups = AmaxGroupsOf({{TensorRole::kWeight, group}});
      for (const ParallelSpec& pieces : {FullySharded(Ranks(2, 2)), WithFragments(Ranks(2, 2))}) {
        SCOPED_TRACE(absl::StrCat(recipe, " ", group, " ", pieces.Label()));
        const auto whole = OpenRanks(*engine, OnRanks(spec, Ranks(2, 2), groups), Weight());
        const auto session = OpenRanks(*engine, OnRanks(spec, pieces, groups), Weight());
        ASSERT_TRUE(whole != nullptr && session != nullptr);
        ExpectSameFiles(*whole, *session);
        for (uint64_t step = 0; step < 2; ++step) {
          const BackwardStep backward{"0", Normal(20 + step, {64, kWide})};
          ExpectSameStep(*whole, *session,
                         [&](Session& each) { return each.Forward(Batch(10 + step), nullptr); });
          ExpectSameStep(*whole, *session,
                         [&](Session& each) { return each.Backward(backward, nullptr); });
          ExpectSameStep(*whole, *session,
                         [](Session& each) { return each.Optimize({}, nullptr); });
        }
        ExpectSameFiles(*whole, *session);
      }
    }
  }
}

// One scale of all parts, so that the checkpoint is of a whole weight: one rank's, to begin with.
TEST(HeldWeightAmaxes, PiecesUnderTheAmaxOfAllRanksAreOfOneWeight) {
  const auto engine = MakeCpuEngine({.threads = 1});
  for (const char* recipe : {"fp8_current", "nvfp4:disable_stochastic_rounding=true"}) {
    const SessionSpec spec = Held(recipe, ParallelMode::kRow);
    const auto one = OpenRanks(*engine, OnOneRank(spec), Weight());
    for (const ParallelSpec& pieces : {FullySharded(Ranks(2, 2)), WithFragments(Ranks(2, 2))}) {
      SCOPED_TRACE(absl::StrCat(recipe, " ", pieces.Label()));
      const auto session = OpenRanks(
          *engine, OnRanks(spec, pieces, AmaxGroupsOf({{TensorRole::kWeight, "world"}})), Weight());
      ASSERT_TRUE(one != nullptr && session != nullptr);
      ExpectSameFiles(*one, *session);
      ASSERT_TRUE(session->Forward(Batch(10), nullptr).ok());
      ASSERT_TRUE(session->Backward({"0", Normal(20, {64, kWide})}, nullptr).ok());
      ASSERT_TRUE(session->Optimize({}, nullptr).ok());
      EXPECT_EQ(session->Checkpoint(nullptr)->metadata.count("ranks"), 0u);
    }
  }
}

TEST(HeldWeightAmaxes, RefusalsNameFieldValueAndRule) {
  const auto engine = MakeCpuEngine({.threads = 1});
  const SessionSpec spec = Held("fp8_current", ParallelMode::kColumn);
  const auto refusal = [&](const ParallelSpec& parallel, const char* group) {
    const AmaxGroups groups = AmaxGroupsOf({{TensorRole::kWeight, group}});
    return std::string(
        OpenSession(*engine, OnRanks(spec, parallel, groups), Weight(), nullptr, nullptr)
            .status()
            .message());
  };
  // Of part 0 rank 0 alone would have both parts' amax, and rank 2 its own.
  for (const char* group : {"0,1/2/3", "0/1,2,3"}) {
    EXPECT_THAT(refusal(FullySharded(Ranks(2, 2)), group),
                AllOf(HasSubstr(absl::StrCat("parallel.amax_groups[weight] is ", group, ": ")),
                      HasSubstr("(fully_sharded) quantize pieces of one weight")));
    EXPECT_THAT(refusal(WithFragments(Ranks(2, 2)), group),
                HasSubstr("(distributed_optimizer) quantize pieces of one weight"));
    EXPECT_EQ(refusal(Ranks(2, 2), group), "");
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
