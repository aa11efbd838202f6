// Steps of training among ranks: groups of each step, what is kept between forward and backward,
// wgrads later, main gradients, and hybrid recipes, which are quantized twice.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/layer/layer_step.h"
#include "tests/engine/tensor_values.h"
#include "tests/layer/parallel_cases.h"

namespace quantgate {
namespace QG_TEST_FILE {

/// One rank's layer in training.
class Trainee {
 public:
  Trainee(Engine& engine, const LayerRequest& shard) : engine_(engine), spec_(shard.layer) {
    for (const auto& [name, tensor] : shard.parameters) state.parameters[name].value = tensor;
    state.main_grads = shard.main_grads;
    state.delayed = shard.delayed;
  }

  absl::StatusOr<ForwardResult> Forward(const Tensor& x, const StepOptions& options) {
    StepRecorder recorder(engine_, Arithmetic{}, nullptr);
    QG_ASSIGN_OR_RETURN(ForwardResult result, ForwardLayer(recorder, spec_, state, x, options));
    QG_ASSIGN_OR_RETURN(records, recorder.Finish());
    return result;
  }
  absl::StatusOr<BackwardResult> Backward(std::unique_ptr<LayerSaved> saved, const Tensor& dy) {
    StepRecorder recorder(engine_, Arithmetic{}, nullptr);
    QG_ASSIGN_OR_RETURN(BackwardResult result,
                        BackwardLayer(recorder, spec_, state, std::move(saved), dy));
    QG_ASSIGN_OR_RETURN(records, recorder.Finish());
    return result;
  }
  absl::StatusOr<std::vector<NamedTensor>> Wgrad(std::unique_ptr<LayerSaved> deferred) {
    StepRecorder recorder(engine_, Arithmetic{}, nullptr);
    QG_ASSIGN_OR_RETURN(std::vector<NamedTensor> result,
                        BackwardWgrad(recorder, spec_, state, std::move(deferred)));
    QG_ASSIGN_OR_RETURN(records, recorder.Finish());
    return result;
  }

  LayerState state;
  StepRecords records;  ///< Of the last step.

