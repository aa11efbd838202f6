// Sessions whose experts, or their masters and moments alone, are divided over the ranks that have
// copies of them: against copies that have all of it, the same bits of everything, and against one
// rank where sums are exact; checkpoints of the same bytes on other ranks; what a rank holds; steps
// that fail.
#include <gmock/gmock.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/training/divided_sessions.h"
#include "tests/training/expert_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

ParallelSpec Sharded(ParallelSpec parallel, bool reshards = true) {
  parallel.fully_sharded = true;
  parallel.reshard_after_forward = reshards;
  return parallel;
}
ParallelSpec WithFragments(ParallelSpec parallel) {
  parallel.distributed_optimizer = true;
  return parallel;
}

std::map<std::string, Tensor> MixedParameters() {
  std::map<std::string, Tensor> parameters = ExpertParameters();
  parameters["fc.weight"] = Normal(40, {kExpertColumns, kExpertColumns});
  parameters["fc.bias"] = Normal(41, {kExpertColumns});
  return parameters;
}

/// Whether the layer between is of activations: it takes any columns, and any number of rows.
bool HasActivations(const ParallelSpec& parallel) {
  return parallel.tensor_parallel > 1 || parallel.expert_parallel == 3;
}

/// On tensor-parallel ranks the first experts are column-parallel and the last row-parallel.
SessionSpec OnRanks(SessionSpec spec, const ParallelSpec& parallel) {
  spec.parallel = parallel;
  if (parallel.size() == 1) spec.parallel.reset();
  if (HasActivations(parallel)) spec.layers[1] = ExpertLayers("bf16").layers[1];
  if (parallel.tensor_parallel == 1) return spec;
  spec.layers.front().spec.parallel_mode = ParallelMode::kColumn;
  spec.layers.back().spec.parallel_mode = ParallelMode::kRow;
  return spec;
}
std::map<std::string, Tensor> ParametersOn(const ParallelSpec& parallel) {
  return HasActivations(parallel) ? ExpertParameters() : MixedParameters();
}

class ShardedExperts : public ::testing::TestWithParam<SessionCase> {
 protected:
  static SessionSpec SpecOn(const ParallelSpec& parallel) {
    SessionSpec spec = MixedLayers(GetParam().recipe);
    GetParam().Set(spec);
    return OnRanks(std::move(spec), parallel);
  }
  std::unique_ptr<Session> Open(const ParallelSpec& parallel) {
    return OpenRanks(*engine_, SpecOn(parallel), ParametersOn(parallel));
  }
  /// The ways in which the ranks' copies can divide what they have.
  static std::vector<ParallelSpec> Divisions(const ParallelSpec& parallel) {
    std::vector<ParallelSpec> divisions = {Sharded(parallel)};
    if (parallel == Experts(2, 2)) divisions.push_back(Sharded(parallel, false));
    if (GetParam().masters == Masters::kF32) divisions.push_back(WithFragments(parallel));
    return divisions;
  }
  std::unique_ptr<Engine> engine_ = MakeCpuEngine({.threads = 1});
};

TEST_P(ShardedExperts, HaveTheBitsOfWholeCopies) {
  // Of three ranks in a copy the first has two experts and the others one each.
  std::vector<ParallelSpec> all = {Experts(2, 2), Ranks(2, 2, true)};
  if (GetParam().weights == WeightStorage::kHighPrecision) all.push_back(Experts(3, 2));
  for (const ParallelSpec& parallel : all) {
    for (const ParallelSpec& division : Divisions(parallel)) {
      SCOPED_TRACE(division.Label());
      const auto whole = Open(parallel), session = Open(division);
      ASSERT_TRUE(whole != nullptr && session != nullptr);
      ExpectSameFiles(*whole, *session);
      TrainExperts(*whole, *session, 100);
      ExpectSameParameters(*whole, *session, ParametersOn(parallel));
      ExpectSameFiles(*whole, *session);
      EXPECT_LT(session->bytes(), whole->bytes());
    }
  }
}

void TrainToAnUpdate(Session& session, uint64_t seed) {
  PassExperts(session, seed);
  ASSERT_TRUE(session.Optimize({}, nullptr).ok());
}

TEST_P(ShardedExperts, CheckpointsAreTheSameBytesOnFourCopiesTwoOneAndFourAgain) {
  ExpectSameCheckpointsElsewhere(
      *engine_,
      {SpecOn(Sharded(Experts(1, 4))), SpecOn(Sharded(Experts(1, 2))), SpecOn(Experts(1, 1)),
       SpecOn(Sharded(Experts(2, 2))), SpecOn(Experts(4, 1)), SpecOn(Sharded(Experts(1, 4)))},
      MixedParameters(), TrainToAnUpdate);
  if (GetParam().masters != Masters::kF32) return;
  ExpectSameCheckpointsElsewhere(
      *engine_,
      {SpecOn(WithFragments(Experts(1, 4))), SpecOn(WithFragments(Experts(1, 2))),
       SpecOn(Experts(1, 1)), SpecOn(WithFragments(Experts(2, 2))), SpecOn(Sharded(Experts(2, 4))),
       SpecOn(WithFragments(Experts(1, 4)))},
      MixedParameters(), TrainToAnUpdate);
}

