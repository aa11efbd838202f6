// Fully sharded copies against copies that have all of every weight: the same bits of everything,
// and checkpoints of the same bytes, of 4 copies, 2, 1 and 4 again too; what a rank holds between
// steps; weights that an update changes under a forward in flight; what is refused.
#include <gmock/gmock.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "tests/training/divided_sessions.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::Contains;
using ::testing::HasSubstr;

constexpr int64_t kBatch = 128, kNarrow = 128, kWide = 512;

class FullySharded : public DividedSessions<kNarrow, kWide> {};

Tensor Batch(uint64_t seed) { return Normal(seed, {kBatch, kNarrow}); }

ForwardStep ForwardOn(uint64_t seed, const std::string& microbatch = "0") {
  ForwardStep step;
  step.microbatch = microbatch;
  step.x = Batch(seed);
  return step;
}

ParallelSpec Sharded(ParallelSpec parallel, bool reshards = true) {
  parallel.fully_sharded = true;
  parallel.reshard_after_forward = reshards;
  return parallel;
}

/// Both take the same steps: microbatches in flight over an update, a recomputation, a weight
/// gradient that is deferred.
void Train(Session& a, Session& b, uint64_t seed) {
  const auto forward = [&](const std::string& microbatch, bool recompute, bool defer = false) {
    ExpectSameStep(a, b, [&](Session& session) {
      ForwardStep step = ForwardOn(seed++ / 2, microbatch);
      step.recompute = recompute;
      step.defer_wgrad = defer;
      return session.Forward(step, nullptr);
    });
  };
  const auto backward = [&](const std::string& microbatch) {
    ExpectSameStep(a, b, [&](Session& session) {
      return session.Backward({microbatch, Batch(50 + seed++ / 2)}, nullptr);
    });
  };
  const auto optimize = [&] {
    ExpectSameStep(a, b, [](Session& session) { return session.Optimize({}, nullptr); });
  };
  forward("a", false);
  ExpectSameStep(a, b, [](Session& session) {
    ForwardStep evaluation = ForwardOn(7, "e");
    evaluation.train = false;
    return session.Forward(evaluation, nullptr);
  });
  forward("b", false, true);
  forward("c", true);
  backward("a");
  optimize();  // The others are of the weights before it.
  backward("c");
  backward("b");
  ExpectSameStep(a, b, [](Session& session) { return session.Wgrad(nullptr); });
  optimize();
}

TEST_P(FullySharded, HasTheBitsOfWholeCopies) {
  for (const ParallelSpec& parallel : {Ranks(1, 2), Ranks(1, 4), Ranks(2, 2, true)}) {
    for (const bool reshards : {true, false}) {
      // Of four copies some have no rows of fc2.weight where blocks are of 128.
      if (parallel.data_parallel == 4 && !reshards) continue;
      const ParallelSpec sharded = Sharded(parallel, reshards);
      SCOPED_TRACE(sharded.Label());
      const auto whole = Open(SpecOf(parallel));
      const auto session = Open(SpecOf(sharded));
      ASSERT_TRUE(whole != nullptr && session != nullptr);
      ExpectSameFiles(*whole, *session);
      Train(*whole, *session, 100);
      ExpectSameParameters(*whole, *session, Parameters());
      ExpectSameFiles(*whole, *session);
      EXPECT_LT(session->bytes(), whole->bytes() * 2 / 3);
      // Each goes on from the other's checkpoint.
      const auto file = session->Checkpoint(nullptr), of_whole = whole->Checkpoint(nullptr);
      ASSERT_TRUE(file.ok() && of_whole.ok()) << file.status() << of_whole.status();
      auto as_whole = RestoreSession(*engine_, SpecOf(parallel), *file, nullptr, nullptr);
      auto as_sharded = RestoreSession(*engine_, SpecOf(sharded), *of_whole, nullptr, nullptr);
      ASSERT_TRUE(as_whole.ok() && as_sharded.ok()) << as_whole.status() << as_sharded.status();
      Train(**as_whole, **as_sharded, 200);
      ExpectSameFiles(**as_whole, **as_sharded);
    }
  }
}

/// On `copies` with rows each; on one rank where there is 1.
SessionSpec OnCopies(SessionSpec spec, int copies) {
  if (copies == 1) return OnOneRank(std::move(spec));
  spec.parallel = Sharded(Ranks(1, copies));
  return spec;
}

