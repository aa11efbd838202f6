// Sessions that divide the weights of every expert over tensor-parallel ranks, against one rank
// with all of them where docs/distributed.md section 5 says that they are equal or where sums are
// exact, against themselves without sequence parallelism, and against whole copies; checkpoints on
// other ranks; what a rank has; what is refused.
#include <gmock/gmock.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "tests/training/divided_sessions.h"
#include "tests/training/expert_fixture.h"

namespace quantgate {
namespace {

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

/// Of one layer of experts: row-parallel ones have no biases.
std::map<std::string, Tensor> ParametersOf(ParallelMode mode) {
  std::map<std::string, Tensor> parameters = FirstExpertParameters();
  std::erase_if(parameters, [&](const auto& parameter) {
    return mode == kRow && parameter.first.starts_with("fc1.bias");
  });
  return parameters;
}

/// What of such a layer is no sum over tensor-parallel ranks.
std::vector<std::string> OwnOutputs(ParallelMode mode) {
  std::vector<std::string> names = {mode == kColumn ? "y" : "dx"};
  for (const char* expert : {"0", "1", "2", "3"}) {
    names.push_back(std::string("fc1.dw.") + expert);
    if (mode == kColumn) names.push_back(std::string("fc1.db.") + expert);
  }
  return names;
}

/// Outputs of this kind, and no difference between ranks that have the same part.
void ExpectSameOutputs(const absl::StatusOr<SessionStepResult>& a,
                       const absl::StatusOr<SessionStepResult>& b,
                       const std::vector<std::string>& names) {
  ASSERT_TRUE(a.ok() && b.ok()) << a.status() << "\n" << b.status();
  EXPECT_THAT(b->rank_differences, IsEmpty());
  int compared = 0;
  for (const NamedTensor& output : a->outputs) {
    if (std::find(names.begin(), names.end(), output.name) == names.end()) continue;
    EXPECT_TRUE(SameBits(output.tensor, OutputOf(b, output.name))) << output.name;
    ++compared;
  }
  EXPECT_GT(compared, 0);
}

/// Two updates of a layer of `rows`, each of two microbatches.
void TrainLayers(Session& a, Session& b, ParallelMode mode, int64_t rows) {
  const std::vector<std::string> names = OwnOutputs(mode);
  uint64_t seed = 500;
  for (int update = 0; update < 2; ++update) {
    for (const Microbatch microbatch : {Microbatch::kFirst, Microbatch::kLater}) {
      ForwardStep forward;
      forward.x = Normal(seed++, {rows, kExpertColumns});
      forward.is_first = microbatch;
      const BackwardStep backward{"0", Normal(seed++, {rows, kExpertColumns})};
      const auto x = a.Forward(forward, nullptr), y = b.Forward(forward, nullptr);
      if (mode == kColumn) ExpectSameOutputs(x, y, names);
      ASSERT_TRUE(x.ok() && y.ok()) << x.status() << "\n" << y.status();
      ExpectSameOutputs(a.Backward(backward, nullptr), b.Backward(backward, nullptr), names);
    }
    ExpectSameStep(a, b, [](Session& session) { return session.Optimize({}, nullptr); });
    ExpectSameParameters(a, b, ParametersOf(mode));
  }
}

struct BitsCase {
  const char* recipe;
  ParallelMode mode;
  int ranks_max = 4;
};

class GroupedBits : public ::testing::TestWithParam<BitsCase> {
 protected:
  std::unique_ptr<Engine> engine_ = MakeCpuEngine({.threads = 1});
};

TEST_P(GroupedBits, WhatIsNoSumHasTheBitsOfOneRank) {
  const auto& [recipe, mode, ranks_max] = GetParam();
  SessionSpec spec = FirstExperts(recipe, mode);
  for (int ranks = 2; ranks <= ranks_max; ranks *= 2) {
    for (const bool sp : {false, true}) {
      SCOPED_TRACE(Ranks(ranks, 1, sp).Label());
      const auto one = OpenRanks(*engine_, OnOneRank(spec), ParametersOf(mode));
      spec.parallel = Ranks(ranks, 1, sp);
      const auto session = OpenRanks(*engine_, spec, ParametersOf(mode));
      ASSERT_TRUE(one != nullptr && session != nullptr);
      TrainLayers(*one, *session, mode, kBatch);
      ExpectSameFiles(*one, *session);
    }
  }
}

// Copies divide every expert's rows, however many.
TEST_P(GroupedBits, WhatIsNoSumHasTheBitsOfWholeCopies) {
  const auto& [recipe, mode, ranks_max] = GetParam();
  SessionSpec spec = FirstExperts(recipe, mode);
  const bool is_exact = spec.recipe.name() == "bf16";
  if (is_exact) spec.layers[0].spec.m_splits = {37, 0, 21, 6};
  const int64_t rows = is_exact ? 64 : kBatch;
  SessionSpec whole = OnOneRank(spec);
  whole.parallel = Ranks(1, 2);
  spec.parallel = Ranks(ranks_max, 2, !is_exact);
  const auto copies = OpenRanks(*engine_, whole, ParametersOf(mode));
  const auto session = OpenRanks(*engine_, spec, ParametersOf(mode));
  ASSERT_TRUE(copies != nullptr && session != nullptr);
  TrainLayers(*copies, *session, mode, rows);
  ExpectSameFiles(*copies, *session);
}

INSTANTIATE_TEST_SUITE_P(Recipes, GroupedBits,
                         ::testing::Values(BitsCase{"bf16", kColumn}, BitsCase{"bf16", kRow},
                                           BitsCase{"fp8_delayed", kColumn},
                                           BitsCase{"fp8_delayed", kRow},
                                           BitsCase{"mxfp8", kColumn}, BitsCase{"mxfp8", kRow}),
                         [](const auto& info) {
                           return std::string(info.param.recipe) + "_" +
                                  std::string(ParallelModeName(info.param.mode));
                         });

class GroupedSums : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Engine> engine_ = MakeCpuEngine({.threads = 1});
};

TEST_P(GroupedSums, HaveTheBitsOfOneRankWhereTheyAreExact) {
  SessionSpec spec = ExpertLayers(GetParam());
  spec.layers.erase(spec.layers.begin() + 1);
  spec.main_grads = true;  // In fp32, which no sum of this test leaves.
  for (const ParallelSpec& parallel : {Ranks(2), Ranks(4, 1, true), Ranks(2, 2), Ranks(2, 2, true),
                                       Ranks(4, 2, true), Ranks(2, 4)}) {
    SCOPED_TRACE(parallel.Label());
    const auto one = OpenRanks(*engine_, spec, ExactExperts());
    const auto ranks = OpenRanks(*engine_, Divided(spec, parallel), ExactExperts());
    ASSERT_TRUE(one != nullptr && ranks != nullptr);
    ExpectSameFiles(*one, *ranks);
    PassExactly(*one, *ranks);
    EXPECT_EQ(ranks->Checkpoint(nullptr)->metadata.count("ranks"),
              parallel.data_parallel > 1 ? 1u : 0u);
    ExpectSameStep(*one, *ranks, [](Session& each) { return each.Optimize({}, nullptr); });
    ExpectSameParameters(*one, *ranks, ExactExperts());
    ExpectSameFiles(*one, *ranks);
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

// Rows are gathered before anything is quantized; a sum that is scattered is the sum.
TEST_P(GroupedSessions, SequenceParallelismChangesNoBit) {
  for (const auto& [ranks, copies] : {std::pair(2, 1), std::pair(4, 1), std::pair(2, 2)}) {
    SCOPED_TRACE(Ranks(ranks, copies).Label());
    const auto plain = OpenRanks(*engine_, Spec(Ranks(ranks, copies)), ExpertParameters());
    const auto rows = OpenRanks(*engine_, Spec(Ranks(ranks, copies, true)), ExpertParameters());
    ASSERT_TRUE(plain != nullptr && rows != nullptr);
    TrainExperts(*plain, *rows, 100);
    ExpectSameParameters(*plain, *rows, ExpertParameters());
    ExpectSameFiles(*plain, *rows);
  }
}

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
  EXPECT_THAT(refusal([](SessionSpec& spec) { spec.parallel->overlap.emplace(); }),
              HasSubstr("every divided layer is a grouped_linear, which communicates nothing "
                        "that could be hidden"));
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

}  // namespace
}  // namespace quantgate