constexpr auto kQuantized = WeightStorage::kQuantized;
INSTANTIATE_TEST_SUITE_P(
    Sessions, ShardedExperts,
    ::testing::Values(
        SessionCase{.name = "Bf16", .recipe = "bf16"},
        SessionCase{.name = "CurrentMainGrads", .recipe = "fp8_current", .main_grads = true},
        SessionCase{.name = "QuantizedCurrent", .recipe = "fp8_current", .weights = kQuantized},
        SessionCase{.name = "QuantizedDelayedMainGrads",
                    .recipe = "fp8_delayed",
                    .weights = kQuantized,
                    .main_grads = true},
        SessionCase{.name = "QuantizedBlock", .recipe = "fp8_block", .weights = kQuantized},
        SessionCase{.name = "QuantizedMxfp8", .recipe = "mxfp8", .weights = kQuantized},
        SessionCase{.name = "QuantizedMxfp8Remainder",
                    .recipe = "mxfp8",
                    .weights = kQuantized,
                    .masters = Masters::kBf16Remainder},
        SessionCase{.name = "Nvfp4", .recipe = "nvfp4"},
        SessionCase{.name = "QuantizedNvfp4", .recipe = "nvfp4", .weights = kQuantized}),
    NameOfCase);

// No other ranks as a reference: where no sum is rounded, one rank's bits.
class ExactShardedExperts : public ::testing::TestWithParam<const char*> {};