TEST_P(FullySharded, CheckpointsAreTheSameBytesOnFourCopiesTwoOneAndFourAgain) {
  const SessionSpec spec = SpecOf(Sharded(Ranks(1, 4)));
  const auto train = [](Session& session, uint64_t seed) {
    const auto y = session.Forward(ForwardOn(seed), nullptr);
    const auto dx = session.Backward({"0", Batch(seed + 1)}, nullptr);
    const auto updated = session.Optimize({}, nullptr);
    ASSERT_TRUE(y.ok() && dx.ok() && updated.ok()) << y.status() << dx.status();
  };
  ExpectSameCheckpointsOnOtherCopies([&](int copies) { return OnCopies(spec, copies); }, train);
}

constexpr auto kQuantized = WeightStorage::kQuantized;
INSTANTIATE_TEST_SUITE_P(
    Sessions, FullySharded,
    ::testing::Values(
        SessionCase{.name = "Bf16", .recipe = "bf16"},
        SessionCase{.name = "CurrentMainGrads", .recipe = "fp8_current", .main_grads = true},
        SessionCase{.name = "Delayed", .recipe = "fp8_delayed"},
        SessionCase{.name = "QuantizedDelayed", .recipe = "fp8_delayed", .weights = kQuantized},
        SessionCase{.name = "QuantizedMxfp8Remainder",
                    .recipe = "mxfp8",
                    .weights = kQuantized,
                    .masters = Masters::kBf16Remainder,
                    .main_grads = true},
        SessionCase{.name = "QuantizedBlock", .recipe = "fp8_block", .weights = kQuantized},
        SessionCase{
            .name = "QuantizedMxfp8Mlp", .recipe = "mxfp8", .weights = kQuantized, .is_mlp = true},
        SessionCase{.name = "QuantizedHybrid",
                    .recipe = "hybrid:fprop=mxfp8,dgrad=fp8_block,wgrad=mxfp8",
                    .weights = kQuantized}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(Amaxes, FullySharded,
                         ::testing::Values(SessionCase{.name = "QuantizedCurrentNoMasters",
                                                       .recipe = "fp8_current",
                                                       .weights = kQuantized,
                                                       .masters = Masters::kNone},
                                           SessionCase{.name = "QuantizedNvfp4",
                                                       .recipe = "nvfp4",
                                                       .weights = kQuantized}),
                         [](const auto& info) { return info.param.name; });

class FullyShardedStates : public ::testing::Test {
 protected:
  std::unique_ptr<Session> Open(const SessionSpec& spec) {
    return OpenRanks(*engine_, spec, {{"fc1.weight", Normal(3, {kWide, kNarrow})}});
  }
  std::unique_ptr<Engine> engine_ = MakeCpuEngine({.threads = 1});
};

TEST_F(FullyShardedStates, RanksHoldRowsAndGatherForEachPass) {
  SessionSpec spec = LinearLayers("mxfp8", {ParallelMode::kNone});
  spec.weights = kQuantized;
  spec.parallel = Sharded(Ranks(1, 2));
  const auto session = Open(spec);
  const auto rows_of = [&](const std::string& name) {
    const auto part = session->Find(name, nullptr);
    EXPECT_TRUE(part.ok()) << part.status();
    return part.ok() ? part->shape()[0] : -1;
  };
  for (const char* name : {"rank1.fc1.weight.quantized.rowwise_data", "rank1.fc1.weight.master",
                           "rank1.fc1.weight.exp_avg"}) {
    EXPECT_EQ(rows_of(name), kWide / 2) << name;
  }
  EXPECT_EQ(rows_of("rank1.fc1.weight.quantized.columnwise_scale_inv"), kWide / 32 / 2);
  const auto stages_of = [](const absl::StatusOr<SessionStepResult>& result) {
    std::vector<std::string> stages;
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return stages;
    for (const TimedStage& stage : result->ranks[1].records.stages) stages.push_back(stage.stage);
    return stages;
  };
  EXPECT_THAT(stages_of(session->Forward(ForwardOn(1), nullptr)),
              Contains("fc1.all-gather weight"));
  // What waits for the backward are this rank's rows.
  EXPECT_EQ(rows_of("rank1.in_flight.0.fc1.weight.columnwise_data"), kWide / 2);
  EXPECT_THAT(stages_of(session->Backward({"0", Normal(2, {kBatch, kWide})}, nullptr)),
              Contains("fc1.all-gather weight"));
}

// Codes that are turned after their gather are gathered once, scales and all.
TEST_F(FullyShardedStates, APassGathersAWeightOnce) {
  for (const char* recipe : {"fp8_current", "mxfp8", "hybrid:fprop=mxfp8,dgrad=fp8_block"}) {
    SessionSpec spec = LinearLayers(recipe, {ParallelMode::kNone});
    spec.weights = kQuantized;
    for (const bool reshards : {true, false}) {
      spec.parallel = Sharded(Ranks(1, 2), reshards);
      SCOPED_TRACE(recipe + spec.parallel->Label());
      const auto session = Open(spec);
      const auto gathers = [](const absl::StatusOr<SessionStepResult>& result) {
        int count = 0;
        EXPECT_TRUE(result.ok()) << result.status();
        if (!result.ok()) return -1;
        for (const TimedStage& stage : result->ranks[0].records.stages) {
          count += stage.stage == "fc1.all-gather weight";
        }
        return count;
      };
      EXPECT_EQ(gathers(session->Forward(ForwardOn(1), nullptr)), 1);
      EXPECT_EQ(gathers(session->Backward({"0", Normal(2, {kBatch, kWide})}, nullptr)),
                reshards ? 1 : 0);
    }
  }
}

// What waits for a backward is counted, rows that an update has replaced included, and nothing of
// it stays.
TEST_F(FullyShardedStates, BytesAreThoseOfRows) {
  SessionSpec spec = LinearLayers("mxfp8", {ParallelMode::kNone});
  spec.weights = kQuantized;
  spec.masters = Masters::kNone;
  spec.optimizer = {};
  spec.parallel = Sharded(Ranks(1, 2));
  const auto session = Open(spec);
  constexpr int64_t kCodes = kWide * kNarrow;
  // Codes and a scale for 32 of them, in both directions; 2 copies.
  const int64_t weights = 2 * (kCodes + kCodes / 32);
  EXPECT_EQ(session->bytes(), weights);
  ASSERT_TRUE(session->Forward(ForwardOn(1), nullptr).ok());
  // Of x the columnwise codes; of the weight nothing that is not held already.
  constexpr int64_t kInput = kBatch * kNarrow;
  EXPECT_EQ(session->bytes(), weights + kInput + kInput / 32);
  ASSERT_TRUE(session->Offload("0", nullptr).ok());
  EXPECT_EQ(session->bytes(), 2 * weights + kInput + kInput / 32);
  ASSERT_TRUE(session->Reload("0", nullptr).ok());
}

// Forward gathers the weights of all layers at once, backward those of a layer at a time; a
// recomputation is a forward. Nothing of it is there after the step.
TEST_F(FullyShardedStates, WhatPassesGatherIsCounted) {
  constexpr int64_t kWeight = kWide * kNarrow;
  const std::pair<const char*, int64_t> cases[] = {
      {"bf16", 2 * kWeight},
      // Codes and scales, of which a forward that trains gathers both directions.
      {"mxfp8", kWeight + kWeight / 32}};
  for (const auto& [recipe, direction] : cases) {
    for (const bool recompute : {false, true}) {
      SCOPED_TRACE(std::string(recipe) + (recompute ? " recomputed" : ""));
      SessionSpec spec = LinearLayers(recipe, {ParallelMode::kNone, ParallelMode::kNone});
      const bool is_codes = std::string(recipe) == "mxfp8";
      if (is_codes) spec.weights = kQuantized;
      spec.parallel = Sharded(Ranks(1, 2));
      const auto session = OpenRanks(*engine_, spec,
                                     {{"fc1.weight", Normal(3, {kWide, kNarrow})},
                                      {"fc2.weight", Normal(5, {kNarrow, kWide})}});
      ASSERT_NE(session, nullptr);
      ForwardStep step = ForwardOn(1);
      step.recompute = recompute;
      const auto forward = session->Forward(step, nullptr);
      const auto backward = session->Backward({"0", Normal(2, {kBatch, kNarrow})}, nullptr);
      ASSERT_TRUE(forward.ok() && backward.ok()) << forward.status() << backward.status();
      for (size_t rank = 0; rank < 2; ++rank) {
        const GatheredRecord& of_forward = forward->ranks[rank].records.gathered;
        const GatheredRecord& of_backward = backward->ranks[rank].records.gathered;
        // What a forward saved of a weight, and its backward gathers, are both copies.
        const int64_t weight = direction * (is_codes ? 2 : 1);
        EXPECT_EQ(of_forward.peak, 2 * weight);
        EXPECT_EQ(of_backward.peak, recompute ? 2 * weight : weight);
        EXPECT_EQ(of_forward.held, 0);
        EXPECT_EQ(of_backward.held, 0);
      }
    }
  }
}

// Where rows divide evenly, whatever order the owners of rows have.
TEST_F(FullyShardedStates, GradientsAreSummedByTheProfile) {
  std::vector<Tensor> weights;
  for (const char* profile : {"rank_asc_fp32", "nccl_ring"}) {
    for (const bool is_sharded : {false, true}) {
      SessionSpec spec = LinearLayers("bf16", {ParallelMode::kNone});
      spec.parallel = is_sharded ? Sharded(Ranks(1, 4)) : Ranks(1, 4);
      spec.parallel->profile = *ParseReductionProfile(profile);
      const auto session = Open(spec);
      ASSERT_TRUE(session->Forward(ForwardOn(1), nullptr).ok());
      ASSERT_TRUE(session->Backward({"0", Normal(2, {kBatch, kWide})}, nullptr).ok());
      ASSERT_TRUE(session->Optimize({}, nullptr).ok());
      weights.push_back(*session->Find("rank1.fc1.weight.master", nullptr));
      if (!is_sharded) {
        weights.back() = *weights.back().RowRange(kWide / 4, kWide / 4);
      }
    }
  }
  EXPECT_TRUE(SameBits(weights[0], weights[1]));
  EXPECT_TRUE(SameBits(weights[2], weights[3]));
  EXPECT_FALSE(SameBits(weights[0], weights[2]));
}

// Where no forward reduces what an update noted, its scale is wrong on every rank but one.
TEST_F(FullyShardedStates, AmaxesOfWeightsAreOfAllRows) {
  SessionSpec spec = LinearLayers("fp8_delayed:reduce_amax=false", {ParallelMode::kNone});
  spec.weights = kQuantized;
  spec.parallel = Ranks(1, 2);
  const auto whole = Open(spec);
  spec.parallel = Sharded(Ranks(1, 2));
  const auto session = Open(spec);
  for (const uint64_t seed : {1, 2, 3}) {
    ExpectSameStep(*whole, *session,
                   [&](Session& each) { return each.Forward(ForwardOn(seed), nullptr); });
    ExpectSameStep(*whole, *session, [&](Session& each) {
      return each.Backward({"0", Normal(seed, {kBatch, kWide})}, nullptr);
    });
    ExpectSameStep(*whole, *session, [](Session& each) { return each.Optimize({}, nullptr); });
  }
  ExpectSameFiles(*whole, *session);
}

TEST_F(FullyShardedStates, MicrobatchesGoAwayAndRulesChange) {
  SessionSpec spec = LinearLayers("fp8_current", {ParallelMode::kNone});
  spec.weights = kQuantized;
  spec.parallel = Ranks(1, 2);
  const auto whole = Open(spec);
  spec.parallel = Sharded(Ranks(1, 2));
  const auto session = Open(spec);
  const auto both = [&](const std::function<absl::Status(Session&)>& step) {
    for (Session* each : {whole.get(), session.get()}) {
      const absl::Status status = step(*each);
      EXPECT_TRUE(status.ok()) << status;
    }
  };
  both([](Session& each) { return each.Forward(ForwardOn(1), nullptr).status(); });
  both([](Session& each) { return each.Offload("0", nullptr); });
  both([](Session& each) { return each.Reload("0", nullptr); });
  ExpectSameStep(*whole, *session, [](Session& each) {
    return each.Backward({"0", Normal(2, {kBatch, kWide})}, nullptr);
  });
  both([](Session& each) {
    return each.ChangeRecipe(*Recipe::Parse("fp8_current:power_2_scales=true"));
  });
  ExpectSameFiles(*whole, *session);
  ExpectSameStep(*whole, *session, [](Session& each) { return each.Optimize({}, nullptr); });
  ExpectSameFiles(*whole, *session);
}

TEST_F(FullyShardedStates, Refusals) {
  const auto refusal = [&](const SessionSpec& spec) {
    const absl::Status status =
        OpenSession(*engine_, spec, {{"fc1.weight", Normal(3, {kWide, kNarrow})}}, nullptr, nullptr)
            .status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  SessionSpec spec = LinearLayers("bf16", {ParallelMode::kColumn});
  spec.parallel = Sharded(Ranks(2));
  EXPECT_THAT(refusal(spec), HasSubstr("parallel.fully_sharded is true: fully_sharded needs"));
  spec = LinearLayers("bf16", {ParallelMode::kNone});
  spec.parallel = Ranks(1, 2);
  spec.parallel->reshard_after_forward = false;
  EXPECT_THAT(refusal(spec), HasSubstr("parallel.reshard_after_forward is false"));
  spec = LinearLayers("fp8_block:w_block_dim=1", {ParallelMode::kNone});
  spec.weights = kQuantized;
  spec.parallel = Sharded(Ranks(1, 2));
  EXPECT_THAT(refusal(spec), HasSubstr("block_dim is 1: sharded weights of fp8_block have tiles"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
