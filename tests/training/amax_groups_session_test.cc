// Amax groups of sessions, which a forward may name for itself and its backward: interleaved
// microbatches have the bits of sessions that take each alone, and scales that differ are found
// before anything is joined.
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "tests/training/amax_records.h"
#include "tests/training/parallel/parallel_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kBatch = 64, kWide = 64;

std::unique_ptr<Engine> NewEngine() { return MakeCpuEngine({.threads = 1}); }

/// The rows of each quarter have an amax of their own: 6, 10, 14, 18.
Tensor Uneven(uint64_t seed) {
  Tensor tensor = Normal(seed, {kBatch, kWide});
  constexpr uint16_t kLarge[] = {0x40c0, 0x4120, 0x4160, 0x4190};
  for (int64_t part = 0; part < 4; ++part) {
    tensor.as<uint16_t>()[part * kBatch / 4 * kWide + part] = kLarge[part];
  }
  return tensor;
}

std::map<std::string, Tensor> Weights(const SessionSpec& spec) {
  std::map<std::string, Tensor> parameters;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    parameters[spec.layers[i].name + ".weight"] = Normal(31 + i, {kWide, kWide});
  }
  return parameters;
}

ForwardStep ForwardOn(uint64_t seed, const std::string& microbatch, AmaxGroups groups = {}) {
  return ForwardOf(Uneven(seed), microbatch, std::move(groups));
}

/// y, then dx and dw of one microbatch.
using Bits = std::vector<std::string>;

Bits BitsOf(Engine& engine, const absl::StatusOr<SessionStepResult>& forward,
            const absl::StatusOr<SessionStepResult>& backward) {
  return {HexOf(engine, forward, "y"), HexOf(engine, backward, "dx"),
          HexOf(engine, backward, "fc1.dw")};
}

SessionSpec FourRanks(const std::string& recipe) {
  SessionSpec spec = LinearLayers(recipe, {ParallelMode::kRow});
  spec.optimizer.kind = OptimizerSpec::Kind::kNone;
  spec.parallel = Ranks(2, 2, true);
  return spec;
}

/// A session whose spec has these groups takes one microbatch.
Bits Alone(Engine& engine, const std::string& recipe, const AmaxGroups& groups, uint64_t seed) {
  SessionSpec spec = FourRanks(recipe);
  spec.parallel->amax_groups = WithGroupsOfCall(groups, {});
  const auto session = OpenRanks(engine, spec, Weights(spec));
  const auto forward = session->Forward(ForwardOn(seed, "0"), nullptr);
  return BitsOf(engine, forward, session->Backward({"0", Uneven(seed + 10)}, nullptr));
}

// docs/ranks.md section 4.1 and the two-groups bug of frameworks: two groups of one size with
// other members, one group after none, none after one, backwards in both orders.
TEST(AmaxGroupsOfSessions, InterleavedMicrobatchesKeepTheirOwn) {
  const std::unique_ptr<Engine> engine = NewEngine();
  const std::vector<AmaxGroups> calls = {
      AmaxGroupsOf({{TensorRole::kInput, "0,1/2,3"}, {TensorRole::kGradOutput, "0,1/2,3"}}),
      AmaxGroupsOf({{TensorRole::kInput, "0,2/1,3"}, {TensorRole::kGradOutput, "world"}}),
      {},
      AmaxGroupsOf({{TensorRole::kInput, "world"}}),
      AmaxGroupsOf({{TensorRole::kInput, "none"}})};
  for (const char* recipe : {"fp8_current", "nvfp4:disable_stochastic_rounding=true"}) {
    SCOPED_TRACE(recipe);
    std::vector<Bits> expected;
    for (size_t i = 0; i < calls.size(); ++i) {
      expected.push_back(Alone(*engine, recipe, calls[i], 100 + i));
    }
    for (const bool is_turned : {false, true}) {
      const SessionSpec spec = FourRanks(recipe);
      const auto session = OpenRanks(*engine, spec, Weights(spec));
      std::vector<absl::StatusOr<SessionStepResult>> forwards;
      for (size_t i = 0; i < calls.size(); ++i) {
        forwards.push_back(
            session->Forward(ForwardOn(100 + i, std::to_string(i), calls[i]), nullptr));
      }
      for (size_t n = 0; n < calls.size(); ++n) {
        const size_t i = is_turned ? calls.size() - 1 - n : n;
        const auto backward = session->Backward({std::to_string(i), Uneven(110 + i)}, nullptr);
        EXPECT_EQ(BitsOf(*engine, forwards[i], backward), expected[i]) << i;
      }
    }
    // The group of one call shows in its bits: not all of these are the same.
    EXPECT_NE(Alone(*engine, recipe, calls[2], 100), expected[0]);
  }
}

