// Layers whose communication is hidden behind their GEMMs (docs/ranks.md section 10.1): virtual
// ranks on the engine under test, compared with shards run alone and with layers that gather first.
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/layer/layer_faults.h"
#include "kernels/validate/scenarios/faults/comm_faults.h"
#include "kernels/validate/scenarios/ranks/parallel_subject.h"
#include "kernels/validate/scenarios/scenario_groups.h"

namespace quantgate {
namespace {

bool IsMxfp8(const Recipe& recipe) { return recipe.name() == "mxfp8"; }

bool Overlaps(const Recipe& recipe) {
  return !recipe.is_quantized() || recipe.name().starts_with("fp8_current") ||
         recipe.is_delayed() || IsMxfp8(recipe);
}

/// A sequence-parallel step of a rank, with the methods of DefaultOverlapPlan.
ParallelStep OverlappedStep(const Recipe& recipe, VirtualOverlap& end) {
  ParallelStep step{.tp = &end.overlap->group(), .sequence_parallel = true};
  step.overlap = end.overlap.get();
  step.column_overlap = DefaultOverlapPlan(OverlapSide::kColumn, IsMxfp8(recipe));
  step.row_overlap = DefaultOverlapPlan(OverlapSide::kRow, IsMxfp8(recipe));
  step.row_overlap.splits = 2;
  return step;
}

/// A linear layer that every overlap can cut for `size` ranks.
absl::StatusOr<LayerRequest> OverlappedLinear(ScenarioContext& context, ParallelMode mode,
                                              uint64_t seed, int size = 2) {
  const int64_t unit = IsMxfp8(context.recipe()) ? 128 : 32;
  return MakeParallelLinear(context, mode, size * unit, seed, size * unit);
}

// ---- One step

absl::Status CheckLinear(ScenarioContext& context, ParallelMode mode, int size) {
  QG_ASSIGN_OR_RETURN(const LayerRequest whole, OverlappedLinear(context, mode, 20, size));
  QG_ASSIGN_OR_RETURN(const auto world, MakeVirtualRanks(context, size));
  std::vector<StepTensors> subjects(static_cast<size_t>(size));
  RunBodies(context, "overlapped step", *world, [&](Rank& rank) -> absl::Status {
    QG_ASSIGN_OR_RETURN(const auto end, VirtualOverlap::Open(rank));
    QG_ASSIGN_OR_RETURN(const LayerRequest shard,
                        ShardOn(rank, whole, OverlappedStep(context.recipe(), *end)));
    QG_ASSIGN_OR_RETURN(StepTensors step, OneStep(context, rank, shard));
    QG_ASSIGN_OR_RETURN(subjects[static_cast<size_t>(rank.index())], OnHost(rank, std::move(step)));
    return absl::OkStatus();
  });
  return ExpectStepsOfRanks(context, subjects, whole, true);
}

absl::Status CheckLinears(ScenarioContext& context) {
  for (const ParallelMode mode : kParallelModes) {
    QG_RETURN_IF_ERROR(CheckLinear(context, mode, 2));
    // Shards of mxfp8 have 128 rows and columns: on 4 ranks the reference would take too long.
    if (IsMxfp8(context.recipe())) continue;
    QG_RETURN_IF_ERROR(CheckLinear(context, mode, 4));
  }
  return absl::OkStatus();
}

// ---- Training (D39)

constexpr int kTraceSteps = 10;
constexpr float kLearningRate = 0.01f;

/// A column-parallel linear layer, an activation and a row-parallel linear layer.
absl::StatusOr<LayerRequest> MakeMlp(ScenarioContext& context) {
  const int64_t unit = IsMxfp8(context.recipe()) ? 128 : 32;
  LayerRequest mlp;
  mlp.layer.kind = LayerKind::kChain;
  std::vector<OperationSpec>& operations = mlp.layer.operations;
  operations.resize(3);
  operations[0].name = "fc1";
  operations[0].parallel_mode = ParallelMode::kColumn;
  operations[1].name = "gelu";
  operations[1].kind = OperationKind::kActivation;
  operations[2].name = "fc2";
  operations[2].parallel_mode = ParallelMode::kRow;
  const auto normal = [&](uint64_t seed, Shape shape) {
    return context.Generate(Distribution::kNormal, seed, DType::kBF16, std::move(shape));
  };
  QG_ASSIGN_OR_RETURN(mlp.x, normal(1, {2 * unit, 2 * unit}));
  QG_ASSIGN_OR_RETURN(mlp.grad_output, normal(2, {2 * unit, 2 * unit}));
  QG_ASSIGN_OR_RETURN(mlp.parameters["fc1.weight"], normal(3, {2 * unit, 2 * unit}));
  QG_ASSIGN_OR_RETURN(mlp.parameters["fc2.weight"], normal(4, {2 * unit, 2 * unit}));
  mlp.seed = 5;
  return mlp;
}

/// y and the gradients of every step, on the host.
using Trace = std::vector<std::vector<NamedTensor>>;

/// Steps of gradient descent on one rank. `step` says how the rank communicates.
absl::StatusOr<Trace> Train(ScenarioContext& context, Engine& engine, const LayerRequest& whole,
                            const ParallelStep& step) {
  QG_ASSIGN_OR_RETURN(LayerRequest shard, ShardLayer(engine, whole, step));
  const Tensor x = shard.x;
  Trace trace;
  for (int i = 0; i < kTraceSteps; ++i) {
    // Scales x so that the amaxes change from step to step.
    QG_ASSIGN_OR_RETURN(
        shard.x, engine.Scale(x, static_cast<float>(i % 4 + 1), x.dtype(), context.cancellation()));
    shard.seed = static_cast<uint64_t>(i);
    QG_ASSIGN_OR_RETURN(LayerResult result, RunLayer(engine, shard, context.recipe(), Arithmetic(),
                                                     context.cancellation()));
    if (!result.state.empty()) {
      QG_ASSIGN_OR_RETURN(shard.delayed, StatesAfter(engine, result));
    }
    for (NamedTensor& output : result.outputs) {
      const std::string weight = absl::StrCat(output.name.substr(0, 3), ".weight");
      if (output.name.ends_with(".dw")) {
        Tensor& parameter = shard.parameters.at(weight);
        QG_ASSIGN_OR_RETURN(
            const Tensor change,
            engine.Scale(output.tensor, -kLearningRate, parameter.dtype(), context.cancellation()));
        QG_ASSIGN_OR_RETURN(
            parameter, engine.Add(parameter, change, parameter.dtype(), context.cancellation()));
      }
      QG_ASSIGN_OR_RETURN(output.tensor, engine.ToHost(output.tensor, context.cancellation()));
    }
    trace.push_back(std::move(result.outputs));
  }
  return trace;
}

/// The traces of both ranks, computed by layers that gather first and reduce last, on the reference
/// engine and without any fault.
absl::StatusOr<std::vector<Trace>> ExpectedTraces(ScenarioContext& context,
                                                  const LayerRequest& whole) {
  QG_ASSIGN_OR_RETURN(const auto world,
                      World::Create({.engines = {&context.reference(), &context.reference()}}));
  std::vector<Trace> traces(2);
  QG_RETURN_IF_ERROR(world->Run(
      [&](Rank& rank) -> absl::Status {
        const ParallelStep step{.tp = &rank.group(kWorldGroup), .sequence_parallel = true};
        QG_ASSIGN_OR_RETURN(traces[static_cast<size_t>(rank.index())],
                            Train(context, rank.engine(), whole, step));
        return absl::OkStatus();
      },
      context.cancellation()));
  return traces;
}

absl::Status CheckTrace(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const LayerRequest whole, MakeMlp(context));
  QG_ASSIGN_OR_RETURN(const std::vector<Trace> expected, ExpectedTraces(context, whole));
  QG_ASSIGN_OR_RETURN(const auto world, MakeVirtualRanks(context, 2));
  std::vector<Trace> subjects(2);
  RunBodies(context, "training", *world, [&](Rank& rank) -> absl::Status {
    QG_ASSIGN_OR_RETURN(const auto end, VirtualOverlap::Open(rank));
    ParallelStep step = OverlappedStep(context.recipe(), *end);
    if (!Overlaps(context.recipe())) step.column_overlap = step.row_overlap = {};
    QG_ASSIGN_OR_RETURN(subjects[static_cast<size_t>(rank.index())],
                        Train(context, rank.engine(), whole, step));
    return absl::OkStatus();
  });
  for (size_t rank = 0; rank < 2; ++rank) {
    for (size_t step = 0; step < subjects[rank].size(); ++step) {
      context.SetStep(static_cast<int64_t>(step) + 1);
      for (size_t i = 0; i < expected[rank][step].size(); ++i) {
        const NamedTensor& one = expected[rank][step][i];
        QG_RETURN_IF_ERROR(context.ExpectSameBits(absl::StrCat("rank ", rank, " ", one.name),
                                                  subjects[rank][step][i].tensor, one.tensor));
      }
    }
  }
  return absl::OkStatus();
}

// ---- What gives way

/// One step with every method left open, of dims that mxfp8 cannot cut.
absl::Status CheckGivesWay(ScenarioContext& context) {
  ParallelSpec parallel{.tensor_parallel = 2, .sequence_parallel = true};
  parallel.overlap.emplace();
  for (const ParallelMode mode : kParallelModes) {
    QG_ASSIGN_OR_RETURN(const LayerRequest whole, MakeParallelLinear(context, mode, 64, 60));
    QG_ASSIGN_OR_RETURN(const auto world, MakeVirtualRanks(context, 2));
    std::vector<StepTensors> subjects(2);
    RunBodies(context, "step", *world, [&](Rank& rank) -> absl::Status {
      QG_ASSIGN_OR_RETURN(const auto end, VirtualOverlap::Open(rank));
      ParallelStep step = StepOf(parallel, context.recipe());
      step.tp = &end->overlap->group();
      step.overlap = end->overlap.get();
      QG_ASSIGN_OR_RETURN(const LayerRequest shard, ShardOn(rank, whole, step));
      QG_ASSIGN_OR_RETURN(StepTensors tensors, OneStep(context, rank, shard));
      QG_ASSIGN_OR_RETURN(subjects[static_cast<size_t>(rank.index())],
                          OnHost(rank, std::move(tensors)));
      return absl::OkStatus();
    });
    QG_RETURN_IF_ERROR(ExpectStepsOfRanks(context, subjects, whole, true));
  }
  return absl::OkStatus();
}

// ---- What comes back (bug class 42)

/// Two layers that share their buffers, each with forward and backward. The results of the first
/// are compared after the second has run.
absl::Status CheckGradientsLast(ScenarioContext& context) {
  std::vector<LayerRequest> wholes;
  for (const uint64_t seed : {30, 40}) {
    QG_ASSIGN_OR_RETURN(wholes.emplace_back(),
                        OverlappedLinear(context, ParallelMode::kColumn, seed));
  }
  QG_ASSIGN_OR_RETURN(const auto world, MakeVirtualRanks(context, 2));
  std::vector<std::vector<StepTensors>> subjects(2, std::vector<StepTensors>(2));  // [layer][rank]
  RunBodies(context, "two layers", *world, [&](Rank& rank) -> absl::Status {
    QG_ASSIGN_OR_RETURN(const auto end, VirtualOverlap::Open(rank));
    for (size_t layer = 0; layer < 2; ++layer) {
      QG_ASSIGN_OR_RETURN(const LayerRequest shard,
                          ShardOn(rank, wholes[layer], OverlappedStep(context.recipe(), *end)));
      QG_ASSIGN_OR_RETURN(subjects[layer][static_cast<size_t>(rank.index())],
                          OneStep(context, rank, shard));
    }
    // Reads the results after both layers have run and while the buffers exist.
    for (std::vector<StepTensors>& of_layer : subjects) {
      StepTensors& step = of_layer[static_cast<size_t>(rank.index())];
      QG_ASSIGN_OR_RETURN(step, OnHost(rank, std::move(step)));
    }
    return absl::OkStatus();
  });
  for (size_t layer = 0; layer < 2; ++layer) {
    context.SetStep(static_cast<int64_t>(layer) + 1);
    QG_RETURN_IF_ERROR(ExpectStepsOfRanks(context, subjects[layer], wholes[layer], true));
  }
  return absl::OkStatus();
}

// ---- Precision (bug class 47)

/// Runs a step under one recipe, opens the overlap anew over the same buffers, and runs a step
/// under the recipe of the context.
absl::Status CheckReopened(ScenarioContext& context, ParallelMode mode) {
  QG_ASSIGN_OR_RETURN(const Recipe first,
                      Recipe::Parse(context.recipe().is_quantized() ? "bf16" : "fp8_current"));
  QG_ASSIGN_OR_RETURN(const LayerRequest whole, OverlappedLinear(context, mode, 50));
  QG_ASSIGN_OR_RETURN(const auto world, MakeVirtualRanks(context, 2));
  std::vector<StepTensors> subjects(2);
  RunBodies(context, "steps", *world, [&](Rank& rank) -> absl::Status {
    VirtualOverlap end(rank);
    for (const Recipe& recipe : {first, context.recipe()}) {
      QG_RETURN_IF_ERROR(end.Reopen(rank));
      QG_ASSIGN_OR_RETURN(const LayerRequest shard,
                          ShardOn(rank, whole, OverlappedStep(recipe, end)));
      StepOptions options = StepOptionsOf(context, shard);
      options.recipe = recipe;
      RankLayer layer(rank, shard);
      QG_ASSIGN_OR_RETURN(ForwardResult forward, layer.Forward(shard.x, options));
      QG_ASSIGN_OR_RETURN(const BackwardResult backward,
                          layer.Backward(std::move(forward.saved), shard.grad_output));
      QG_ASSIGN_OR_RETURN(subjects[static_cast<size_t>(rank.index())],
                          OnHost(rank, TensorsOf(layer, forward.y, backward)));
    }
    return absl::OkStatus();
  });
  return ExpectStepsOfRanks(context, subjects, whole, true);
}

absl::Status CheckPrecisions(ScenarioContext& context) {
  for (const ParallelMode mode : kParallelModes) QG_RETURN_IF_ERROR(CheckReopened(context, mode));
  return absl::OkStatus();
}

}  // namespace

