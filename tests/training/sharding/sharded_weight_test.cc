// Weights divided by rows and put together again, against the whole weight quantized on one rank.
#include "kernels/training/sharding/sharded_weight.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/layer/layer_step.h"
#include "tests/training/sharding/shard_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

constexpr int64_t kOut = 512, kIn = 96;
constexpr int kRanks[] = {1, 2, 3, 4, 8};

QuantizedTensor QuantizedWhole(const Tensor& weight, const Quantizer& quantizer, Usages usages,
                               const QuantizeArguments& arguments = {}) {
  return *QuantizeCpu(weight, quantizer, usages, arguments, {});
}

/// Pieces of 128 rows, which every format takes, dealt out unevenly; 8 ranks cannot all have one.
ShardBounds BoundsFor(int ranks) {
  ShardBounds bounds = EvenBounds(kOut, ranks, 128);
  if (ranks == 2) bounds[1] = 128;
  return bounds;
}

ShardedWeightSpec SpecOf(const Quantizer& quantizer, int ranks, bool reshard) {
  ShardedWeightSpec spec = {
      .name = "w", .shape = {kOut, kIn}, .bounds = BoundsFor(ranks), .quantizer = quantizer};
  spec.reshard_after_forward = reshard;
  return spec;
}

Tensor OwnRows(const GatherContext& context, const ShardedWeightSpec& spec, const Tensor& whole) {
  const int rank = context.group.rank();
  return PartOf(whole, spec.bounds[rank], spec.bounds[rank + 1]);
}

/// What of the whole tensor a pass should have.
Usages PassUsages(WeightPass pass, const Quantizer& quantizer, bool reshard) {
  const bool is_identity = !quantizer.rowwise.is_quantized();
  const bool is_hybrid = !(quantizer.rowwise == quantizer.columnwise);
  if (!reshard || is_hybrid || is_identity) return {true, true};
  return pass == WeightPass::kForward ? Usages{true, false} : Usages{false, true};
}

void ExpectGathered(const WeightRule& rule, int ranks, bool reshard, WeightStorage storage,
                    const ShardBounds& bounds = {}) {
  SCOPED_TRACE(absl::StrCat(rule.name, " on ", ranks, reshard ? "" : ", kept"));
  const Tensor weight = TroubledWeight(5, DType::kBF16, {kOut, kIn});
  ShardedWeightSpec spec = SpecOf(rule.quantizer, ranks, reshard);
  spec.storage = storage;
  if (!bounds.empty()) spec.bounds = bounds;
  std::vector<QuantizedTensor> forward(ranks), backward(ranks);
  const absl::Status status = OnRanks(ranks, [&](const GatherContext& context) -> absl::Status {
    QG_ASSIGN_OR_RETURN(ShardedWeight sharded, ShardedWeight::Create(spec, ranks));
    QG_RETURN_IF_ERROR(sharded.Update(context, OwnRows(context, spec, weight), {}));
    QG_ASSIGN_OR_RETURN(forward[context.group.rank()],
                        sharded.Gather(context, WeightPass::kForward));
    QG_ASSIGN_OR_RETURN(backward[context.group.rank()],
                        sharded.Gather(context, WeightPass::kBackward));
    return absl::OkStatus();
  });
  ASSERT_TRUE(status.ok()) << status;
  const auto expected = [&](WeightPass pass) {
    QuantizedTensor whole =
        QuantizedWhole(weight, rule.quantizer, PassUsages(pass, rule.quantizer, reshard));
    if (rule.quantizer.rowwise.is_quantized() || !reshard) return whole;
    // The one buffer of an identity weight is asked for by pass.
    if (pass == WeightPass::kForward) whole.columnwise.reset();
    if (pass == WeightPass::kBackward) whole.rowwise.reset();
    return whole;
  };
  for (int rank = 0; rank < ranks; ++rank) {
    ExpectSameQuantized(forward[rank], expected(WeightPass::kForward));
    ExpectSameQuantized(backward[rank], expected(WeightPass::kBackward));
  }
}

