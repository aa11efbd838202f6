// Sessions that divide the weights of every expert over tensor-parallel ranks, against one rank
// with all of them where sums are exact; checkpoints on other ranks; what a rank has; what is
// refused.
#include <gmock/gmock.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "tests/training/divided_sessions.h"
#include "tests/training/expert_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kColumn = ParallelMode::kColumn, kRow = ParallelMode::kRow;

/// The experts' layers, one column-parallel and one row-parallel, on these ranks.
SessionSpec Divided(SessionSpec spec, const ParallelSpec& parallel) {
  spec.parallel = parallel;
  if (parallel.tensor_parallel == 1) return spec;
  spec.layers.front().spec.parallel_mode = kColumn;
  spec.layers.back().spec.parallel_mode = kRow;
  return spec;
}

class GroupedSums : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Engine> engine_ = MakeCpuEngine({.threads = 1});
};

TEST_P(GroupedSums, HaveTheBitsOfOneRankWhereTheyAreExact) {
  SessionSpec spec = ExpertLayers(GetParam());
  spec.layers.erase(spec.layers.begin() + 1);
  spec.main_grads = true;  // In fp32, which no sum of this test leaves.
  for (const WeightStorage weights : ExactStorages(spec.recipe)) {
    spec.weights = weights;
    for (const ParallelSpec& parallel : {Ranks(2), Ranks(4, 1, true), Ranks(2, 2),
                                         Ranks(2, 2, true), Ranks(4, 2, true), Ranks(2, 4)}) {
      SCOPED_TRACE(parallel.Label() + " " + std::string(WeightStorageName(weights)));
      ExpectExactlyAsOne(*engine_, spec, Divided(spec, parallel), ExactExperts());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, GroupedSums,
                         ::testing::Values("bf16", "fp8_delayed", "fp8_current:power_2_scales=true",
                                           "mxfp8"));

/// Two layers with an activation between them, of which every rank has columns.
class GroupedSessions : public ::testing::TestWithParam<SessionCase> {
 protected:
  static SessionSpec Spec(const ParallelSpec& parallel) {
    SessionSpec spec = Divided(ExpertLayers(GetParam().recipe), parallel);
    GetParam().Set(spec);
    return spec;
  }
  static SessionSpec SpecOfOne() { return OnOneRank(Spec(Ranks(2))); }
  std::unique_ptr<Engine> engine_ = MakeCpuEngine({.threads = 1});
};

TEST_P(GroupedSessions, CheckpointsAreTheSameBytesOnFourRanksTwoOneAndFourAgain) {
  // Gradients that no update has used yet are parts of whole ones.
  ExpectSameCheckpointsElsewhere(
      *engine_, {Spec(Ranks(4)), Spec(Ranks(2, 1, true)), SpecOfOne(), Spec(Ranks(4))},
      ExpertParameters(), TrainToTheMiddle);
}

// After an update: copies, ranks that divide experts, ranks that divide their weights.
TEST_P(GroupedSessions, CheckpointsGoOnHoweverExpertsAreDivided) {
  const auto train = [](Session& session, uint64_t seed) {
    PassExperts(session, seed);
    ASSERT_TRUE(session.Optimize({}, nullptr).ok());
  };
  ExpectSameCheckpointsElsewhere(*engine_,
                                 {Spec(Ranks(2, 2, true)), Spec(Experts(4)), Spec(Ranks(4, 2)),
                                  Spec(Experts(2, 2)), Spec(Ranks(1, 4)), Spec(Ranks(2, 2, true))},
                                 ExpertParameters(), train);
}

INSTANTIATE_TEST_SUITE_P(Sessions, GroupedSessions, ExpertCases(), NameOfCase);

class GroupedStates : public ::testing::Test {
 protected:
  std::unique_ptr<Engine> engine_ = MakeCpuEngine({.threads = 1});
};

TEST_F(GroupedStates, RanksHavePartsOfEveryExpert) {
  SessionSpec spec = Divided(ExpertLayers("fp8_current"), Ranks(2, 2, true));
  spec.weights = WeightStorage::kQuantized;
  const auto session = OpenRanks(*engine_, spec, ExpertParameters());
  ASSERT_NE(session, nullptr);
  const auto shape_of = [&](const char* name) {
    const auto found = session->Find(name, nullptr);
    EXPECT_TRUE(found.ok()) << found.status();
    return found.ok() ? found->shape() : Shape();
  };
  EXPECT_EQ(shape_of("rank1.fc1.weight.2"), Shape({kExpertColumns / 2, kExpertColumns}));
  EXPECT_EQ(shape_of("rank3.fc2.weight.0"), Shape({kExpertColumns, kExpertColumns / 2}));
  EXPECT_EQ(shape_of("rank2.fc1.bias.3"), Shape({kExpertColumns / 2}));
  EXPECT_EQ(shape_of("fc2.weight.1"), Shape({kExpertColumns, kExpertColumns}));
  // Every part of a quantized weight has its own amax.
  EXPECT_EQ(session->Checkpoint(nullptr)->metadata.count("ranks"), 1u);

  ForwardStep forward;
  forward.x = ExpertBatch(1);
  const auto y = session->Forward(forward, nullptr);
  const auto dx = session->Backward({"0", ExpertBatch(2)}, nullptr);
  ASSERT_TRUE(y.ok() && dx.ok()) << y.status() << dx.status();
  EXPECT_THAT(y->rank_differences, IsEmpty());
  EXPECT_THAT(dx->rank_differences, IsEmpty());
  // A half of a copy's rows, and in between all of those, and half of the columns.
  const RankStepRecords& rank = y->ranks[3];
  EXPECT_EQ(rank.outputs[0].shape, (Shape{kBatch / 4, kExpertColumns}));
  std::vector<std::string> stages;
  for (const TimedStage& stage : rank.records.stages) stages.push_back(stage.stage);
  EXPECT_THAT(stages, Contains("fc1.all-gather x"));
  EXPECT_THAT(stages, Contains("fc2.reduce-scatter y"));
  std::vector<std::string> backward;
  for (const TimedStage& stage : dx->ranks[3].records.stages) backward.push_back(stage.stage);
  EXPECT_THAT(backward, Contains("fc2.all-gather grad_output"));
  EXPECT_THAT(backward, Contains("fc1.reduce-scatter dx"));
  std::vector<std::string> quantized;
  for (const QuantizationRecord& one : rank.records.quantizations) quantized.push_back(one.tensor);
  EXPECT_THAT(quantized, Contains("fc1.x.2"));
  EXPECT_THAT(quantized, Contains("fc2.x.0"));
}

TEST_F(GroupedStates, AFailedStepLeavesAllAsTheyWere) {
  const SessionSpec spec = Divided(ExpertLayers("fp8_delayed"), Ranks(2, 1, true));
  const auto undisturbed = OpenRanks(*engine_, spec, ExpertParameters());
  const auto session = OpenRanks(*engine_, spec, ExpertParameters());
  ASSERT_TRUE(undisturbed != nullptr && session != nullptr);
  ForwardStep forward;
  forward.x = ExpertBatch(1);
  for (Session* each : {undisturbed.get(), session.get()}) {
    ASSERT_TRUE(each->Forward(forward, nullptr).ok());
  }
  forward.microbatch = "wrong";
  forward.x = Normal(1, {kBatch - 2, kExpertColumns});
  const absl::Status wrong = session->Forward(forward, nullptr).status();
  EXPECT_EQ(wrong.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(wrong.message()), HasSubstr("layers[fc1].layer.m_splits"));
  // The groups are new, and backward communicates in those.
  ExpectSameStep(*undisturbed, *session, [](Session& each) {
    return each.Backward({"0", ExpertBatch(2)}, nullptr);
  });
}

// Of a layer beside the experts'.
TEST_F(GroupedStates, WhatOverlapsIsOfOtherLayers) {
  SessionSpec spec = Divided(ExpertLayers("bf16"), Ranks(2, 1, true));
  spec.layers = {{"fc", {}}, spec.layers[1], spec.layers[2]};
  spec.layers[0].spec.parallel_mode = kColumn;
  std::map<std::string, Tensor> parameters = ExpertParameters();
  std::erase_if(parameters, [](const auto& each) { return each.first.starts_with("fc1."); });
  parameters["fc.weight"] = Normal(40, {kExpertColumns, kExpertColumns});
  const auto plain = OpenRanks(*engine_, spec, parameters);
  spec.parallel->overlap.emplace();
  const auto session = OpenRanks(*engine_, spec, parameters);
  ASSERT_TRUE(plain != nullptr && session != nullptr);
  TrainExperts(*plain, *session, 100);
  ForwardStep forward;
  forward.x = ExpertBatch(1);
  const auto y = session->Forward(forward, nullptr);
  ASSERT_TRUE(y.ok()) << y.status();
  ASSERT_EQ(y->ranks[0].records.timelines.size(), 1u);
  EXPECT_EQ(y->ranks[0].records.timelines[0].stage, "fc.fprop");
}

TEST_F(GroupedStates, Refusals) {
  const auto refusal = [&](const std::function<void(SessionSpec&)>& change) {
    SessionSpec spec = Divided(ExpertLayers("bf16"), Ranks(2, 2, true));
    change(spec);
    const absl::Status status =
        OpenSession(*engine_, spec, ExpertParameters(), nullptr, nullptr).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal([](SessionSpec& spec) { spec.parallel->expert_parallel = 2; }),
              HasSubstr("parallel.tensor_parallel is 2: with expert_parallel the ranks of a copy "
                        "divide experts alone"));
  EXPECT_THAT(refusal([](SessionSpec& spec) { spec.layers[2].spec.parallel_mode = kColumn; }),
              HasSubstr("layers[2].layer.parallel_mode is column: on each rank its x is divided "
                        "along its rows, and what layer act gives is divided along its columns"));
  EXPECT_THAT(refusal([](SessionSpec& spec) {
                spec.layers[1].spec.operations[0].activation.kind = *ParseActivationKind("swiglu");
              }),
              HasSubstr("layers[1].layer.parallel_mode is none: on each rank its x is whole, and "
                        "what layer fc1 gives is divided along its columns"));
  EXPECT_THAT(refusal([](SessionSpec& spec) {
                for (const size_t layer : {0, 2}) {
                  spec.layers[layer].spec.m_splits = {37, 0, 21, 6};
                }
              }),
              HasSubstr("layers[0].layer.m_splits is 33 rows of copy 0 of 2: under "
                        "sequence_parallel the 2 ranks of a copy divide its rows evenly"));
  EXPECT_THAT(refusal([](SessionSpec& spec) {
                spec.layers[2].spec.m_splits = {512, 0, 0, 0};
              }),
              HasSubstr("layers[2].layer.m_splits[0] is 512: on several ranks all grouped_linear"));
  EXPECT_THAT(
      refusal([](SessionSpec& spec) { spec.parallel->overlap.emplace(); }),
      HasSubstr("every divided layer is a grouped_linear, which has no communication to overlap"));
  SessionSpec spec = Divided(ExpertLayers("bf16"), Ranks(2));
  auto parameters = ExpertParameters();
  parameters["fc2.bias.1"] = Normal(1, {kExpertColumns});
  EXPECT_THAT(
      std::string(OpenSession(*engine_, spec, parameters, nullptr, nullptr).status().message()),
      HasSubstr("layers[fc2].parameters[bias.1] is bf16[128]: a row-parallel grouped_linear has no "
                "bias"));
  spec.parallel = Ranks(3);
  EXPECT_THAT(
      std::string(
          OpenSession(*engine_, spec, ExpertParameters(), nullptr, nullptr).status().message()),
      HasSubstr("parameters[fc1.bias.0] is bf16[128]: its dim 0 must be a multiple of 3"));
  // Where no rows are routed, layers may see other experts' rows.
  spec.parallel = Ranks(2);
  spec.layers[2].spec.m_splits = {0, 512, 0, 0};
  EXPECT_TRUE(OpenSession(*engine_, spec, ExpertParameters(), nullptr, nullptr).ok());
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
