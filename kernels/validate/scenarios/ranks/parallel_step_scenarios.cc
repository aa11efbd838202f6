// Steps of layers that are divided over ranks: the group, the scale and the codes that each step
// uses.
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/layer/layer_faults.h"
#include "kernels/validate/scenarios/faults/comm_faults.h"
#include "kernels/validate/scenarios/oracles/expected_copy.h"
#include "kernels/validate/scenarios/oracles/history_model.h"
#include "kernels/validate/scenarios/ranks/parallel_subject.h"
#include "kernels/validate/scenarios/scenario_groups.h"

namespace quantgate {
namespace {

// ---- Groups (D18)

/// The two kinds of pairs of four ranks: neighbours, and ranks that are two apart.
constexpr const char* kPairs[] = {kNeighbours, kHalfApart};

/// The number of the pair of kind kPairs[group] that a rank is in, and its place in that pair.
int TeamOf(size_t group, int rank) { return group == 0 ? rank / 2 : rank % 2; }
int PlaceOf(size_t group, int rank) { return group == 0 ? rank % 2 : rank / 2; }

/// A layer for one pair. Every pair has data of its own, so that the wrong partner shows.
absl::StatusOr<LayerRequest> TeamLinear(ScenarioContext& context, ParallelMode mode, size_t group,
                                        int team) {
  return MakeParallelLinear(context, mode, 64, 60 + 10 * group + 4 * static_cast<uint64_t>(team));
}

struct InterleavedSteps {
  StepTensors in_group[2];
  Tensor alone;  ///< y of a forward in no group, after those in groups.
};

/// Runs one module on a rank: a forward in each group and one in none, then the backwards of the
/// two.
absl::StatusOr<InterleavedSteps> TakeInterleaved(ScenarioContext& context, Rank& rank,
                                                 const std::vector<LayerRequest>& wholes,
                                                 bool in_order) {
  std::vector<LayerRequest> shards;
  for (size_t group = 0; group < 2; ++group) {
    QG_ASSIGN_OR_RETURN(LayerRequest shard,
                        ShardOn(rank, wholes[group], rank.group(kPairs[group]), true));
    shards.push_back(std::move(shard));
  }
  RankLayer layer(rank, shards[0]);
  InterleavedSteps steps;
  std::vector<ForwardResult> forwards;
  for (const LayerRequest& shard : shards) {
    QG_ASSIGN_OR_RETURN(ForwardResult forward,
                        layer.Forward(shard.x, StepOptionsOf(context, shard)));
    forwards.push_back(std::move(forward));
  }
  StepOptions alone = StepOptionsOf(context, shards[0]);
  alone.parallel = nullptr;
  alone.grad_enabled = false;
  QG_ASSIGN_OR_RETURN(const ForwardResult last, layer.Forward(shards[0].x, alone));
  QG_ASSIGN_OR_RETURN(steps.alone, rank.engine().ToHost(last.y, rank.cancellation()));
  for (const size_t group : {in_order ? 0u : 1u, in_order ? 1u : 0u}) {
    QG_ASSIGN_OR_RETURN(
        const BackwardResult backward,
        layer.Backward(std::move(forwards[group].saved), shards[group].grad_output));
    QG_ASSIGN_OR_RETURN(steps.in_group[group],
                        OnHost(rank, TensorsOf(layer, forwards[group].y, backward)));
  }
  return steps;
}

/// Part `place` of two of the weight, as ranks of the first group divide it.
absl::StatusOr<Tensor> WeightOf(ScenarioContext& context, const LayerRequest& whole, int place) {
  return ShardOf(context.reference(), "weight", whole.parameters.at("weight"),
                 ParameterShardRule(whole.layer, "weight"), place, 2);
}

/// y of rank `rank` outside of any group, from its own parts of x and of the weight.
absl::StatusOr<Tensor> ExpectedAlone(ScenarioContext& context, const LayerRequest& whole,
                                     int rank) {
  const int place = PlaceOf(0, rank);
  LayerRequest request;
  QG_ASSIGN_OR_RETURN(request.parameters["weight"], WeightOf(context, whole, place));
  if (whole.layer.parallel_mode == ParallelMode::kRow) {
    QG_ASSIGN_OR_RETURN(
        request.x, ShardOf(context.reference(), "x", whole.x, InputColumns(whole.layer), place, 2));
  } else {
    QG_ASSIGN_OR_RETURN(request.x, RowPart(whole.x, place, 2));
  }
  QG_ASSIGN_OR_RETURN(LayerResult result, RunLayer(context.reference(), request, context.recipe(),
                                                   Arithmetic(), context.cancellation()));
  return result.outputs.front().tensor;
}

absl::Status CheckOneModule(ScenarioContext& context, ParallelMode mode, bool in_order) {
  std::vector<std::vector<LayerRequest>> wholes(4);
  for (int rank = 0; rank < 4; ++rank) {
    for (size_t group = 0; group < 2; ++group) {
      QG_ASSIGN_OR_RETURN(LayerRequest whole,
                          TeamLinear(context, mode, group, TeamOf(group, rank)));
      wholes[static_cast<size_t>(rank)].push_back(std::move(whole));
    }
  }
  QG_ASSIGN_OR_RETURN(const auto world, MakeVirtualRanks(context, 4));
  std::vector<InterleavedSteps> subjects(4);
  RunBodies(context, "interleaved steps", *world, [&](Rank& rank) -> absl::Status {
    const size_t i = static_cast<size_t>(rank.index());
    QG_ASSIGN_OR_RETURN(subjects[i], TakeInterleaved(context, rank, wholes[i], in_order));
    return absl::OkStatus();
  });
  for (int rank = 0; rank < 4; ++rank) {
    const size_t i = static_cast<size_t>(rank);
    for (size_t group = 0; group < 2; ++group) {
      // Ranks that are two apart have the same part of the weight, that of their place in the first
      // group.
      Tensor weight;
      if (group == 1) {
        QG_ASSIGN_OR_RETURN(weight, WeightOf(context, wholes[i][1], PlaceOf(0, rank)));
      }
      QG_ASSIGN_OR_RETURN(const std::vector<StepTensors> expected,
                          ExpectedRanks(context, wholes[i][group], 2, true, weight));
      QG_RETURN_IF_ERROR(ExpectStep(
          context, absl::StrCat(kPairs[group], " ", ModeText(mode, true, rank)),
          subjects[i].in_group[group], expected[static_cast<size_t>(PlaceOf(group, rank))]));
    }
    QG_ASSIGN_OR_RETURN(const Tensor alone, ExpectedAlone(context, wholes[i][0], rank));
    QG_RETURN_IF_ERROR(
        context.ExpectSameBits(absl::StrCat("in no group, ", ModeText(mode, false, rank), " y"),
                               subjects[i].alone, alone));
  }
  return absl::OkStatus();
}

absl::Status CheckGroups(ScenarioContext& context) {
  for (const ParallelMode mode : kParallelModes) {
    for (const bool in_order : {true, false}) {
      QG_RETURN_IF_ERROR(CheckOneModule(context, mode, in_order));
    }
  }
  return absl::OkStatus();
}

// ---- What is saved (D19, D21)

/// Runs three forwards (training, evaluation, training) before the backwards. Each step must equal
/// the same step by itself.
absl::Status CheckSaved(ScenarioContext& context) {
  std::vector<LayerRequest> wholes;
  for (const uint64_t seed : {120, 130, 140}) {
    QG_ASSIGN_OR_RETURN(LayerRequest whole,
                        MakeParallelLinear(context, ParallelMode::kColumn, 256, seed));
    // Gives every step an amax of its own.
    QG_ASSIGN_OR_RETURN(whole.x, context.Generate(Distribution::kNormal, seed, DType::kBF16,
                                                  whole.x.shape(), static_cast<float>(seed)));
    wholes.push_back(std::move(whole));
  }
  QG_ASSIGN_OR_RETURN(const auto world, MakeVirtualRanks(context, 2));
  std::vector<std::vector<StepTensors>> subjects(2, std::vector<StepTensors>(3));
  RunBodies(context, "steps", *world, [&](Rank& rank) -> absl::Status {
    std::vector<LayerRequest> shards;
    for (const LayerRequest& whole : wholes) {
      QG_ASSIGN_OR_RETURN(LayerRequest shard, ShardOn(rank, whole, rank.group(kWorldGroup), true));
      shards.push_back(std::move(shard));
    }
    RankLayer layer(rank, shards[0]);
    std::vector<ForwardResult> forwards;
    for (size_t i = 0; i < 3; ++i) {
      StepOptions options = StepOptionsOf(context, shards[i]);
      options.grad_enabled = i != 1;
      QG_ASSIGN_OR_RETURN(ForwardResult forward, layer.Forward(shards[i].x, options));
      forwards.push_back(std::move(forward));
    }
    std::vector<StepTensors>& steps = subjects[static_cast<size_t>(rank.index())];
    QG_ASSIGN_OR_RETURN(steps[1].y, rank.engine().ToHost(forwards[1].y, rank.cancellation()));
    for (const size_t i : {0u, 2u}) {
      QG_ASSIGN_OR_RETURN(const BackwardResult backward,
                          layer.Backward(std::move(forwards[i].saved), shards[i].grad_output));
      QG_ASSIGN_OR_RETURN(steps[i], OnHost(rank, TensorsOf(layer, forwards[i].y, backward)));
    }
    return absl::OkStatus();
  });
  for (size_t i = 0; i < 3; ++i) {
    QG_ASSIGN_OR_RETURN(std::vector<StepTensors> expected,
                        ExpectedRanks(context, wholes[i], 2, true));
    for (int rank = 0; rank < 2; ++rank) {
      StepTensors& one = expected[static_cast<size_t>(rank)];
      if (i == 1) one.dx = one.dw = Tensor();
      QG_RETURN_IF_ERROR(ExpectStep(
          context, absl::StrCat("step ", i, ", ", ModeText(ParallelMode::kColumn, true, rank)),
          subjects[static_cast<size_t>(rank)][i], one));
    }
  }
  return absl::OkStatus();
}

// ---- Histories of delayed scaling (D33)

/// The factor on x and grad_output of each step; under 0 the step sees zeros alone.
constexpr float kStepScales[] = {1.0f, 8.0f, 0.0f, 0.25f, 0.0f, 0.0f, 2.0f};

/// Steps of pair `team` of neighbours; each pair has amaxes of its own.
absl::StatusOr<std::vector<LayerRequest>> DelayedSteps(ScenarioContext& context, int team) {
  std::vector<LayerRequest> steps;
  for (const float scale : kStepScales) {
    const uint64_t seed = 200 + 10 * steps.size() + static_cast<uint64_t>(team);
    QG_ASSIGN_OR_RETURN(LayerRequest step,
                        MakeParallelLinear(context, ParallelMode::kColumn, 64, seed));
    for (Tensor* tensor : {&step.x, &step.grad_output}) {
      QG_ASSIGN_OR_RETURN(
          *tensor, context.Generate(Distribution::kNormal, seed + 5, DType::kBF16, tensor->shape(),
                                    scale * static_cast<float>(1 + team)));
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

/// Runs all steps of a rank, each with the states that the step before left, and adds the states
/// after each to `after`.
absl::Status TakeDelayedSteps(ScenarioContext& context, Rank& rank,
                              const std::vector<LayerRequest>& wholes,
                              std::vector<StatesByName>& after) {
  StatesByName states;
  for (const LayerRequest& whole : wholes) {
    QG_ASSIGN_OR_RETURN(LayerRequest shard, ShardOn(rank, whole, rank.group(kNeighbours), true));
    shard.delayed = states;
    QG_ASSIGN_OR_RETURN(const LayerResult result, RunLayer(rank.engine(), shard, context.recipe(),
                                                           Arithmetic(), rank.cancellation()));
    QG_ASSIGN_OR_RETURN(states, StatesAfter(rank.engine(), result));
    after.push_back(states);
  }
  return absl::OkStatus();
}

/// Expects the states to equal those of a model that sees the whole tensors of the pair.
absl::Status ExpectHistories(ScenarioContext& context, const std::string& where,
                             const std::vector<LayerRequest>& wholes,
                             const std::vector<StatesByName>& after) {
  const DelayedScalingOptions& options = context.recipe().delayed_scaling();
  constexpr float kE4m3Largest = 448.0f, kE5m2Largest = 57344.0f;
  std::map<std::string, HistoryModel> models = {{"input", {options, kE4m3Largest}},
                                                {"weight", {options, kE4m3Largest}},
                                                {"grad_output", {options, kE5m2Largest}}};
  for (size_t step = 0; step < after.size(); ++step) {
    context.SetStep(static_cast<int64_t>(step));
    const LayerRequest& whole = wholes[step];
    models.at("input").NoteCast(ExpectedAmax(whole.x));
    models.at("weight").NoteCast(ExpectedAmax(whole.parameters.at("weight")));
    models.at("grad_output").NoteCast(ExpectedAmax(whole.grad_output));
    for (auto& [name, model] : models) {
      model.Update();
      const auto found = after[step].find(name);
      context.ExpectEqual("state of " + name, found != after[step].end(), true);
      if (found == after[step].end()) return absl::OkStatus();
      context.ExpectSameFloat(where + name + " scale", *found->second.scale.as<float>(),
                              model.scale());
      QG_ASSIGN_OR_RETURN(const Tensor history,
                          Tensor::FromBytes(DType::kF32, {options.amax_history_len},
                                            std::as_bytes(std::span(model.history()))));
      QG_RETURN_IF_ERROR(context.ExpectSameBits(where + name + " amax_history",
                                                found->second.amax_history, history));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRankHistories(ScenarioContext& context) {
  std::vector<std::vector<LayerRequest>> of_teams;
  for (int team = 0; team < 2; ++team) {
    QG_ASSIGN_OR_RETURN(of_teams.emplace_back(), DelayedSteps(context, team));
  }
  QG_ASSIGN_OR_RETURN(const auto world, MakeVirtualRanks(context, 4));
  std::vector<std::vector<StatesByName>> after(4);
  RunBodies(context, "steps", *world, [&](Rank& rank) {
    const size_t team = static_cast<size_t>(TeamOf(0, rank.index()));
    return TakeDelayedSteps(context, rank, of_teams[team],
                            after[static_cast<size_t>(rank.index())]);
  });
  for (int rank = 0; rank < 4; ++rank) {
    QG_RETURN_IF_ERROR(ExpectHistories(context, absl::StrCat("rank ", rank, " "),
                                       of_teams[static_cast<size_t>(TeamOf(0, rank))],
                                       after[static_cast<size_t>(rank)]));
  }
  return absl::OkStatus();
}

// ---- Hybrid recipes (D23)

/// The values of the shards' rowwise codes, made under the amax of the whole tensor, put together.
absl::StatusOr<Tensor> ValuesOfShards(ScenarioContext& context, const Tensor& whole, int size) {
  const Quantizer& quantizer = context.recipe().QuantizerFor(TensorRole::kInput);
  Engine& reference = context.reference();
  QG_ASSIGN_OR_RETURN(const TensorAmaxes amaxes,
                      reference.MeasureAmax(whole, quantizer, {true, false}, nullptr));
  QuantizeArguments arguments;
  arguments.group_amax_rowwise = amaxes.rowwise;
  std::vector<Tensor> values;
  for (int rank = 0; rank < size; ++rank) {
    QG_ASSIGN_OR_RETURN(const Tensor shard, RowPart(whole, rank, size));
    QG_ASSIGN_OR_RETURN(const QuantizedTensor codes,
                        reference.Quantize(shard, quantizer, {true, false}, arguments, nullptr));
    QG_ASSIGN_OR_RETURN(Tensor part,
                        reference.Dequantize(codes, Usage::kRowwise, DType::kBF16, nullptr));
    values.push_back(std::move(part));
  }
  return reference.ConcatenateRows(values, nullptr);
}

absl::Status CheckHybrid(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(LayerRequest whole,
                      MakeParallelLinear(context, ParallelMode::kColumn, 128, 150));
  QG_ASSIGN_OR_RETURN(const std::vector<StepTensors> subjects,
                      StepOnRanks(context, whole, 2, true));
  QG_ASSIGN_OR_RETURN(whole.x, ValuesOfShards(context, whole.x, 2));
  return ExpectStepsOfRanks(context, subjects, whole, true);
}

}  // namespace

ScenarioGroup ParallelStepScenarios() {
  ScenarioGroup group;
  group.faults = {
      InCode(kFaultBackwardUsesLastGroup,
             "Backward communicates in the group of the last forward, which the module keeps.", 5),
      InCode(kFaultGroupKept,
             "A step without a group reduces its amax over the group of the step before.", 6),
      InCode(kFaultColumnBytesStale,
             "Columnwise codes of an earlier step are kept in place of this one's.", 2),
      InCode(kFaultScaleOfQuantizer,
             "Backward's gather takes the scale that the quantizer had last in place of the one "
             "saved with the codes.",
             4),
      InCode(kFaultGroupOfWrapper,
             "The amax group is set on a hybrid quantizer and reaches neither of its two rules.",
             45),
  };
  group.scenarios = {
      {.name = "a-step-keeps-its-group",
       .invariant = "Backward communicates in its own forward's group, and a step without one "
                    "communicates with nobody.",
       .criterion = "Steps of one module in two groups with other members, backwards in both "
                    "orders, bit-equal to each rank's shards run alone and summed by hand.",
       .bug_classes = {5, 6},
       .faults = {kFaultBackwardUsesLastGroup, kFaultGroupKept},
       .recipes = {"fp8_current", "nvfp4:disable_stochastic_rounding=true"},
       .run = &CheckGroups},
      {.name = "gathered-codes-are-of-their-step",
       .invariant = "What wgrad gathers are the codes and scales that its own forward saved.",
       .criterion = "Two steps in flight with an evaluation between, bit-equal to each rank's "
                    "shards run alone.",
       .bug_classes = {2},
       .faults = {kFaultColumnBytesStale},
       .recipes = {"fp8_block", "mxfp8", "nvfp4:disable_stochastic_rounding=true"},
       .run = &CheckSaved},
      {.name = "gathered-scale-is-the-saved-one",
       .invariant = "Codes that are gathered in backward are read under the scale that they were "
                    "made with.",
       .criterion = "Two steps in flight with an evaluation between, bit-equal to each rank's "
                    "shards run alone.",
       .bug_classes = {4},
       .faults = {kFaultScaleOfQuantizer},
       .recipes = {"fp8_current", "fp8_current:power_2_scales=true"},
       .run = &CheckSaved},
      {.name = "histories-are-the-groups",
       .invariant = "Ranks of a group update their scales by the amaxes of all of them, of steps "
                    "that saw nothing as the recipe's update says.",
       .criterion = "Scales and histories of x, weight and dy bit-equal to a model that sees the "
                    "whole tensors, after each of seven steps of two groups.",
       .faults = {kFaultAmaxNotReduced, kFaultRankZeroAmax, kFaultAmaxOverWorld},
       .recipes = {"fp8_delayed:amax_history_len=3",
                   "fp8_delayed:amax_history_len=3,update=unfused"},
       .run = &CheckRankHistories},
      {.name = "hybrid-shards-have-the-groups-amax",
       .invariant = "Under a hybrid recipe each rule's amax is that of all ranks' shards.",
       .criterion = "Bit-equal to the layer of what the shards' codes stand for under the amax of "
                    "the whole.",
       .bug_classes = {45},
       .faults = {kFaultGroupOfWrapper},
       .recipes = {"hybrid:fprop=fp8_current,dgrad=fp8_current,wgrad=fp8_current"},
       .run = &CheckHybrid},
  };
  return group;
}

}  // namespace quantgate