 private:
  Engine& engine_;
  const LayerSpec spec_;
};

const Tensor& Named(const std::vector<NamedTensor>& tensors, const std::string& name) {
  for (const NamedTensor& tensor : tensors) {
    if (tensor.name == name) return tensor.tensor;
  }
  static const Tensor kAbsent;
  return kAbsent;
}

StepOptions OptionsOf(const Recipe& recipe, const LayerRequest& shard) {
  return {.recipe = recipe, .seed = 7, .parallel = shard.parallel};
}

void RunWorld(TestWorld& world, absl::FunctionRef<absl::Status(Rank&)> body) {
  const absl::Status status = world.world().Run(body, nullptr);
  EXPECT_TRUE(status.ok()) << status;
}

/// A shard's x, weight and grad_output in these words.
LayerRequest ShardOn(Rank& rank, const LayerRequest& whole, const std::string& group,
                     bool sequence_parallel) {
  const ParallelSetup setup{.size = rank.group(group).size(),
                            .sequence_parallel = sequence_parallel};
  return *ShardLayer(rank.engine(), whole, StepOf(setup, rank.group(group)));
}

LayerRequest CaseOf(ParallelMode mode, uint64_t seed) {
  LayerRequest request = SquareLinear(mode, 256, 128);
  request.x = Generated(Distribution::kLogNormalOutliers, seed, DType::kBF16, {256, 128});
  request.grad_output = Generated(Distribution::kNormal, seed + 1, DType::kBF16, {256, 128});
  return WithScales(request);
}

// Two groups of two among four ranks, with different members: forward in one, forward in the other,
// forward alone; backward in any order. Each is what it is by itself.
TEST(ParallelSteps, KeepTheGroupOfTheirForward) {
  for (const ParallelMode mode : {ParallelMode::kColumn, ParallelMode::kRow}) {
    for (const char* text : {"fp8_current", "nvfp4"}) {
      const Recipe recipe = *Recipe::Parse(text);
      TestWorld world(4);
      ASSERT_TRUE(world.world().AddGroups("near", {{0, 1}, {2, 3}}).ok());
      ASSERT_TRUE(world.world().AddGroups("far", {{0, 2}, {1, 3}}).ok());
      // Ranks have different data, so that the wrong partner shows.
      const auto whole_of = [&](const std::string& group, int rank) {
        const int team = group == "near" ? rank / 2 : rank % 2;
        return CaseOf(mode, 40 + 10 * static_cast<uint64_t>(team) + (group == "near" ? 0 : 5));
      };
      for (const bool in_order : {true, false}) {
        RunWorld(world, [&](Rank& rank) -> absl::Status {
          std::vector<LayerRequest> shards;
          std::vector<BackwardResult> apart;
          for (const char* group : {"near", "far"}) {
            shards.push_back(ShardOn(rank, whole_of(group, rank.index()), group, true));
            Trainee trainee(rank.engine(), shards.front());
            QG_ASSIGN_OR_RETURN(ForwardResult forward,
                                trainee.Forward(shards.back().x, OptionsOf(recipe, shards.back())));
            QG_ASSIGN_OR_RETURN(
                BackwardResult backward,
                trainee.Backward(std::move(forward.saved), shards.back().grad_output));
            apart.push_back(std::move(backward));
          }
          // All with one module: the weights of both are the same.
          Trainee trainee(rank.engine(), shards[0]);
          std::vector<std::unique_ptr<LayerSaved>> saved;
          for (const LayerRequest& shard : shards) {
            QG_ASSIGN_OR_RETURN(ForwardResult forward,
                                trainee.Forward(shard.x, OptionsOf(recipe, shard)));
            saved.push_back(std::move(forward.saved));
          }
          StepOptions alone = OptionsOf(recipe, shards[0]);
          alone.parallel = nullptr;
          QG_ASSIGN_OR_RETURN(ForwardResult last, trainee.Forward(shards[0].x, alone));
          for (const size_t i : {in_order ? 0u : 1u, in_order ? 1u : 0u}) {
            QG_ASSIGN_OR_RETURN(const BackwardResult backward,
                                trainee.Backward(std::move(saved[i]), shards[i].grad_output));
            EXPECT_TRUE(SameBits(backward.dx, apart[i].dx)) << text << rank.index();
            EXPECT_TRUE(SameBits(Named(backward.gradients, "dw"), Named(apart[i].gradients, "dw")));
          }
          return absl::OkStatus();
        });
      }
    }
  }
}

// Several forwards before their backwards, and an evaluation between: scales and codes stay those
// that were saved.
TEST(ParallelSteps, InFlightDoNotMeet) {
  for (const char* text : {"fp8_current", "fp8_rowwise", "fp8_block", "mxfp8", "mxfp4", "nvfp4"}) {
    const Recipe recipe = *Recipe::Parse(text);
    const LayerRequest first = CaseOf(ParallelMode::kColumn, 60);
    const LayerRequest second = CaseOf(ParallelMode::kColumn, 70);
    const ParallelSetup setup{.size = 2, .sequence_parallel = true};
    const std::vector<LayerResult> first_alone = RunRanks(first, recipe, setup);
    const std::vector<LayerResult> second_alone = RunRanks(second, recipe, setup);
    TestWorld world(2);
    RunWorld(world, [&](Rank& rank) -> absl::Status {
      const size_t index = static_cast<size_t>(rank.index());
      const LayerRequest a = ShardOn(rank, first, "tp", true);
      const LayerRequest b = ShardOn(rank, second, "tp", true);
      Trainee trainee(rank.engine(), a);
      const StepOptions options = OptionsOf(recipe, a);
      StepOptions evaluation = options;
      evaluation.grad_enabled = false;
      QG_ASSIGN_OR_RETURN(ForwardResult one, trainee.Forward(a.x, options));
      QG_ASSIGN_OR_RETURN(const ForwardResult eval, trainee.Forward(b.x, evaluation));
      QG_ASSIGN_OR_RETURN(ForwardResult two, trainee.Forward(b.x, options));
      EXPECT_EQ(eval.saved, nullptr);
      EXPECT_TRUE(SameBits(eval.y, two.y));
      EXPECT_TRUE(SameBits(two.y, OutputOf(second_alone[index], "y")));
      QG_ASSIGN_OR_RETURN(const BackwardResult back,
                          trainee.Backward(std::move(one.saved), a.grad_output));
      EXPECT_TRUE(SameBits(back.dx, OutputOf(first_alone[index], "dx"))) << text;
      EXPECT_TRUE(SameBits(Named(back.gradients, "dw"), OutputOf(first_alone[index], "dw")))
          << text;
      return absl::OkStatus();
    });
  }
}

TEST(ParallelSteps, DeferTheirWgrads) {
  for (const ParallelMode mode : {ParallelMode::kColumn, ParallelMode::kRow}) {
    for (const char* text :
         {"bf16", "fp8_current", "mxfp8", "nvfp4", "mxfp8:backward_override=dequantized",
          "fp8_current:backward_override=high_precision"}) {
      SCOPED_TRACE(text);
      const Recipe recipe = *Recipe::Parse(text);
      LayerRequest whole = CaseOf(mode, 80);
      whole.main_grads["weight"] = Generated(Distribution::kNormal, 90, DType::kF32, {128, 128});
      const std::vector<LayerResult> reference =
          RunRanks(whole, recipe, {.size = 2, .sequence_parallel = true});
      TestWorld world(2);
      RunWorld(world, [&](Rank& rank) -> absl::Status {
        const LayerRequest shard = ShardOn(rank, whole, "tp", true);
        Trainee trainee(rank.engine(), shard);
        StepOptions options = OptionsOf(recipe, shard);
        options.defer_wgrad = true;
        QG_ASSIGN_OR_RETURN(ForwardResult forward, trainee.Forward(shard.x, options));
        QG_ASSIGN_OR_RETURN(BackwardResult backward,
                            trainee.Backward(std::move(forward.saved), shard.grad_output));
        const LayerResult& expected = reference[static_cast<size_t>(rank.index())];
        EXPECT_TRUE(SameBits(backward.dx, OutputOf(expected, "dx")));
        QG_ASSIGN_OR_RETURN(const auto wgrads, trainee.Wgrad(std::move(backward.deferred)));
        EXPECT_TRUE(wgrads.empty());
        EXPECT_TRUE(
            SameBits(trainee.state.main_grads.at("weight"), OutputOf(expected, "main_grad")));
        for (const SavedOperand& saved : trainee.records.saved) {
          EXPECT_EQ(saved.at_save, saved.at_use) << saved.name;
        }
        return absl::OkStatus();
      });
    }
  }
}

/// What the shards' codes in one direction stand for, joined: amaxes of the whole.
Tensor ValuesOfShards(const Tensor& whole, const Quantizer& quantizer, Usage usage, int size) {
  QuantizeArguments arguments;
  const Usages usages{usage == Usage::kRowwise, usage == Usage::kColumnwise};
  const TensorAmaxes amaxes = *MeasureAmaxCpu(whole, quantizer, usages, ExecutionContext());
  arguments.group_amax_rowwise = amaxes.rowwise;
  arguments.group_amax_columnwise = amaxes.columnwise;
  std::vector<Tensor> values;
  const int64_t rows = whole.shape()[0] / size;
  for (int rank = 0; rank < size; ++rank) {
    const QuantizedTensor codes = *QuantizeCpu(RowsOf(whole, rank * rows, rows), quantizer, usages,
                                               arguments, ExecutionContext());
    values.push_back(*DequantizeCpu(codes, usage, whole.dtype(), ExecutionContext()));
  }
  return JoinRowsByHand(values);
}

struct HybridCase {
  const char* recipe;
  Usage wgrad_starts_from;  ///< Of x: the direction that is kept.
};

// x and grad_output are quantized, dequantized, gathered and quantized again: the layer of one rank
// on what their codes stand for.
TEST(ParallelHybrid, IsTheLayerOfTheDequantizedShards) {
  const HybridCase cases[] = {
      {"hybrid:fprop=mxfp8,dgrad=mxfp8,wgrad=mxfp8", Usage::kColumnwise},
      {"hybrid:fprop=fp8_current,dgrad=fp8_current,wgrad=mxfp8", Usage::kRowwise},
      {"hybrid:fprop=mxfp8,dgrad=fp8_block,wgrad=fp8_current", Usage::kColumnwise},
      {"hybrid:fprop=mxfp8,dgrad=mxfp8,wgrad=mxfp8,columnwise_source=rowwise_dequantized",
       Usage::kRowwise},
      // Columnwise nvfp4 codes are never dequantized.
      {R"(hybrid:fprop=mxfp8,dgrad=mxfp8,wgrad={"name":"nvfp4","knobs":)"
       R"({"disable_stochastic_rounding":true}})",
       Usage::kRowwise},
      // Scales that are no powers of two: the other direction's codes would round once more.
      {"hybrid:fprop=mxfp8,dgrad=fp8_block,wgrad=fp8_current,columnwise_source=rowwise_dequantized",
       Usage::kRowwise},
  };
  for (const HybridCase& one : cases) {
    SCOPED_TRACE(one.recipe);
    const Recipe recipe = *Recipe::Parse(one.recipe);
    const ParallelSetup setup{.size = 2, .sequence_parallel = true};
    const LayerRequest column = CaseOf(ParallelMode::kColumn, 20);
    const std::vector<LayerResult> columns = RunRanks(column, recipe, setup);
    LayerRequest row = CaseOf(ParallelMode::kRow, 30);
    row.parameters.erase("bias");
    const std::vector<LayerResult> rows = RunRanks(row, recipe, setup);
    for (int rank = 0; rank < 2; ++rank) {
      const size_t index = static_cast<size_t>(rank);
      const Quantizer& x = recipe.QuantizerFor(TensorRole::kInput);
      LayerRequest shard = AloneShard(column, rank, 2);
      shard.x = ValuesOfShards(column.x, x, Usage::kRowwise, 2);
      EXPECT_TRUE(SameBits(OutputOf(columns[index], "y"), OutputOf(RunCase(shard, recipe), "y")));
      shard.x = ValuesOfShards(column.x, x, one.wgrad_starts_from, 2);
      EXPECT_TRUE(SameBits(OutputOf(columns[index], "dw"), OutputOf(RunCase(shard, recipe), "dw")));
      const Quantizer& dy = recipe.QuantizerFor(TensorRole::kGradOutput);
      shard = AloneShard(row, rank, 2);
      shard.grad_output = ValuesOfShards(row.grad_output, dy, Usage::kRowwise, 2);
      const LayerResult alone = RunCase(shard, recipe);
      EXPECT_TRUE(SameBits(OutputOf(rows[index], "dx"), OutputOf(alone, "dx")));
      EXPECT_TRUE(SameBits(OutputOf(rows[index], "dw"), OutputOf(alone, "dw")));
    }
  }
}

// Rules of a caller's own: nothing is quantized before the gather.
TEST(ParallelCustom, IsQuantizedOnceAfterTheGather) {
  for (const char* quantizer :
       {R"({"format":"mxfp8"})", R"({"format":"identity","element":"f16"})"}) {
    SCOPED_TRACE(quantizer);
    const Recipe recipe =
        *Recipe::Parse(absl::StrCat("custom:rules=[{\"quantizer\":", quantizer, "}]"));
    const LayerRequest column = CaseOf(ParallelMode::kColumn, 20);
    const std::vector<LayerResult> results =
        RunRanks(column, recipe, {.size = 2, .sequence_parallel = true});
    for (int rank = 0; rank < 2; ++rank) {
      const LayerResult alone = RunCase(AloneShard(column, rank, 2), recipe);
      EXPECT_TRUE(
          SameBits(OutputOf(results[static_cast<size_t>(rank)], "y"), OutputOf(alone, "y")));
      EXPECT_TRUE(
          SameBits(OutputOf(results[static_cast<size_t>(rank)], "dw"), OutputOf(alone, "dw")));
      for (const QuantizationRecord& record : results[static_cast<size_t>(rank)].quantizations) {
        EXPECT_FALSE(record.tensor == "x" && record.usages.rowwise && record.usages.columnwise);
      }
    }
  }
}

TEST(ParallelCustom, DelayedScalingOfARuleIsThatOfFp8Delayed) {
  const Recipe plain = *Recipe::Parse("fp8_delayed");
  const Recipe custom = *Recipe::Parse(R"(custom:rules=[{"quantizer":"fp8_delayed"}])");
  for (const ParallelMode mode : {ParallelMode::kColumn, ParallelMode::kRow}) {
    const LayerRequest whole = CaseOf(mode, 20);
    for (const bool sequence_parallel : {false, true}) {
      SCOPED_TRACE(sequence_parallel);
      const auto run = [&](const Recipe& recipe) {
        return RunRanks(whole, recipe, {.size = 2, .sequence_parallel = sequence_parallel});
      };
      const std::vector<LayerResult> results = run(custom), expected = run(plain);
      for (size_t rank = 0; rank < 2; ++rank) {
        ExpectSameOutputs(results[rank], expected[rank]);
        ASSERT_EQ(results[rank].state.size(), expected[rank].state.size());
        for (size_t i = 0; i < expected[rank].state.size(); ++i) {
          EXPECT_EQ(results[rank].state[i].name, expected[rank].state[i].name);
          EXPECT_TRUE(SameBits(results[rank].state[i].tensor, expected[rank].state[i].tensor));
        }
      }
    }
  }
}

/// w - 2^-6 dw, in fp32.
Tensor Descended(const Tensor& weight, const Tensor& dw) {
  std::vector<float> values = ToValues(weight);
  const std::vector<float> gradient = ToValues(dw);
  for (size_t i = 0; i < values.size(); ++i) values[i] -= 0.015625f * gradient[i];
  return FromValues(DType::kF32, weight.shape(), values);
}

/// The first layer's y goes into the second and the second's dx back, with 10 steps of descent.
struct Trace {
  std::vector<Tensor> y, dx;
};

/// Layers of shards run alone, all rows on each; what is partial is summed by hand.
Trace TraceByHand(const LayerRequest& up, const LayerRequest& down, const Recipe& recipe) {
  std::vector<LayerRequest> ups, downs;
  for (int rank = 0; rank < 2; ++rank) {
    ups.push_back(AloneShard(up, rank, 2));
    downs.push_back(AloneShard(down, rank, 2));
  }
  Trace trace;
  for (int step = 0; step < 10; ++step) {
    std::vector<Tensor> y, dx;
    for (size_t rank = 0; rank < 2; ++rank) {
      LayerRequest forward = ups[rank];
      forward.grad_output = Tensor();
      downs[rank].x = OutputOf(RunCase(forward, recipe), "y");
      const LayerResult second = RunCase(downs[rank], recipe);
      y.push_back(OutputOf(second, "y"));
      ups[rank].grad_output = OutputOf(second, "dx");
      const LayerResult first = RunCase(ups[rank], recipe);
      dx.push_back(OutputOf(first, "dx"));
      for (const auto& [request, result] :
           {std::pair(&ups[rank], &first), {&downs[rank], &second}}) {
        Tensor& weight = request->parameters.at("weight");
        weight = Descended(weight, OutputOf(*result, "dw"));
      }
    }
    trace.y.push_back(SumByHand(y));
    trace.dx.push_back(SumByHand(dx));
  }
  return trace;
}

Trace TraceOfRanks(const LayerRequest& up, const LayerRequest& down, const Recipe& recipe,
                   bool sequence_parallel, uint64_t noise) {
  TestWorld world(2, ScheduleNoise{noise});
  std::vector<Trace> traces(2);
  RunWorld(world, [&](Rank& rank) -> absl::Status {
    const LayerRequest first = ShardOn(rank, up, "tp", sequence_parallel);
    const LayerRequest second = ShardOn(rank, down, "tp", sequence_parallel);
    Trainee one(rank.engine(), first), two(rank.engine(), second);
    Trace& trace = traces[static_cast<size_t>(rank.index())];
    for (int step = 0; step < 10; ++step) {
      QG_ASSIGN_OR_RETURN(ForwardResult hidden, one.Forward(first.x, OptionsOf(recipe, first)));
      QG_ASSIGN_OR_RETURN(ForwardResult last, two.Forward(hidden.y, OptionsOf(recipe, second)));
      QG_ASSIGN_OR_RETURN(const BackwardResult back,
                          two.Backward(std::move(last.saved), second.grad_output));
      QG_ASSIGN_OR_RETURN(const BackwardResult front,
                          one.Backward(std::move(hidden.saved), back.dx));
      trace.y.push_back(last.y);
      trace.dx.push_back(front.dx);
      for (const auto& [trainee, gradients] :
           {std::pair(&one, &front.gradients), {&two, &back.gradients}}) {
        Tensor& weight = trainee->state.parameters.at("weight").value;
        weight = Descended(weight, Named(*gradients, "dw"));
      }
    }
    return absl::OkStatus();
  });
  if (!sequence_parallel) return traces[0];
  Trace joined;
  for (size_t step = 0; step < traces[0].y.size(); ++step) {
    joined.y.push_back(JoinRowsByHand({traces[0].y[step], traces[1].y[step]}));
    joined.dx.push_back(JoinRowsByHand({traces[0].dx[step], traces[1].dx[step]}));
  }
  return joined;
}

// Two layers, column then row parallel; ranks that are delayed at random change nothing.
TEST(ParallelTraining, FollowsTheTraceOfShardsAlone) {
  LayerRequest up = SquareLinear(ParallelMode::kColumn, 256, 128);
  LayerRequest down = SquareLinear(ParallelMode::kRow, 256, 128);
  down.parameters["weight"] = Generated(Distribution::kNormal, 6, DType::kF32, {128, 128});
  up.parameters.erase("bias");
  down.parameters.erase("bias");
  for (const char* text : {"bf16", "fp8_current", "fp8_rowwise", "fp8_block", "mxfp8", "mxfp4",
                           "nvfp4:disable_stochastic_rounding=true"}) {
    const Recipe recipe = *Recipe::Parse(text);
    const Trace expected = TraceByHand(up, down, recipe);
    for (const bool sequence : {false, true}) {
      const Trace trace = TraceOfRanks(up, down, recipe, sequence, sequence ? 5 : 0);
      ASSERT_EQ(trace.y.size(), 10u);
      for (size_t step = 0; step < 10; ++step) {
        EXPECT_TRUE(SameBits(trace.y[step], expected.y[step])) << text << sequence << step;
        EXPECT_TRUE(SameBits(trace.dx[step], expected.dx[step])) << text << sequence << step;
      }
    }
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