ScenarioGroup OverlapLayerScenarios() {
  ScenarioGroup group;
  group.scenarios = {
      {.name = "overlapped-layer-equals-its-shards",
       .invariant = "A divided layer that hides its communication computes what its shards do.",
       .criterion = "y, dx and dw of column- and row-parallel layers bit-equal to the shards run "
                    "alone and sums in fp32 by hand, on 2 ranks and, but for mxfp8, on 4.",
       .faults = {kFaultScalesLeftBehind, kFaultCopyNotAwaited, kFaultChunkOrder},
       .recipes = {"bf16", "fp8_current", "fp8_current:power_2_scales=true", "mxfp8"},
       .run = &CheckLinears},
      {.name = "overlapped-training-follows-its-topology",
       .invariant = "Training with hidden communication is training without, step by step (D39).",
       .criterion = "y, dx and dw of ten steps of two layers, of columns and then of rows, on 2 "
                    "ranks, bit-equal to ranks that gather first on the reference engine; recipes "
                    "that do not overlap gather first as well.",
       .faults = {kFaultCopyNotAwaited, kFaultReduceScatterOwner},
       .recipes = {"bf16", "fp8_current", "fp8_delayed:amax_history_len=4", "fp8_block", "mxfp8",
                   "nvfp4"},
       .run = &CheckTrace},
      {.name = "overlap-gives-way-where-it-cannot",
       .invariant = "Of what a request leaves open, each recipe and mode overlaps what it can and "
                    "runs the rest without.",
       .criterion = "y, dx and dw of column- and row-parallel layers on 2 ranks with the default "
                    "overlap bit-equal to the shards run alone and sums in fp32 by hand.",
       .faults = {kFaultSumLeftToWgrad},
       .recipes = {"bf16", "bf16:backward_override=high_precision",
                   "fp8_current:backward_override=dequantized",
                   "fp8_current:backward_override=high_precision", "fp8_block", "mxfp8",
                   "mxfp8:backward_override=dequantized", "nvfp4:disable_stochastic_rounding=true"},
       .run = &CheckGivesWay},
      {.name = "gradients-outlive-shared-buffers",
       .invariant = "A gradient that was summed beside a GEMM stays what it was when another layer "
                    "takes the buffer.",
       .criterion = "y, dx and dw of two layers that share their buffers bit-equal to the shards "
                    "run alone, looked at after both.",
       .bug_classes = {42},
       .faults = {kFaultGradientInBuffer},
       .recipes = {"bf16", "fp8_current", "mxfp8"},
       .run = &CheckGradientsLast},
      {.name = "buffers-have-the-precision-of-their-filling",
       .invariant = "Overlapped calls that are opened anew under another recipe read what they "
                    "gather in its precision.",
       .criterion =
           "y, dx and dw after a step under another recipe over the same buffers bit-equal "
           "to the shards run alone.",
       .bug_classes = {47},
       .faults = {kFaultBufferPrecisionKept},
       .recipes = {"bf16", "fp8_current", "mxfp8"},
       .run = &CheckPrecisions},
  };
  group.faults = {
      InCode(kFaultSumLeftToWgrad,
             "dx is left to a wgrad that the step asks to overlap and that runs without."),
      InCommunication(kFaultGradientInBuffer,
                      "A bulk reduce-scatter gives its sum as a view of the shared buffer.", 42),
      InCommunication(kFaultBufferPrecisionKept,
                      "A shared buffer keeps the precision of what was first in it.", 47),
  };
  return group;
}

}  // namespace quantgate