// A call's group in place of the spec's; "default" is neither.
TEST(AmaxGroupsOfSessions, ACallNamesAnotherThanTheSpec) {
  const std::unique_ptr<Engine> engine = NewEngine();
  SessionSpec spec = FourRanks("fp8_current");
  spec.parallel->amax_groups = AmaxGroupsOf({{TensorRole::kInput, "world"}});
  const auto session = OpenRanks(*engine, spec, Weights(spec));
  // Rank 0 has the first half of the rows.
  const auto group = [&](const AmaxGroups& groups, float amax) {
    ForwardStep step = ForwardOn(1, "x", groups);
    step.train = false;
    const QuantizationRecord record = RecordOf(session->Forward(step, nullptr), 0, "fc1.x");
    EXPECT_EQ(record.amax, amax);
    return record.amax_group;
  };
  EXPECT_EQ(group({}, 18), "world (ranks 0, 1, 2, 3)");
  EXPECT_EQ(group(AmaxGroupsOf({{TensorRole::kInput, "0,3/1,2"}}), 10), "0,3/1,2 (ranks 0, 3)");
  EXPECT_EQ(group(AmaxGroupsOf({{TensorRole::kInput, "default"}}), 10), "");
  EXPECT_EQ(group({}, 18), "world (ranks 0, 1, 2, 3)");
}

// A failed step makes the ranks' groups anew, those that calls have listed among them.
TEST(AmaxGroupsOfSessions, GroupsOfForwardsInFlightOutliveAFailure) {
  const std::unique_ptr<Engine> engine = NewEngine();
  const AmaxGroups lists =
      AmaxGroupsOf({{TensorRole::kInput, "0,2/1,3"}, {TensorRole::kGradOutput, "0,1/2,3"}});
  const SessionSpec spec = FourRanks("fp8_current");
  const auto session = OpenRanks(*engine, spec, Weights(spec));
  const auto forward = session->Forward(ForwardOn(1, "0", lists), nullptr);
  EXPECT_FALSE(session->Backward({"none", Uneven(2)}, nullptr).ok());
  EXPECT_EQ(BitsOf(*engine, forward, session->Backward({"0", Uneven(11)}, nullptr)),
            Alone(*engine, "fp8_current", lists, 1));
}

