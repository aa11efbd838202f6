// Layers whose communication is hidden behind their GEMMs against the same layers that gather first
// and reduce last: every output, every saved tensor, every recorded GEMM, byte for byte.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/layer/layer_step.h"
#include "tests/base/exhaustive.h"
#include "tests/engine/tensor_values.h"
#include "tests/layer/overlap_cases.h"

namespace quantgate {
namespace QG_TEST_FILE {

const char* const kRecipes[] = {"bf16", "fp8_current", "fp8_delayed", "mxfp8"};

/// Each GEMM under the same words, scales too.
void ExpectSameRecords(const LayerResult& subject, const LayerResult& reference) {
  ExpectSameGemms(subject, reference);
  for (size_t i = 0; i < subject.gemms.size(); ++i) {
    const GemmRecord& one = subject.gemms[i];
    const GemmRecord& other = reference.gemms[i];
    EXPECT_EQ(one.a, other.a);
    EXPECT_EQ(one.result.arithmetic, other.result.arithmetic);
    EXPECT_EQ(GemmText(one.desc), GemmText(other.desc));
    ASSERT_EQ(one.desc.a.scale_inv.has_value(), other.desc.a.scale_inv.has_value());
    if (!one.desc.a.scale_inv.has_value()) continue;
    EXPECT_TRUE(SameBits(one.desc.a.scale_inv, other.desc.a.scale_inv)) << other.output;
    EXPECT_TRUE(SameBits(one.desc.b.scale_inv, other.desc.b.scale_inv)) << other.output;
  }
}

void ExpectSameResults(const std::vector<LayerResult>& subjects,
                       const std::vector<LayerResult>& references) {
  ASSERT_EQ(subjects.size(), references.size());
  for (size_t rank = 0; rank < subjects.size(); ++rank) {
    SCOPED_TRACE(absl::StrCat("rank ", rank));
    const LayerResult& subject = subjects[rank];
    const LayerResult& reference = references[rank];
    ExpectSameResult(subject, reference);
    ExpectSameRecords(subject, reference);
    EXPECT_TRUE(subject.timelines.empty());
  }
}

void ExpectSameWithAndWithout(const LayerRequest& whole, const std::string& text,
                              const ParallelSetup& setup) {
  const Recipe recipe = *Recipe::Parse(text);
  ExpectSameResults(RunRanks(whole, recipe, setup), RunRanks(whole, recipe, WithoutOverlap(setup)));
}

/// On two ranks and on four; of layers whose blocks make them large, on four where IsExhaustive.
void ExpectEveryWay(const std::function<LayerRequest(const std::string&, int)>& request_of,
                    bool is_large = false) {
  for (const char* text : kRecipes) {
    const Recipe recipe = *Recipe::Parse(text);
    const bool has_blocks = UnitOf(text) == 128;
    for (const int size : {2, 4}) {
      if (size == 4 && is_large && has_blocks && !IsExhaustive()) continue;
      const LayerRequest whole = request_of(text, size);
      std::map<std::string, std::vector<LayerResult>> references;  // By reduction profile.
      for (const OverlapWay& way : OverlapWays(has_blocks)) {
        SCOPED_TRACE(absl::StrCat(text, ", ", size, " ranks, ", way.name));
        const ParallelSetup setup = SetupOf(way, size);
        std::vector<LayerResult>& reference = references[way.profile];
        if (reference.empty()) reference = RunRanks(whole, recipe, WithoutOverlap(setup));
        ExpectSameResults(RunRanks(whole, recipe, setup), reference);
      }
    }
  }
}

TEST(OverlappedLinear, OfColumnsHasTheBitsOfGatheringFirst) {
  ExpectEveryWay([](const std::string& recipe, int size) {
    return LinearOf(ParallelMode::kColumn, recipe, size);
  });
}

TEST(OverlappedLinear, OfRowsHasTheBitsOfReducingLast) {
  ExpectEveryWay([](const std::string& recipe, int size) {
    return LinearOf(ParallelMode::kRow, recipe, size);
  });
}

TEST(OverlappedLayerNormLinear, HasTheBitsOfGatheringFirst) {
  ExpectEveryWay([](const std::string& recipe, int size) {
    return NormLayerOf(LayerKind::kLayerNormLinear, recipe, size);
  });
}

TEST(OverlappedLayerNormMlp, HasTheBitsOfGatheringFirstAndReducingLast) {
  ExpectEveryWay([](const std::string& recipe, int size) {
    return NormLayerOf(LayerKind::kLayerNormMlp, recipe, size);
  });
}

// What is gathered whole for backward, as GEMMs read it: of a column-parallel layer x for wgrad, of
// a row-parallel one grad_output for dgrad and wgrad, both directions under one scale. A code is a
// byte, the scale an f32.
TEST(OverlappedLinear, CountsWhatIsGatheredAsWithoutOverlap) {
  for (const char* text : {"fp8_current", "fp8_delayed"}) {
    for (const ParallelMode mode : {ParallelMode::kColumn, ParallelMode::kRow}) {
      const LayerRequest request = LinearOf(mode, text, 2);
      const bool is_column = mode == ParallelMode::kColumn;
      const int64_t elements =
          is_column ? request.x.element_count() : 2 * request.grad_output.element_count();
      const ParallelSetup defaults = SetupOf(OverlapWays(false).back(), 2);
      for (const ParallelSetup& setup : {defaults, WithoutOverlap(defaults)}) {
        SCOPED_TRACE(absl::StrCat(text, is_column ? ", column, " : ", row, ",
                                  setup.column_overlap.has_any() ? "overlapped" : "plain"));
        for (const LayerResult& result : RunRanks(request, *Recipe::Parse(text), setup)) {
          EXPECT_EQ(result.gathered.peak, elements + 4);
          EXPECT_EQ(result.gathered.held, 0);
        }
      }
    }
  }
}

TEST(OverlappedAttention, HasTheBitsOfGatheringFirstAndReducingLast) {
  ExpectEveryWay([](const std::string& recipe,
                    int size) { return AttentionLayerOf(LayerKind::kAttention, recipe, size); },
                 /*is_large=*/true);
}

TEST(OverlappedTransformerLayer, HasTheBitsOfGatheringFirstAndReducingLast) {
  ExpectEveryWay(
      [](const std::string& recipe, int size) {
        return AttentionLayerOf(LayerKind::kTransformerLayer, recipe, size);
      },
      /*is_large=*/true);
}

TEST(OverlappedChain, HasTheBitsOfGatheringFirstAndReducingLast) {
  LayerRequest request;
  request.layer.kind = LayerKind::kChain;
  std::vector<OperationSpec>& operations = request.layer.operations;
  operations.resize(3);
  operations[0].name = "up";
  operations[0].parallel_mode = ParallelMode::kColumn;
  operations[1].name = "relu";
  operations[1].kind = OperationKind::kActivation;
  operations[1].activation.kind = ActivationKind::kRelu;
  operations[2].name = "down";
  operations[2].parallel_mode = ParallelMode::kRow;
  for (const int size : {2, 4}) {
    request.x = NormalTensor(1, {128 * size, 256});
    request.grad_output = NormalTensor(2, {128 * size, 256});
    request.parameters["up.weight"] = NormalTensor(3, {128 * size, 256});
    request.parameters["down.weight"] = NormalTensor(4, {256, 128 * size});
    const OverlapWay defaults = OverlapWays(true).back();
    SCOPED_TRACE(size);
    ExpectSameWithAndWithout(request, "mxfp8", SetupOf(defaults, size));
  }
}

TEST(OverlappedLinear, TakesUnevenAndEmptyShards) {
  for (const std::vector<int64_t>& rows :
       {std::vector<int64_t>{16, 48}, {0, 64}, {8, 0, 40, 16}, {0, 0}}) {
    const int size = static_cast<int>(rows.size());
    int64_t all = 0;
    for (const int64_t count : rows) all += count;
    for (const char* recipe : {"bf16", "fp8_current"}) {
      for (const OverlapWay& way : OverlapWays(false)) {
        ParallelSetup setup = SetupOf(way, size);
        setup.rows = rows;
        SCOPED_TRACE(absl::StrCat(recipe, " ", way.name, " ", testing::PrintToString(rows)));
        for (const ParallelMode mode : {ParallelMode::kColumn, ParallelMode::kRow}) {
          ExpectSameWithAndWithout(SquareLinear(mode, all, 64), recipe, setup);
        }
      }
    }
  }
}

// What a step does not need, nothing is hidden behind.
TEST(OverlappedLinear, FollowsWhichGradientsAreAskedFor) {
  for (const char* recipe : {"bf16", "fp8_current", "mxfp8"}) {
    for (const OverlapWay& way : OverlapWays(UnitOf(recipe) == 128)) {
      for (const ParallelMode mode : {ParallelMode::kColumn, ParallelMode::kRow}) {
        for (int mask = 0; mask < 4; ++mask) {
          SCOPED_TRACE(absl::StrCat(recipe, " ", way.name, " ", mask));
          LayerRequest request = LinearOf(mode, recipe, 2);
          request.requires_grad = GradientsOf(mask, true);
          ExpectSameWithAndWithout(request, recipe, SetupOf(way, 2));
        }
      }
    }
  }
}

TEST(OverlappedLinear, AddsToMainGradients) {
  for (const OverlapWay& way : OverlapWays(false)) {
    LayerRequest request = LinearOf(ParallelMode::kColumn, "fp8_current", 2);
    request.main_grads["weight"] =
        Generated(Distribution::kNormal, 9, DType::kF32, request.parameters.at("weight").shape());
    SCOPED_TRACE(way.name);
    ExpectSameWithAndWithout(request, "fp8_current", SetupOf(way, 2));
  }
}

TEST(OverlappedLinear, DividesTheFirstOfSeveralDims) {
  for (const ParallelMode mode : {ParallelMode::kColumn, ParallelMode::kRow}) {
    LayerRequest request = LinearOf(mode, "fp8_delayed", 2);
    request.x = *request.x.Reinterpret(DType::kBF16, {4, 8, 32});
    request.grad_output = *request.grad_output.Reinterpret(DType::kBF16, {4, 8, 32});
    ExpectSameWithAndWithout(request, "fp8_delayed", SetupOf(OverlapWays(false).back(), 2));
  }
}

TEST(OverlappedLinear, DoesNotDependOnTheSchedule) {
  const LayerRequest request = NormLayerOf(LayerKind::kLayerNormMlp, "fp8_current", 4);
  const Recipe recipe = *Recipe::Parse("fp8_current");
  ParallelSetup setup = SetupOf(OverlapWays(false).back(), 4);
  const std::vector<LayerResult> expected = RunRanks(request, recipe, WithoutOverlap(setup));
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    setup.noise.seed = seed;
    const std::vector<LayerResult> results = RunRanks(request, recipe, setup);
    for (size_t rank = 0; rank < results.size(); ++rank) {
      ExpectSameTensors(results[rank].outputs, expected[rank].outputs);
    }
  }
}

// Two microbatches of one layer through the same buffers, with the weights' gradients put off until
// both have come back: what was given back before stays what it was.
std::vector<std::vector<Tensor>> DeferredSteps(const LayerRequest& whole, const Recipe& recipe,
                                               const ParallelSetup& setup) {
  TestWorld world(setup.size);
  std::vector<std::vector<Tensor>> gradients(static_cast<size_t>(setup.size));
  const absl::Status status = world.world().Run(
      [&](Rank& rank) -> absl::Status {
        QG_ASSIGN_OR_RETURN(const auto part, RankPart::Make(rank, whole, setup));
        const LayerRequest& shard = part->request;
        LayerState state;
        for (const auto& [name, tensor] : shard.parameters) state.parameters[name].value = tensor;
        StepRecorder recorder(rank.engine(), Arithmetic(), nullptr);
        std::vector<std::unique_ptr<LayerSaved>> deferred;
        std::vector<Tensor>& mine = gradients[static_cast<size_t>(rank.index())];
        for (const float factor : {1.0f, -3.0f}) {
          QG_ASSIGN_OR_RETURN(const Tensor x,
                              rank.engine().Scale(shard.x, factor, DType::kBF16, nullptr));
          const StepOptions options{
              .recipe = recipe, .defer_wgrad = true, .parallel = shard.parallel};
          QG_ASSIGN_OR_RETURN(ForwardResult forward,
                              ForwardLayer(recorder, shard.layer, state, x, options));
          QG_ASSIGN_OR_RETURN(BackwardResult backward,
                              BackwardLayer(recorder, shard.layer, state, std::move(forward.saved),
                                            shard.grad_output));
          mine.insert(mine.end(), {forward.y, backward.dx});
          deferred.push_back(std::move(backward.deferred));
        }
        for (std::unique_ptr<LayerSaved>& one : deferred) {
          QG_ASSIGN_OR_RETURN(const std::vector<NamedTensor> dw,
                              BackwardWgrad(recorder, shard.layer, state, std::move(one)));
          mine.push_back(dw.at(0).tensor);
        }
        QG_ASSIGN_OR_RETURN(const StepRecords records, recorder.Finish());
        for (const SavedOperand& saved : records.saved) {
          EXPECT_EQ(saved.at_save, saved.at_use) << saved.name;
        }
        return absl::OkStatus();
      },
      nullptr);
  EXPECT_TRUE(status.ok()) << status;
  return gradients;
}

TEST(OverlappedLinear, LeavesDeferredGradientsAlone) {
  for (const char* recipe : {"bf16", "fp8_current", "mxfp8"}) {
    for (const ParallelMode mode : {ParallelMode::kColumn, ParallelMode::kRow}) {
      SCOPED_TRACE(absl::StrCat(recipe, " ", std::string(ParallelModeName(mode))));
      const LayerRequest whole = LinearOf(mode, recipe, 2);
      const ParallelSetup setup = SetupOf(OverlapWays(UnitOf(recipe) == 128).back(), 2);
      const Recipe parsed = *Recipe::Parse(recipe);
      const auto subjects = DeferredSteps(whole, parsed, setup);
      const auto references = DeferredSteps(whole, parsed, WithoutOverlap(setup));
      for (size_t rank = 0; rank < 2; ++rank) {
        ASSERT_EQ(subjects[rank].size(), 6u);
        for (size_t i = 0; i < 6; ++i) {
          EXPECT_TRUE(SameBits(subjects[rank][i], references[rank][i])) << rank << " " << i;
        }
      }
    }
  }
}

/// A layer's run while somebody else holds one of its ranks' buffers.
absl::Status RunHolding(const LayerRequest& whole, const std::string& recipe,
                        const std::string& buffer, const std::string& mode) {
  const ParallelSetup setup = SetupOf(OverlapWays(UnitOf(recipe) == 128).back(), 2);
  TestWorld world(2);
  return world.world().Run(
      [&](Rank& rank) -> absl::Status {
        QG_ASSIGN_OR_RETURN(const auto part, RankPart::Make(rank, whole, setup));
        const std::shared_ptr<OverlapBuffer> held = part->buffers.BufferFor(buffer, mode);
        QG_RETURN_IF_ERROR(held->Fill("somebody", {{DType::kU8, {1}}}).status());
        return RunLayer(rank.engine(), part->request, *Recipe::Parse(recipe), Arithmetic{}, nullptr)
            .status();
      },
      nullptr);
}

struct BufferCase {
  LayerRequest layer;
  const char* recipe;
  const char* mode;
  std::vector<const char*> buffers;
};

// Layers of one kind share a buffer, units and scales of another kind have their own.
TEST(OverlappedLayer, FillsTheBuffersOfItsUnitsAndScales) {
  const BufferCase cases[] = {
      {LinearOf(ParallelMode::kColumn, "bf16", 2),
       "bf16",
       "none",
       {"column_fprop", "column_dgrad", "column_wgrad"}},
      {LinearOf(ParallelMode::kColumn, "fp8_current", 2),
       "fp8_current",
       "tensor",
       {"column_fprop", "column_dgrad", "column_wgrad"}},
      {LinearOf(ParallelMode::kRow, "mxfp8", 2), "mxfp8", "mx32", {"row_fprop", "row_dgrad"}},
      {NormLayerOf(LayerKind::kLayerNormMlp, "bf16", 2),
       "bf16",
       "none",
       {"fc1_fprop", "fc2_fprop", "fc2_dgrad", "fc1_dgrad", "fc1_wgrad"}},
  };
  for (const BufferCase& one : cases) {
    for (const char* buffer : one.buffers) {
      SCOPED_TRACE(absl::StrCat(one.recipe, " ", buffer));
      const absl::Status status = RunHolding(one.layer, one.recipe, buffer, one.mode);
      EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
      EXPECT_TRUE(absl::StrContains(status.message(),
                                    absl::StrCat("overlap buffer ", buffer, " (", one.mode, "): ")))
          << status;
      EXPECT_TRUE(RunHolding(one.layer, one.recipe, buffer, "other scales").ok());
    }
  }
}

// The codes of another microbatch under a scale of their own: nobody could read them together.
TEST(OverlappedLinear, RefusesToJoinWhatRanksSavedInOtherSteps) {
  const LayerRequest whole = LinearOf(ParallelMode::kColumn, "fp8_current", 2);
  const ParallelSetup setup = SetupOf({"bulk", {.dgrad = OverlapMethod::kBulk}, {}}, 2);
  TestWorld world(2);
  const absl::Status status = world.world().Run(
      [&](Rank& rank) -> absl::Status {
        QG_ASSIGN_OR_RETURN(const auto part, RankPart::Make(rank, whole, setup));
        const LayerRequest& shard = part->request;
        LayerState state;
        state.parameters["weight"].value = shard.parameters.at("weight");
        StepRecorder recorder(rank.engine(), Arithmetic(), nullptr);
        std::vector<std::unique_ptr<LayerSaved>> saved;
        for (const float factor : {1.0f, 3.0f}) {
          QG_ASSIGN_OR_RETURN(const Tensor x,
                              rank.engine().Scale(shard.x, factor, DType::kBF16, nullptr));
          const StepOptions options{.recipe = *Recipe::Parse("fp8_current"),
                                    .parallel = shard.parallel};
          QG_ASSIGN_OR_RETURN(ForwardResult forward,
                              ForwardLayer(recorder, shard.layer, state, x, options));
          saved.push_back(std::move(forward.saved));
        }
        return BackwardLayer(recorder, shard.layer, state,
                             std::move(saved[static_cast<size_t>(rank.index())]), shard.grad_output)
            .status();
      },
      nullptr);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "x rowwise scale_inv differs between ranks"))
      << status;
}

TEST(OverlappedLayer, SaysWhenItsTasksRan) {
  ParallelSetup setup = SetupOf(OverlapWays(true).back(), 2);
  setup.keeps_timelines = true;
  const std::vector<LayerResult> results =
      RunRanks(NormLayerOf(LayerKind::kLayerNormMlp, "mxfp8", 2), *Recipe::Parse("mxfp8"), setup);
  for (const LayerResult& result : results) {
    std::map<std::string, size_t> tasks;
    for (const StageTimeline& stage : result.timelines) {
      tasks[stage.stage] = stage.timeline.tasks.size();
      EXPECT_GT(FiguresOf(stage.timeline).communication_s, 0) << stage.stage;
    }
    // Ring: a GEMM and a copy for each rank. Pipeline: a GEMM, a copy and a sum for each of two
    // splits. Beside: the other rank's rows and the rank's own. Bulk: a GEMM, the two copies; a
    // GEMM, the copy and the sum.
    const std::map<std::string, size_t> expected = {
        {"fc1.fprop", 4}, {"fc2.fprop", 6}, {"fc2.dgrad", 6}, {"fc1.dgrad", 3}, {"fc1.wgrad", 3}};
    EXPECT_EQ(tasks, expected);
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