TEST(ShardedWeight, GathersWhatOneRankQuantizes) {
  for (const WeightRule& rule : WeightRules()) {
    for (const int ranks : kRanks) {
      for (const bool reshard : {true, false}) {
        ExpectGathered(rule, ranks, reshard, WeightStorage::kQuantized);
      }
    }
  }
}

// No block of a format is cut.
TEST(ShardedWeight, PerTensorShardsBeginAtAnyRow) {
  for (const bool reshard : {true, false}) {
    ExpectGathered({"fp8_tensor", Fp8Tensor()}, 4, reshard, WeightStorage::kQuantized,
                   {0, 7, 8, 8, kOut});
  }
}

TEST(ShardedWeight, HighPrecisionRowsAreQuantizedWhole) {
  QuantizerSpec lines = Nvfp4Tiles();
  lines.block_dim = 1;
  for (const WeightRule& rule : {WeightRule{"fp8_tensor", Fp8Tensor()},
                                 WeightRule{"mxfp8", Mxfp8()}, WeightRule{"nvfp4 lines", lines}}) {
    for (const bool reshard : {true, false}) {
      ExpectGathered(rule, 3, reshard, WeightStorage::kHighPrecision);
    }
  }
}

TEST(ShardedWeight, DelayedScalingNotesTheAmaxOfAllRows) {
  QuantizerSpec rule = Fp8Tensor();
  rule.scaling = Scaling::kDelayed;
  const Tensor weight = TroubledWeight(6, DType::kBF16, {kOut, kIn});
  QuantizeArguments arguments;
  arguments.scale = *Tensor::FromScalar(0.75f);
  const QuantizedTensor expected = QuantizedWhole(weight, rule, {true, false}, arguments);
  const ShardedWeightSpec spec = SpecOf(rule, 8, true);
  const absl::Status status = OnRanks(8, [&](const GatherContext& context) -> absl::Status {
    QG_ASSIGN_OR_RETURN(ShardedWeight sharded, ShardedWeight::Create(spec, 8));
    QG_RETURN_IF_ERROR(sharded.Update(context, OwnRows(context, spec, weight), arguments));
    QG_ASSIGN_OR_RETURN(const QuantizedTensor whole, sharded.Gather(context, WeightPass::kForward));
    EXPECT_TRUE(SameBits(whole.rowwise->data, expected.rowwise->data));
    EXPECT_TRUE(SameBits(whole.rowwise->scale_inv, expected.rowwise->scale_inv));
    EXPECT_TRUE(SameBits(sharded.delayed_amax(), expected.rowwise->amax));
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
}

// A second gather has the scale of the second update, whether rows were quantized in place or
// replaced by others.
TEST(ShardedWeight, ScaleFollowsUpdatesAndReplacements) {
  const std::vector<Tensor> weights = {
      TroubledWeight(7, DType::kBF16, {kOut, kIn}),
      *ScaleCpu(TroubledWeight(8, DType::kBF16, {kOut, kIn}), 0.01f, DType::kBF16, {}),
      *ScaleCpu(TroubledWeight(9, DType::kBF16, {kOut, kIn}), 37.0f, DType::kBF16, {})};
  for (const WeightRule& rule : WeightRules()) {
    if (!rule.quantizer.rowwise.is_quantized()) continue;
    for (const bool reshard : {true, false}) {
      SCOPED_TRACE(absl::StrCat(rule.name, reshard ? "" : ", kept"));
      const ShardedWeightSpec spec = SpecOf(rule.quantizer, 3, reshard);
      const absl::Status status = OnRanks(3, [&](const GatherContext& context) -> absl::Status {
        QG_ASSIGN_OR_RETURN(ShardedWeight sharded, ShardedWeight::Create(spec, 3));
        QG_ASSIGN_OR_RETURN(ShardedWeight elsewhere, ShardedWeight::Create(spec, 3));
        for (size_t i = 0; i < weights.size(); ++i) {
          const Tensor rows = OwnRows(context, spec, weights[i]);
          if (i == 1) {
            QG_RETURN_IF_ERROR(elsewhere.Update(context, rows, {}));
            QG_RETURN_IF_ERROR(sharded.Replace(elsewhere.shard()));
          } else {
            QG_RETURN_IF_ERROR(sharded.Update(context, rows, {}));
          }
          for (const WeightPass pass : {WeightPass::kForward, WeightPass::kBackward}) {
            QG_ASSIGN_OR_RETURN(const QuantizedTensor whole, sharded.Gather(context, pass));
            const QuantizedTensor expected = QuantizedWhole(
                weights[i], rule.quantizer, PassUsages(pass, rule.quantizer, reshard));
            ExpectSameQuantized(whole, expected);
          }
        }
        return absl::OkStatus();
      });
      EXPECT_TRUE(status.ok()) << status;
    }
  }
}

// Random numbers count from the first row of the whole weight.
TEST(ShardedWeight, StochasticRoundingDoesNotSeeShards) {
  QuantizerSpec rule = Nvfp4Tiles();
  rule.element_rounding = ElementRounding::kStochastic;
  const Tensor weight = TroubledWeight(10, DType::kBF16, {kOut, kIn});
  const QuantizeArguments arguments = {.seed = 77, .call_id = 5};
  const QuantizedTensor expected = QuantizedWhole(weight, rule, {true, false}, arguments);
  for (const int ranks : kRanks) {
    ShardedWeightSpec spec = SpecOf(rule, ranks, true);
    spec.usages = {true, false};
    const absl::Status status = OnRanks(ranks, [&](const GatherContext& context) -> absl::Status {
      QG_ASSIGN_OR_RETURN(ShardedWeight sharded, ShardedWeight::Create(spec, ranks));
      QG_RETURN_IF_ERROR(sharded.Update(context, OwnRows(context, spec, weight), arguments));
      QG_ASSIGN_OR_RETURN(const QuantizedTensor whole,
                          sharded.Gather(context, WeightPass::kForward));
      ExpectSameQuantized(whole, expected);
      return absl::OkStatus();
    });
    EXPECT_TRUE(status.ok()) << status;
  }
}

// ---- a training trace

constexpr int64_t kTokens = 64;
constexpr int kSteps = 4;

/// y and dx of every step, on one microbatch, and the weight's gradient.
absl::Status TrainStep(const GatherContext& context, const QuantizedTensor& weight,
                       const Recipe& recipe, int step, std::vector<Tensor>& trace) {
  LayerState state;
  state.parameters["weight"].quantized = weight;
  state.parameters["weight"].quantizer = recipe.QuantizerFor(TensorRole::kWeight);
  StepRecorder recorder(context.engine, Arithmetic{}, nullptr);
  const uint64_t seed = 1000 + 10 * static_cast<uint64_t>(step);
  const Tensor x =
      Generated(Distribution::kNormal, seed + context.group.rank(), DType::kBF16, {kTokens, kIn});
  const Tensor dy = Generated(Distribution::kNormal, seed + 100 + context.group.rank(),
                              DType::kBF16, {kTokens, kOut});
  const StepOptions options = {.recipe = recipe, .seed = seed};
  QG_ASSIGN_OR_RETURN(ForwardResult forward, ForwardLayer(recorder, {}, state, x, options));
  trace.push_back(forward.y);
  QG_ASSIGN_OR_RETURN(const BackwardResult backward,
                      BackwardLayer(recorder, {}, state, std::move(forward.saved), dy));
  trace.push_back(backward.dx);
  for (const NamedTensor& gradient : backward.gradients) trace.push_back(gradient.tensor);
  return recorder.Finish().status();
}

/// This rank's trace: each rank has a microbatch, gradients are summed by rows, each rank updates
/// its rows of the master.
absl::Status Train(const GatherContext& context, const std::string& recipe_text, bool reshard,
                   std::vector<Tensor>& trace) {
  const Recipe recipe = *Recipe::Parse(recipe_text);
  const int ranks = context.group.size();
  const ShardedWeightSpec spec = SpecOf(recipe.QuantizerFor(TensorRole::kWeight), ranks, reshard);
  QG_ASSIGN_OR_RETURN(ShardedWeight sharded, ShardedWeight::Create(spec, ranks));
  Tensor master = OwnRows(context, spec, TroubledWeight(11, DType::kF32, {kOut, kIn}));
  std::vector<int64_t> rows;
  for (int rank = 0; rank < ranks; ++rank) {
    rows.push_back(spec.bounds[rank + 1] - spec.bounds[rank]);
  }
  for (int step = 0; step < kSteps; ++step) {
    QG_ASSIGN_OR_RETURN(const Tensor bf16, context.engine.Cast(master, DType::kBF16, nullptr));
    QG_RETURN_IF_ERROR(sharded.Update(context, bf16, {}));
    QG_ASSIGN_OR_RETURN(QuantizedTensor weight, sharded.Gather(context, WeightPass::kForward));
    QG_ASSIGN_OR_RETURN(const QuantizedTensor backward,
                        sharded.Gather(context, WeightPass::kBackward));
    weight.columnwise = backward.columnwise;
    QG_RETURN_IF_ERROR(TrainStep(context, weight, recipe, step, trace));
    QG_ASSIGN_OR_RETURN(const Tensor gradient, context.group.ReduceScatter(trace.back(), rows, {}));
    QG_ASSIGN_OR_RETURN(
        const SgdResult sgd,
        context.engine.SgdStep({master, gradient, Tensor(), {.learning_rate = 0.1f}}, nullptr));
    master = sgd.master;
    trace.push_back(master);
  }
  return absl::OkStatus();
}

/// The same with one rank that does all microbatches on the whole weight.
std::vector<std::vector<Tensor>> TrainAlone(const std::string& recipe_text, int ranks) {
  const Recipe recipe = *Recipe::Parse(recipe_text);
  std::vector<std::vector<Tensor>> traces(ranks);
  Tensor master = TroubledWeight(11, DType::kF32, {kOut, kIn});
  for (int step = 0; step < kSteps; ++step) {
    const QuantizedTensor weight =
        QuantizedWhole(*CastTensor(master, DType::kBF16, {}),
                       recipe.QuantizerFor(TensorRole::kWeight), {true, true});
    std::vector<Tensor> gradients(ranks);
    const absl::Status status = OnRanks(ranks, [&](const GatherContext& context) -> absl::Status {
      std::vector<Tensor>& trace = traces[context.group.rank()];
      QG_RETURN_IF_ERROR(TrainStep(context, weight, recipe, step, trace));
      gradients[context.group.rank()] = trace.back();
      return absl::OkStatus();
    });
    EXPECT_TRUE(status.ok()) << status;
    const Tensor sum = *OrderedSumCpu(gradients, SumAccumulation::kF32, gradients[0].dtype(), {});
    master = SgdStepCpu({master, sum, Tensor(), {.learning_rate = 0.1f}}, {})->master;
    const ShardBounds bounds = BoundsFor(ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      traces[rank].push_back(PartOf(master, bounds[rank], bounds[rank + 1]));
    }
  }
  return traces;
}

TEST(ShardedWeight, TrainsAsOneRankWhetherKeptOrNot) {
  for (const char* recipe : {"fp8_current", "fp8_rowwise", "fp8_block", "mxfp8", "nvfp4"}) {
    const std::vector<std::vector<Tensor>> expected = TrainAlone(recipe, 3);
    for (const bool reshard : {true, false}) {
      SCOPED_TRACE(absl::StrCat(recipe, reshard ? "" : ", kept"));
      std::vector<std::vector<Tensor>> traces(3);
      const absl::Status status = OnRanks(3, [&](const GatherContext& context) {
        return Train(context, recipe, reshard, traces[context.group.rank()]);
      });
      ASSERT_TRUE(status.ok()) << status;
      for (int rank = 0; rank < 3; ++rank) {
        ASSERT_EQ(traces[rank].size(), expected[rank].size());
        for (size_t i = 0; i < traces[rank].size(); ++i) {
          EXPECT_TRUE(SameBits(traces[rank][i], expected[rank][i])) << rank << ", " << i;
        }
      }
    }
  }
}

// ---- refusals

TEST(ShardedWeight, RefusesWhatCannotBeDivided) {
  const auto refusal = [](const Quantizer& quantizer, ShardBounds bounds) {
    const ShardedWeightSpec spec = {
        .name = "w", .shape = {kOut, kIn}, .bounds = std::move(bounds), .quantizer = quantizer};
    return std::string(ShardedWeight::Create(spec, 2).status().message());
  };
  EXPECT_EQ(
      refusal(Mxfp8(), {0, 48, kOut}),
      "w.bounds is 48, where the shard of rank 1 begins: shards of mxfp8 begin at multiples of 32");
  EXPECT_EQ(refusal(Fp8Tiles(), {0, 64, kOut}),
            "w.bounds is 64, where the shard of rank 1 begins: shards of fp8_block begin at "
            "multiples of 128");
  EXPECT_EQ(
      refusal(Nvfp4Tiles(), {0, 8, kOut}),
      "w.bounds is 8, where the shard of rank 1 begins: shards of nvfp4 begin at multiples of 16");
  EXPECT_EQ(refusal(Fp8Tensor(), {0, 7, kOut}), "");
  EXPECT_EQ(refusal(Fp8Tensor(), {0, kOut}),
            "w.bounds is 0, 512: must ascend from 0 to 512, with a part for each of 2 ranks");
  QuantizerSpec lines = Fp8Tiles();
  lines.block_dim = 1;
  EXPECT_EQ(refusal(lines, {0, 128, kOut}),
            "w.block_dim is 1: sharded weights of fp8_block have tiles (block_dim 2)");
  EXPECT_EQ(refusal(TwoRules(Nvfp4Tiles(), Mxfp8()), {0, 128, kOut}),
            "w.format is nvfp4: is not sharded where the directions have two rules");
  QuantizerSpec picks = Nvfp4Tiles();
  picks.four_over_six = FourOverSix::kMae;
  EXPECT_EQ(refusal(picks, {0, 128, kOut}),
            "w.4over6 is mae: columnwise codes choose between 4 and 6 for themselves, but backward "
            "transposes the rowwise codes");
}

TEST(ShardedWeight, ScalesThatDifferAreFoundBeforeCodesMove) {
  const Tensor weight = TroubledWeight(12, DType::kBF16, {kOut, kIn});
  const ShardedWeightSpec spec = SpecOf(Fp8Tensor(), 2, true);
  const absl::Status status = OnRanks(2, [&](const GatherContext& context) -> absl::Status {
    QG_ASSIGN_OR_RETURN(ShardedWeight sharded, ShardedWeight::Create(spec, 2));
    const Tensor rows = OwnRows(context, spec, weight);
    QG_ASSIGN_OR_RETURN(QuantizedTensor own,
                        context.engine.Quantize(rows, spec.quantizer, {true, false}, {}, nullptr));
    QG_RETURN_IF_ERROR(sharded.Replace(std::move(own)));
    return sharded.Gather(context, WeightPass::kForward).status();
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_NE(status.message().find("w rowwise scale_inv"), std::string::npos) << status;
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