TEST_P(ExactShardedExperts, HaveTheBitsOfOneRank) {
  const auto engine = MakeCpuEngine({.threads = 1});
  SessionSpec spec = MixedLayers(GetParam());
  spec.main_grads = true;  // In fp32, which no sum of these tensors leaves.
  constexpr uint16_t kHalf = 0x3f00;
  std::map<std::string, Tensor> parameters = ExactExperts();
  parameters["fc.weight"] = Permutation(37, kHalf);
  for (const ParallelSpec& parallel :
       {Sharded(Experts(1, 2)), Sharded(Experts(2, 2)), Sharded(Experts(2, 4)),
        WithFragments(Experts(1, 4)), WithFragments(Experts(2, 2)), WithFragments(Experts(4, 2))}) {
    SCOPED_TRACE(parallel.Label());
    ExpectExactlyAsOne(*engine, spec, OnRanks(spec, parallel), parameters);
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, ExactShardedExperts,
                         ::testing::Values("bf16", "fp8_delayed", "fp8_current:power_2_scales=true",
                                           "mxfp8"));

class ShardedExpertStates : public ::testing::Test {
 protected:
  std::map<std::string, Shape> ShapesOf(Session& session) {
    std::map<std::string, Shape> shapes;
    const auto tensors = session.Describe(nullptr);
    EXPECT_TRUE(tensors.ok()) << tensors.status();
    if (!tensors.ok()) return shapes;
    for (const StateTensor& tensor : *tensors) shapes[tensor.name] = tensor.shape;
    return shapes;
  }
  std::unique_ptr<Engine> engine_ = MakeCpuEngine({.threads = 1});
};

// Rank 0 of 2 x 2 has experts 0 and 1 as rank 2 has, and all four have the linear layer.
TEST_F(ShardedExpertStates, RowsAreDividedOverTheRanksThatHaveTheExpert) {
  const auto session =
      OpenRanks(*engine_, OnRanks(MixedLayers("bf16"), Sharded(Experts(2, 2))), MixedParameters());
  ASSERT_NE(session, nullptr);
  const std::map<std::string, Shape> shapes = ShapesOf(*session);
  const Shape half = {kExpertColumns / 2, kExpertColumns};
  const Shape quarter = {kExpertColumns / 4, kExpertColumns};
  for (const char* name : {"rank0.fc1.weight.1", "rank2.fc1.weight.1", "rank1.fc2.weight.3.master",
                           "rank3.fc2.weight.2.exp_avg"}) {
    EXPECT_EQ(shapes.at(name), half) << name;
  }
  for (const char* name : {"rank0.fc.weight", "rank3.fc.weight.exp_avg_sq"}) {
    EXPECT_EQ(shapes.at(name), quarter) << name;
  }
  EXPECT_EQ(shapes.at("rank0.fc1.bias.0"), Shape({kExpertColumns}));
  EXPECT_EQ(shapes.count("rank0.fc1.weight.2"), 0u);
}

// Blocks of 128 rows: the first copy has all of a weight, the second takes part without any.
TEST_F(ShardedExpertStates, ACopyMayHaveNoRowsOfAnExpert) {
  SessionSpec spec = MixedLayers("fp8_block");
  spec.weights = kQuantized;
  const auto session =
      OpenRanks(*engine_, OnRanks(spec, Sharded(Experts(2, 2))), MixedParameters());
  ASSERT_NE(session, nullptr);
  const std::map<std::string, Shape> shapes = ShapesOf(*session);
  EXPECT_EQ(shapes.at("rank0.fc1.weight.1.master"), Shape({kExpertColumns, kExpertColumns}));
  EXPECT_EQ(shapes.at("rank2.fc1.weight.1.master"), Shape({0, kExpertColumns}));
}

// A flat buffer of a rank's experts is cut in two, one of the linear layer's parameters in four.
// Rank 0 of three in a copy has two experts, the others one.
TEST_F(ShardedExpertStates, ExpertsAndOtherLayersHaveFlatBuffersOfTheirOwn) {
  SessionSpec spec = MixedLayers("bf16");
  spec.parallel = WithFragments(Experts(3, 2));
  const auto session = OpenRanks(*engine_, spec, MixedParameters());
  ASSERT_NE(session, nullptr);
  const std::map<std::string, Shape> shapes = ShapesOf(*session);
  const int64_t weight = kExpertColumns * kExpertColumns, bias = kExpertColumns;
  // fc1's weights, fc2's, fc1's biases: of rank 0 two experts each, so four weights and two biases.
  EXPECT_EQ(shapes.at("rank0.fc1.weight.0.master"), Shape({weight}));
  EXPECT_EQ(shapes.at("rank0.fc2.weight.0.master"), Shape({bias}));
  EXPECT_EQ(shapes.at("rank3.fc2.weight.0.exp_avg"), Shape({weight - bias}));
  EXPECT_EQ(shapes.at("rank0.fc1.bias.1.master"), Shape({0}));
  EXPECT_EQ(shapes.at("rank3.fc1.bias.1.master"), Shape({bias}));
  // Of rank 1 one expert: two weights and a bias; the cut falls half a bias behind the first.
  EXPECT_EQ(shapes.at("rank1.fc2.weight.2.master"), Shape({bias / 2}));
  EXPECT_EQ(shapes.at("rank4.fc2.weight.2.master"), Shape({weight - bias / 2}));
  // The linear layer over all six ranks.
  const int64_t sixth = (weight + bias + 5) / 6;
  EXPECT_EQ(shapes.at("rank0.fc.weight.master"), Shape({sixth}));
  EXPECT_EQ(shapes.at("rank0.fc1.weight.0"), Shape({kExpertColumns, kExpertColumns}));
}

std::vector<std::string> StagesOf(const RankStepRecords& rank) {
  std::vector<std::string> stages;
  for (const TimedStage& stage : rank.records.stages) stages.push_back(stage.stage);
  return stages;
}

// By its number in the whole layer; again where it is needed again, and for no other's sake.
TEST_F(ShardedExpertStates, StagesNameTheExpertOfTheWholeLayer) {
  for (const bool reshards : {true, false}) {
    SessionSpec spec = OnRanks(MixedLayers("mxfp8"), Sharded(Experts(2, 2), reshards));
    spec.weights = kQuantized;
    const auto session = OpenRanks(*engine_, spec, MixedParameters());
    ASSERT_NE(session, nullptr);
    const auto forward = [&](const std::string& microbatch) {
      ForwardStep step;
      step.microbatch = microbatch;
      step.x = ExpertBatch(1);
      return session->Forward(step, nullptr);
    };
    const auto y = forward("a"), second = forward("b");
    ASSERT_TRUE(y.ok() && second.ok()) << y.status() << second.status();
    EXPECT_THAT(StagesOf(y->ranks[1]), Contains("fc1.all-gather weight.2"));
    EXPECT_THAT(StagesOf(y->ranks[3]), Contains("fc2.all-gather weight.3"));
    EXPECT_THAT(StagesOf(y->ranks[1]), Not(Contains("fc1.all-gather weight.0")));
    EXPECT_THAT(StagesOf(y->ranks[1]), Not(Contains("fc1.all-gather weight.4")));
    EXPECT_THAT(StagesOf(y->ranks[1]), Contains("fc.all-gather weight"));
    ASSERT_TRUE(session->Backward({"a", ExpertBatch(2)}, nullptr).ok());
    const auto dx = session->Backward({"b", ExpertBatch(3)}, nullptr);
    ASSERT_TRUE(dx.ok()) << dx.status();
    const std::vector<std::string> stages = StagesOf(dx->ranks[3]);
    EXPECT_THAT(stages, Contains("fc1.add dw.3"));
    EXPECT_THAT(stages, Not(Contains("fc1.add dw.5")));
    if (reshards) {
      EXPECT_THAT(stages, Contains("fc1.all-gather weight.3"));
    } else {
      EXPECT_THAT(stages, Not(Contains("fc1.all-gather weight.3")));
    }
  }
}

// Between steps the rows are all that a rank keeps, those that wait for a backward included.
TEST_F(ShardedExpertStates, WhatWaitsForABackwardIsRows) {
  SessionSpec spec = OnRanks(MixedLayers("mxfp8"), Sharded(Experts(1, 4)));
  spec.weights = kQuantized;
  const auto session = OpenRanks(*engine_, spec, MixedParameters());
  spec.parallel->reshard_after_forward = false;
  const auto keeping = OpenRanks(*engine_, spec, MixedParameters());
  ASSERT_TRUE(session != nullptr && keeping != nullptr);
  ForwardStep step;
  step.x = ExpertBatch(1);
  const int64_t before = session->bytes(), before_keeping = keeping->bytes();
  ASSERT_TRUE(session->Forward(step, nullptr).ok());
  ASSERT_TRUE(keeping->Forward(step, nullptr).ok());
  // Codes of eight experts' weights and of one other, in two directions, on four ranks, of which a
  // rank has a quarter in its rows; an E8M0 scale for 32 of them.
  const int64_t whole = 9 * kExpertColumns * kExpertColumns * 33 / 32;
  EXPECT_EQ((keeping->bytes() - before_keeping) - (session->bytes() - before), 4 * whole * 2);
}

TEST_F(ShardedExpertStates, AFailedStepLeavesAllAsTheyWere) {
  for (const ParallelSpec& parallel :
       {Sharded(Experts(2, 2)), WithFragments(Experts(2, 2)), Sharded(Ranks(2, 2, true))}) {
    SCOPED_TRACE(parallel.Label());
    const SessionSpec spec = OnRanks(MixedLayers("fp8_current"), parallel);
    const auto session = OpenRanks(*engine_, spec, ParametersOn(parallel));
    const auto undisturbed = OpenRanks(*engine_, spec, ParametersOn(parallel));
    ASSERT_TRUE(session != nullptr && undisturbed != nullptr);
    TrainToAnUpdate(*session, 1);
    TrainToAnUpdate(*undisturbed, 1);
    ForwardStep step;
    step.x = Normal(1, {kBatch, kExpertColumns / 2});
    EXPECT_FALSE(session->Forward(step, nullptr).ok());
    EXPECT_FALSE(session->Optimize({}, nullptr).ok());  // Without gradients.
    ExpectSameFiles(*undisturbed, *session);
    TrainToAnUpdate(*session, 5);
    TrainToAnUpdate(*undisturbed, 5);
    ExpectSameFiles(*undisturbed, *session);
  }
}

TEST_F(ShardedExpertStates, RefusalsNameFieldValueAndRule) {
  const auto refusal = [&](const std::function<void(SessionSpec&)>& change) {
    SessionSpec spec = MixedLayers("bf16");
    spec.parallel = Sharded(Experts(2, 2));
    change(spec);
    const absl::Status status =
        OpenSession(*engine_, spec, MixedParameters(), nullptr, nullptr).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal([](SessionSpec& spec) { spec.parallel = Sharded(Experts(4)); }),
              HasSubstr("parallel.fully_sharded is true: fully_sharded needs data_parallel > 1"));
  EXPECT_THAT(
      refusal([](SessionSpec& spec) { spec.parallel = WithFragments(Experts(4)); }),
      HasSubstr(
          "parallel.distributed_optimizer is true: distributed_optimizer needs data_parallel > 1"));
  EXPECT_THAT(refusal([](SessionSpec& spec) { spec.parallel->distributed_optimizer = true; }),
              HasSubstr("parallel.distributed_optimizer is true: fully_sharded copies divide"));
  EXPECT_THAT(refusal([](SessionSpec& spec) {
                spec.parallel = WithFragments(Experts(2, 2));
                spec.masters = Masters::kBf16Remainder;
              }),
              HasSubstr("masters is bf16_remainder: parallel.distributed_optimizer needs f32"));
  // The rule of the format, of an expert by name.
  EXPECT_THAT(refusal([](SessionSpec& spec) {
                spec.recipe = *Recipe::Parse("nvfp4:disable_2d_quantization=true");
                spec.weights = kQuantized;
              }),
              AllOf(HasSubstr("layers[fc1].fc1.weight."),
                    HasSubstr(".block_dim is 1: sharded weights of nvfp4 have tiles")));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