// Whose rows are in the history, by what was put into them.
TEST(AmaxGroupsOfSessions, DelayedScalingReducesOverTheGroupOfItsForward) {
  const std::unique_ptr<Engine> engine = NewEngine();
  SessionSpec spec = LinearLayers("fp8_delayed", {ParallelMode::kColumn});
  spec.optimizer.kind = OptimizerSpec::Kind::kNone;
  spec.parallel = Ranks(2, 2, true);
  struct Case {
    const char* x;
    const char* dy;
    std::vector<float> input, grad_output;  ///< By rank.
  };
  // dy of a column-parallel layer is divided along its columns over the ranks of a copy, whose
  // large elements all lie in the first half.
  const Case cases[] = {{"default", "default", {18, 18, 18, 18}, {18, 18, 18, 18}},
                        {"tensor", "tensor", {10, 10, 18, 18}, {10, 10, 18, 18}},
                        {"none", "data", {6, 10, 14, 18}, {18, 0, 18, 0}},
                        {"0,2/1,3", "world", {14, 18, 14, 18}, {18, 18, 18, 18}}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.x);
    const auto session = OpenRanks(*engine, spec, Weights(spec));
    const AmaxGroups groups =
        AmaxGroupsOf({{TensorRole::kInput, one.x}, {TensorRole::kGradOutput, one.dy}});
    const auto forward = session->Forward(ForwardOn(1, "0", groups), nullptr);
    ASSERT_TRUE(forward.ok()) << forward.status();
    // Once a pass, whatever the groups.
    const auto& stages = forward->ranks[0].records.stages;
    EXPECT_EQ(std::count_if(stages.begin(), stages.end(),
                            [](const TimedStage& stage) {
                              return stage.stage == "reduce amaxes of forward";
                            }),
              1);
    const auto backward = session->Backward({"0", Uneven(2)}, nullptr);
    ASSERT_TRUE(backward.ok()) << backward.status();
    for (size_t rank = 0; rank < 4; ++rank) {
      const std::string prefix = "rank" + std::to_string(rank) + ".fc1.";
      EXPECT_EQ(LargestOf(*session, prefix + "input.amax_history"), one.input[rank]) << rank;
      // Of a rank without large elements, what the generator gave: less than 6.
      const float dy = LargestOf(*session, prefix + "grad_output.amax_history");
      EXPECT_EQ(dy < 6 ? 0 : dy, one.grad_output[rank]) << rank;
    }
  }
}

// After a forward without reduction the next one's scales differ; its codes are not joined, and the
// session stays as it was.
TEST(AmaxGroupsOfSessions, ScalesOfHistoriesThatDifferAreFound) {
  const std::unique_ptr<Engine> engine = NewEngine();
  SessionSpec spec = LinearLayers("fp8_delayed", {ParallelMode::kColumn});
  spec.optimizer.kind = OptimizerSpec::Kind::kNone;
  spec.parallel = Ranks(2, 1, true);
  spec.parallel->amax_groups = AmaxGroupsOf({{TensorRole::kInput, "none"}});
  const auto session = OpenRanks(*engine, spec, Weights(spec));
  ASSERT_TRUE(session->Forward(ForwardOn(1, "0"), nullptr).ok());
  ASSERT_TRUE(session->Backward({"0", Uneven(2)}, nullptr).ok());
  const auto before = DigestsOf(*session);
  const auto refused = session->Forward(ForwardOn(3, "1"), nullptr);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr("amax_groups[input]: none; codes that tensor (ranks 0, 1) joins"),
                    HasSubstr("x rowwise scale_inv differs between ranks: rank 0 has"),
                    HasSubstr("rank 1 has")));
  EXPECT_EQ(DigestsOf(*session), before);
}

// The histories of a checkpoint are each rank's own where their past is, and go on on these ranks.
TEST(AmaxGroupsOfSessions, HistoriesOfOtherGroupsAreEachRanksOwnInACheckpoint) {
  const std::unique_ptr<Engine> engine = NewEngine();
  SessionSpec spec = LinearLayers("fp8_delayed", {ParallelMode::kNone});
  spec.parallel = Ranks(1, 2);
  const auto session = OpenRanks(*engine, spec, Weights(spec));
  const AmaxGroups none = AmaxGroupsOf({{TensorRole::kInput, "none"}});
  ASSERT_TRUE(session->Forward(ForwardOn(1, "0", none), nullptr).ok());
  ASSERT_TRUE(session->Backward({"0", Uneven(2)}, nullptr).ok());
  ASSERT_TRUE(session->Optimize({}, nullptr).ok());
  const auto file = session->Checkpoint(nullptr);
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<std::string> own;
  for (const auto& tensor : file->tensors) {
    if (tensor.name.find("rank") == 0) own.push_back(tensor.name);
  }
  EXPECT_THAT(
      own, testing::IsSupersetOf({"rank0.fc1.input.amax_history", "rank1.fc1.input.amax_history"}));
  EXPECT_THAT(own, testing::Not(testing::Contains("rank0.fc1.grad_output.amax_history")));
  const auto restored = RestoreSession(*engine, spec, *file, nullptr, nullptr);
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(DigestsOf(**restored), DigestsOf(*session));
  for (const auto& each : {session.get(), restored->get()}) {
    ASSERT_TRUE(each->Forward(ForwardOn(5, "0"), nullptr).ok());
  }
  EXPECT_EQ(DigestsOf(**restored), DigestsOf(*session));
}

