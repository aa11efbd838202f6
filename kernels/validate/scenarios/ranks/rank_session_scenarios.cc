// Training sessions whose copies have rows of each weight, or elements of its master and moments
// (docs/ranks.md sections 9.1 and 9.3).
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/training/session_faults.h"
#include "kernels/training/sharding/shard_faults.h"
#include "kernels/validate/scenarios/faults/comm_faults.h"
#include "kernels/validate/scenarios/oracles/expected_copy.h"
#include "kernels/validate/scenarios/ranks/parallel_subject.h"
#include "kernels/validate/scenarios/ranks/rank_session_subject.h"
#include "kernels/validate/scenarios/scenario_groups.h"
#include "kernels/validate/scenarios/sessions/session_subject.h"

namespace quantgate {
namespace {

/// The spec on `copies` copies that divide weights, masters and moments, or the latter two, as
/// `division` says; on one rank if `copies` is 1.
SessionSpec OnCopies(SessionSpec spec, int copies, CopyDivision division) {
  spec.parallel.reset();
  if (copies == 1) return spec;
  spec.parallel.emplace();
  spec.parallel->tensor_parallel = 1;
  spec.parallel->data_parallel = copies;
  return DividedOverCopies(std::move(spec), division);
}

SessionSpec ShardedSpec(const Recipe& recipe, WeightStorage weights) {
  SessionSpec spec = TwoLayerSpec(recipe);
  spec.weights = weights;
  spec.optimizer.kind = OptimizerSpec::Kind::kAdam;
  spec.optimizer.adam.learning_rate = 0.125f;
  return spec;
}

using ComparedCopies = ComparedRanks<CopiesByHand>;
/// The batch of TwoLayerSpec, whose x and y have 32 columns.
constexpr BatchShape kTwoLayerBatch = {128, 32, 32};

absl::Status CheckShardedTraining(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const auto parameters, MakeParameters(context, 60));
  int64_t run = 0;
  for (const WeightStorage weights : StoragesByHand(context.recipe())) {
    for (const bool reshards : {true, false}) {
      context.SetStep(run++);
      SessionSpec spec = OnCopies(ShardedSpec(context.recipe(), weights), 2, CopyDivision::kRows);
      spec.parallel->reshard_after_forward = reshards;
      ComparedCopies training(context, kTwoLayerBatch,
                              CopiesByHand(context.reference(), spec, parameters, 2));
      QG_RETURN_IF_ERROR(training.session().Open(spec, parameters));
      QG_RETURN_IF_ERROR(TrainOverAnUpdate(training));
    }
  }
  return absl::OkStatus();
}

absl::Status GoOnElsewhere(ScenarioContext& context, WeightStorage weights, CopyDivision division) {
  QG_ASSIGN_OR_RETURN(const auto parameters, MakeParameters(context, 80));
  const SessionSpec spec = ShardedSpec(context.recipe(), weights);
  ComparedCopies training(context, kTwoLayerBatch,
                          CopiesByHand(context.reference(), spec, parameters, 4));
  QG_RETURN_IF_ERROR(training.session().Open(OnCopies(spec, 4, division), parameters));
  QG_RETURN_IF_ERROR(training.TrainStep(1));
  QG_RETURN_IF_ERROR(training.Optimize());
  for (const int copies : {2, 1, 4}) {
    context.SetStep(copies);
    QG_RETURN_IF_ERROR(training.session().ResumeAs(OnCopies(spec, copies, division)));
    training.by_hand().ResumeAs(copies);
    QG_RETURN_IF_ERROR(training.TrainStep(2 + copies));
    QG_RETURN_IF_ERROR(training.Optimize());
  }
  return training.TrainStep(9);
}

absl::Status CheckGoingOnElsewhere(ScenarioContext& context) {
  for (const WeightStorage weights : StoragesByHand(context.recipe())) {
    for (const CopyDivision division : {CopyDivision::kNone, CopyDivision::kRows}) {
      QG_RETURN_IF_ERROR(GoOnElsewhere(context, weights, division));
    }
    // Masters divided by elements cannot be cast to the two formats of a hybrid recipe.
    const bool is_cast = weights == WeightStorage::kQuantized;
    if (is_cast && context.recipe().name() == "hybrid") continue;
    QG_RETURN_IF_ERROR(GoOnElsewhere(context, weights, CopyDivision::kElements));
  }
  return absl::OkStatus();
}

// ---- One divided layer

constexpr int64_t kDividedRows = 128, kDividedWidth = 128;

/// One linear layer whose weight `places` ranks divide, on `copies` copies.
SessionSpec DividedSpec(const Recipe& recipe, WeightStorage weights, ParallelMode mode, int places,
                        int copies) {
  SessionSpec spec = ShardedSpec(recipe, weights);
  spec.layers.resize(1);
  spec.layers[0].name = "fc";
  spec.layers[0].spec.parallel_mode = mode;
  spec.parallel.emplace();
  spec.parallel->tensor_parallel = places;
  spec.parallel->data_parallel = copies;
  return spec;
}

using ComparedPlaces = ComparedRanks<PlacesByHand>;

absl::StatusOr<std::unique_ptr<ComparedPlaces>> OpenDivided(ScenarioContext& context,
                                                            const SessionSpec& spec) {
  std::map<std::string, Tensor> parameters;
  QG_ASSIGN_OR_RETURN(parameters["fc.weight"],
                      context.Generate(Distribution::kNormal, 90, DType::kBF16,
                                       {kDividedWidth, kDividedWidth}, 0.125f));
  if (spec.layers[0].spec.parallel_mode == ParallelMode::kColumn) {
    QG_ASSIGN_OR_RETURN(
        parameters["fc.bias"],
        context.Generate(Distribution::kNormal, 91, DType::kBF16, {kDividedWidth}, 0.125f));
  }
  auto training = std::make_unique<ComparedPlaces>(
      context, BatchShape{kDividedRows, kDividedWidth, kDividedWidth},
      PlacesByHand(context.reference(), spec, parameters, spec.parallel->data_parallel));
  QG_RETURN_IF_ERROR(training->session().Open(spec, parameters));
  return training;
}

absl::Status CheckGradientGroups(ScenarioContext& context) {
  for (const CopyDivision division : kCopyDivisions) {
    context.SetStep(static_cast<int64_t>(division));
    const SessionSpec spec =
        DividedSpec(context.recipe(), WeightStorage::kHighPrecision, ParallelMode::kColumn, 2, 2);
    QG_ASSIGN_OR_RETURN(const auto training,
                        OpenDivided(context, DividedOverCopies(spec, division)));
    // The second update applies the sum of the gradients of two backwards.
    for (const uint64_t seed : {1, 2}) {
      QG_RETURN_IF_ERROR(training->TrainStep(seed));
      if (seed == 2) QG_RETURN_IF_ERROR(training->TrainStep(3));
      QG_RETURN_IF_ERROR(training->Optimize());
    }
    QG_RETURN_IF_ERROR(training->TrainStep(4));
  }
  return absl::OkStatus();
}

absl::Status CheckDividedTraining(ScenarioContext& context) {
  for (const ParallelMode mode : kParallelModes) {
    for (const auto& [places, copies] : {std::pair(2, 2), std::pair(4, 1)}) {
      // Sequence parallelism meets both modes and both divisions.
      const bool has_rows = (mode == ParallelMode::kColumn) == (places == 2);
      context.SetStep(10 * places + (has_rows ? 1 : 0));
      SessionSpec spec =
          DividedSpec(context.recipe(), WeightStorage::kHighPrecision, mode, places, copies);
      spec.parallel->sequence_parallel = has_rows;
      QG_ASSIGN_OR_RETURN(const auto training, OpenDivided(context, spec));
      QG_RETURN_IF_ERROR(TrainOverAnUpdate(*training));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckHeldWeightAmaxes(ScenarioContext& context) {
  for (const CopyDivision division : kCopyDivisions) {
    context.SetStep(static_cast<int64_t>(division));
    SessionSpec spec = DividedOverCopies(
        DividedSpec(context.recipe(), WeightStorage::kQuantized, ParallelMode::kColumn, 2, 2),
        division);
    using Kind = AmaxGroup::Kind;
    const bool is_whole = division == CopyDivision::kNone;
    spec.parallel->amax_groups = {{TensorRole::kInput, {Kind::kData}},
                                  {TensorRole::kWeight, {is_whole ? Kind::kTensor : Kind::kWorld}},
                                  {TensorRole::kGradOutput, {Kind::kData}}};
    QG_ASSIGN_OR_RETURN(const auto training, OpenDivided(context, spec));
    training->by_hand().ShareAmaxes();
    for (const uint64_t seed : {1, 2}) {
      QG_RETURN_IF_ERROR(training->TrainStep(seed));
      QG_RETURN_IF_ERROR(training->Optimize());
    }
    QG_RETURN_IF_ERROR(training->TrainStep(3));
  }
  return absl::OkStatus();
}

}  // namespace

ScenarioGroup RankSessionScenarios() {
  ScenarioGroup group;
  const std::vector<std::string> recipes = {"bf16",
                                            "fp8_current",
                                            "fp8_delayed:amax_history_len=3",
                                            "fp8_block",
                                            "mxfp8",
                                            "nvfp4",
                                            "fp8_rowwise",
                                            "hybrid:fprop=mxfp8,dgrad=fp8_block,wgrad=mxfp8"};
  group.scenarios.push_back(
      {.name = "sharded-training-follows-its-copies",
       .invariant = "Copies that have rows of each weight and gather it for each pass train as "
                    "copies that have all of it, microbatches in flight over an update among them.",
       .criterion = "y, dx and every gradient bit-equal to copies by hand and sums in fp32 in "
                    "their order, on 2 ranks; weights quantized and not, gathered again for "
                    "backward and kept.",
       .faults = {kFaultGatheredOnce, kFaultBackwardGathersLive, kFaultShardScaleKept,
                  kFaultShardAmaxAlone, kFaultRowBytesForColumns, kFaultMastersOneRowOff,
                  kFaultGradientSummedTwice, kFaultAmaxNotReduced},
       .recipes = recipes,
       .run = &CheckShardedTraining});
  group.scenarios.push_back(
      {.name = "sharded-training-goes-on-elsewhere",
       .invariant = "A session of 4 ranks with each weight, with rows of it, or with elements of "
                    "its master and moments, goes on from its checkpoint on 2, on 1 and on 4 "
                    "again.",
       .criterion = "y, dx and every gradient after each move bit-equal to as many copies by hand; "
                    "the next checkpoint the same; weights quantized and not.",
       .faults = {kFaultMastersOneRowOff, kFaultFragmentsOneOff, kFaultFragmentPlaceIgnored,
                  kFaultCheckpointDropsHistories, kFaultCheckpointRestartsRandomNumbers},
       .recipes = recipes,
       .run = &CheckGoingOnElsewhere});
  group.scenarios.push_back(
      {.name = "gradients-summed-once-over-copies",
       .invariant = "An update takes the sum of what the copies' backwards have added up, over the "
                    "copies alone and once, where the layer is divided too.",
       .criterion =
           "y, dx, dw and db of a column-parallel layer on 2 x 2 ranks bit-equal to its parts "
           "by hand on two copies; rows of each weight, elements of its masters and all of it.",
       .faults = {kFaultGradientOfOtherGroup, kFaultGradientSummedTwice},
       .recipes = {"bf16", "fp8_current", "mxfp8"},
       .run = &CheckGradientGroups});
  group.scenarios.push_back(
      {.name = "divided-layers-train-as-their-parts",
       .invariant = "Ranks that divide a layer's weight train as its parts by themselves, whose "
                    "partial products are summed in the order of the ranks, under one state of "
                    "delayed scaling.",
       .criterion = "y, dx, dw and db bit-equal to the parts by hand; column- and row-parallel, "
                    "sequence-parallel and not, on 2 x 2 and 4 ranks, with microbatches in flight "
                    "over an update, one recomputed, one moved to the host and back.",
       .faults = {kFaultReduceScatterOwner, kFaultChunkOrder, kFaultAmaxNotReduced,
                  kFaultGradientOfOtherGroup},
       .recipes = {"bf16", "fp8_current", "fp8_delayed:amax_history_len=3", "fp8_block", "mxfp8",
                   "fp8_rowwise"},
       .run = &CheckDividedTraining});
  group.scenarios.push_back(
      {.name = "held-weights-follow-their-group",
       .invariant =
           "Weights that are held quantized are quantized under the amax of the group that "
           "the session names, when it opens and after every update.",
       .criterion =
           "y, dx, dw and db of a column-parallel layer on 2 x 2 ranks bit-equal to its parts "
           "by hand on two copies, each under the amaxes of the whole weight and of both "
           "copies' rows by plain loops; rows of each weight, elements of its masters and all "
           "of it.",
       .faults = {kFaultUpdateForgetsGroup, kFaultAmaxNotReduced, kFaultShardAmaxAlone},
       .recipes = {"fp8_current", "nvfp4:disable_stochastic_rounding=true"},
       .run = &CheckHeldWeightAmaxes});
  group.faults = {
      InCode(kFaultUpdateForgetsGroup,
             "Quantizes weights after an update under each rank's own amax."),
      InCode(kFaultGatheredOnce, "Takes in every forward the weight that the first one gathered."),
      InCode(kFaultBackwardGathersLive,
             "Gathers for backward the rows as an update has left them since their forward."),
      InCode(kFaultShardScaleKept,
             "Puts new codes in place after an update and leaves the scales of the old ones."),
      InCode(kFaultMastersOneRowOff,
             "Begins each rank's rows of masters and moments one row before its weight's."),
      InCode(kFaultFragmentPlaceIgnored,
             "Joins a checkpoint's elements of masters and moments from the last rank to the "
             "first."),
      InCode(kFaultGradientOfOtherGroup,
             "Sums gradients over the tensor-parallel group in place of the copies."),
      InCode(kFaultGradientSummedTwice, "Sums the sums of gradients over the copies once more."),
  };
  return group;
}

}  // namespace quantgate