void ExpectRefusal(const absl::Status& status, const std::string& begin, const std::string& rule) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(begin), HasSubstr(rule)));
}

TEST(AmaxGroupsOfSessions, RefusalsNameFieldValueAndRule) {
  const std::unique_ptr<Engine> engine = NewEngine();
  const auto open = [&](SessionSpec spec, TensorRole role, const char* group) {
    spec.parallel->amax_groups = AmaxGroupsOf({{role, group}});
    return OpenSession(*engine, spec, Weights(spec), nullptr, nullptr).status();
  };
  SessionSpec spec = FourRanks("fp8_current");
  ExpectRefusal(open(spec, TensorRole::kInput, "0,1/2"),
                "parallel.amax_groups[input] is 0,1/2: ", "every rank from 0 to 3 once");
  ExpectRefusal(open(FourRanks("mxfp8"), TensorRole::kInput, "none"),
                "parallel.amax_groups[input] is none: ", "has no amax of a whole input tensor");

  const auto session = OpenRanks(*engine, spec, Weights(spec));
  ExpectRefusal(
      session
          ->Forward(ForwardOn(1, "0", AmaxGroupsOf({{TensorRole::kInput, "4/0,1,2,3"}})), nullptr)
          .status(),
      "amax_groups[input] is 4/0,1,2,3: ", "every rank from 0 to 3 once");
  EXPECT_EQ(session->step_count(), 0);

  const auto one = OpenRanks(*engine, OnOneRank(spec), Weights(spec));
  ExpectRefusal(
      one->Forward(ForwardOn(1, "0", AmaxGroupsOf({{TensorRole::kInput, "world"}})), nullptr)
          .status(),
      "amax_groups[input] is world: ", "a session on one rank has no groups");

  // A recipe that has none of these amaxes.
  spec.parallel->amax_groups = AmaxGroupsOf({{TensorRole::kGradOutput, "world"}});
  const auto named = OpenRanks(*engine, spec, Weights(spec));
  ExpectRefusal(named->ChangeRecipe(*Recipe::Parse("mxfp8")),
                "parallel.amax_groups[grad_output] is world: ", "has no amax of a whole");
}

TEST(AmaxGroupsOfSessions, ListsOfRanksAreBounded) {
  const std::unique_ptr<Engine> engine = NewEngine();
  const SessionSpec spec = FourRanks("fp8_current");
  const auto session = OpenRanks(*engine, spec, Weights(spec));
  std::vector<int> order = {0, 1, 2, 3};
  absl::Status last;
  int taken = 0;
  do {
    std::string text;
    for (const int rank : order) text += (text.empty() ? "" : "/") + std::to_string(rank);
    ForwardStep step = ForwardOn(1, "0", AmaxGroupsOf({{TensorRole::kInput, text}}));
    step.train = false;
    last = session->Forward(step, nullptr).status();
    if (last.ok()) ++taken;
  } while (last.ok() && std::next_permutation(order.begin(), order.end()));
  EXPECT_EQ(taken, 16);
  EXPECT_EQ(last.code(), absl::StatusCode::kFailedPrecondition) << last;
  EXPECT_THAT(std::string(last.message()), HasSubstr("16 lists of ranks"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
