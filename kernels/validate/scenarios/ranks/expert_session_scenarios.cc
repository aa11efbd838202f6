// Training sessions whose experts are divided over ranks (docs/ranks.md section 9.2), or
// their weights (section 2.1).
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/layer/layer_faults.h"
#include "kernels/training/session_faults.h"
#include "kernels/training/sharding/shard_faults.h"
#include "kernels/validate/scenarios/faults/comm_faults.h"
#include "kernels/validate/scenarios/oracles/experts_by_hand.h"
#include "kernels/validate/scenarios/scenario_groups.h"

namespace quantgate {
namespace {

// When a session resumes on other ranks, gradients that no update has applied yet move with their
// experts.
absl::Status CheckExpertTraining(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(auto parameters, MakeExperts(context));
  QG_RETURN_IF_ERROR(AddBiases(context, kExpertOut, parameters));
  for (const WeightStorage storage : StoragesByHand(context.recipe())) {
    SessionSpec spec = ExpertSpec(context.recipe(), storage, FewRows());
    if (storage == WeightStorage::kQuantized) spec.masters = Masters::kBf16Remainder;
    ComparedRanks<ExpertsByHand<>> training(context, {192, kExpertIn, kExpertOut},
                                            ExpertsByHand<>(context.reference(), spec, parameters));
    QG_RETURN_IF_ERROR(training.session().Open(OnExpertRanks(spec, 4), parameters));
    QG_RETURN_IF_ERROR(TrainOverAnUpdate(training));
    uint64_t seed = 20;
    for (const int ranks : {3, 2, 1, 4}) {
      context.SetStep(ranks);
      QG_RETURN_IF_ERROR(training.session().ResumeAs(OnExpertRanks(spec, ranks)));
      QG_RETURN_IF_ERROR(training.TrainStep(seed++));
      QG_RETURN_IF_ERROR(training.Optimize());
      QG_RETURN_IF_ERROR(training.TrainStep(seed++));
    }
  }
  return absl::OkStatus();
}

/// Two copies of the experts, each on two ranks: the gradients of an expert are summed over the
/// ranks that hold it. Training then resumes on other numbers of ranks and copies, one rank among
/// them.
absl::Status CheckExpertCopies(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const auto weights, MakeExperts(context));
  for (const WeightStorage storage : StoragesByHand(context.recipe())) {
    const SessionSpec spec = ExpertSpec(context.recipe(), storage, RowsOfCopies());
    ComparedRanks<ExpertsByHand<>> training(context, {512, kExpertIn, kExpertOut},
                                            ExpertsByHand<>(context.reference(), spec, weights, 2));
    QG_RETURN_IF_ERROR(training.session().Open(OnExpertRanks(spec, 2, 2), weights));
    uint64_t seed = 1;
    const auto train = [&]() -> absl::Status {
      // Two microbatches of one update.
      QG_RETURN_IF_ERROR(training.TrainStep(seed++));
      QG_RETURN_IF_ERROR(training.TrainStep(seed++));
      return training.Optimize();
    };
    QG_RETURN_IF_ERROR(train());
    QG_RETURN_IF_ERROR(train());
    for (const auto& [ranks, copies] : {std::pair(1, 4), std::pair(1, 1), std::pair(2, 2)}) {
      context.SetStep(10 * ranks + copies);
      QG_RETURN_IF_ERROR(training.session().ResumeAs(OnExpertRanks(spec, ranks, copies)));
      training.by_hand().ResumeAs(copies);
      QG_RETURN_IF_ERROR(train());
    }
    QG_RETURN_IF_ERROR(training.Forward("last", seed));
  }
  return absl::OkStatus();
}

/// Trains two copies, each divided over two ranks: two updates of two microbatches each, then
/// microbatches in flight over an update.
absl::Status TrainDividedExperts(ScenarioContext& context, ParallelMode mode, bool has_rows,
                                 WeightStorage storage) {
  QG_ASSIGN_OR_RETURN(auto parameters, MakeExperts(context, kDividedColumns));
  if (mode == ParallelMode::kColumn) {
    QG_RETURN_IF_ERROR(AddBiases(context, kDividedColumns, parameters));
  }
  // Without quantization there are no blocks, and any number of rows can be divided over copies.
  const bool is_uneven = !context.recipe().is_quantized() && !has_rows;
  const RowsOfExperts rows = is_uneven ? RowsOfExperts{37, 0, 21, 6} : RowsOfTwoCopies();
  SessionSpec spec = ExpertSpec(context.recipe(), storage, rows);
  spec.layers[0].spec.parallel_mode = mode;
  spec.parallel.emplace();
  spec.parallel->tensor_parallel = spec.parallel->data_parallel = 2;
  spec.parallel->sequence_parallel = has_rows;
  ComparedRanks<ExpertsByHand<PlacesByHand>> training(
      context, {std::accumulate(rows.begin(), rows.end(), int64_t{0}), kExpertIn, kDividedColumns},
      ExpertsByHand<PlacesByHand>(context.reference(), spec, parameters, 2));
  QG_RETURN_IF_ERROR(training.session().Open(spec, parameters));
  for (const uint64_t seed : {11, 13}) {
    QG_RETURN_IF_ERROR(training.TrainStep(seed));
    QG_RETURN_IF_ERROR(training.TrainStep(seed + 1));
    QG_RETURN_IF_ERROR(training.Optimize());
  }
  return TrainOverAnUpdate(training);
}

absl::Status CheckDividedExperts(ScenarioContext& context) {
  const std::vector<WeightStorage> storages = StoragesByHand(context.recipe());
  int64_t run = 0;
  for (const ParallelMode mode : kParallelModes) {
    for (const bool has_rows : {false, true}) {
      context.SetStep(run++);
      // Each storage meets both modes and both divisions of rows.
      const bool is_first = (mode == ParallelMode::kColumn) == has_rows;
      QG_RETURN_IF_ERROR(TrainDividedExperts(context, mode, has_rows,
                                             is_first ? storages.front() : storages.back()));
    }
  }
  return absl::OkStatus();
}

/// Two updates by copies that share the amaxes of their rows.
template <typename LinearByHand>
absl::Status TrainUnderSharedAmaxes(ScenarioContext& context, const SessionSpec& spec,
                                    const std::map<std::string, Tensor>& weights) {
  ComparedRanks<ExpertsByHand<LinearByHand>> training(
      context, {256, kExpertIn, kDividedColumns},
      ExpertsByHand<LinearByHand>(context.reference(), spec, weights, 2));
  training.by_hand().ShareAmaxes();
  QG_RETURN_IF_ERROR(training.session().Open(spec, weights));
  for (const uint64_t seed : {1, 2}) {
    QG_RETURN_IF_ERROR(training.TrainStep(seed));
    QG_RETURN_IF_ERROR(training.Optimize());
  }
  return training.Forward("last", 3);
}

/// Amax groups of ranks that divide the experts: the ranks with the same experts, and all ranks,
/// where an expert counts as 0 on a rank that does not have it. Then groups of ranks that divide
/// the weights of the experts.
absl::Status CheckExpertAmaxes(ScenarioContext& context) {
  using Kind = AmaxGroup::Kind;
  QG_ASSIGN_OR_RETURN(const auto weights, MakeExperts(context, kDividedColumns));
  for (const WeightStorage storage : StoragesByHand(context.recipe())) {
    const SessionSpec whole = ExpertSpec(context.recipe(), storage, RowsOfTwoCopies());
    const std::pair<int, AmaxGroup> divisions[] = {{1, {Kind::kData}},
                                                   {2, {Kind::kData}},
                                                   {2, {Kind::kWorld}},
                                                   {2, {Kind::kRanks, {{0, 2}, {1, 3}}}},
                                                   {4, {Kind::kWorld}}};
    for (const auto& [ranks, group] : divisions) {
      context.SetStep(ranks);
      SessionSpec spec = OnExpertRanks(whole, ranks, 2);
      spec.parallel->amax_groups = {{TensorRole::kInput, group},
                                    {TensorRole::kWeight, group},
                                    {TensorRole::kGradOutput, group}};
      QG_RETURN_IF_ERROR(TrainUnderSharedAmaxes<CopiesByHand>(context, spec, weights));
    }
    for (const ParallelMode mode : kParallelModes) {
      context.SetStep(10 + static_cast<int64_t>(mode));
      SessionSpec spec = whole;
      spec.layers[0].spec.parallel_mode = mode;
      spec.parallel.emplace();
      spec.parallel->tensor_parallel = spec.parallel->data_parallel = 2;
      spec.parallel->sequence_parallel = mode == ParallelMode::kColumn;
      spec.parallel->amax_groups = {{TensorRole::kInput, {Kind::kData}},
                                    {TensorRole::kWeight, {Kind::kTensor}},
                                    {TensorRole::kGradOutput, {Kind::kData}}};
      QG_RETURN_IF_ERROR(TrainUnderSharedAmaxes<PlacesByHand>(context, spec, weights));
    }
  }
  return absl::OkStatus();
}

}  // namespace

ScenarioGroup ExpertSessionScenarios() {
  ScenarioGroup group;
  group.scenarios.push_back(
      {.name = "experts-train-on-ranks-as-on-one",
       .invariant = "Experts divided over ranks train as experts that are all on one, from their "
                    "checkpoint on 3, on 2, on 1 and on 4 ranks again too.",
       .criterion = "y, dx, dw and db of every expert bit-equal to a linear layer by hand for "
                    "each, with uneven counts and an expert without rows, microbatches in flight "
                    "over an update, one recomputed, one moved to the host and back; checkpoints "
                    "the same on all of these ranks; weights quantized and not.",
       .bug_classes = {49},
       .faults = {kFaultRankOrderLeft, kFaultExpertGradientsSummed, kFaultRestoredExpertsStale,
                  kFaultSourcesReversed, kFaultExpertCallsAlone,
                  kFaultCheckpointRestartsRandomNumbers},
       .recipes = {"bf16", "fp8_current", "fp8_delayed:amax_history_len=3", "fp8_block", "mxfp8",
                   "nvfp4"},
       .run = &CheckExpertTraining});
  group.scenarios.push_back(
      {.name = "expert-copies-train-as-copies-of-experts",
       .invariant =
           "Copies of the experts, each divided over ranks, train as copies of each expert "
           "by itself; from their checkpoint on other ranks and copies, and on one, too.",
       .criterion =
           "y, dx and dw of every expert bit-equal to copies of a linear layer by hand for "
           "each, which divide its rows and sum its gradients; an expert without rows; "
           "weights quantized and not.",
       .bug_classes = {},
       .faults = {kFaultExpertGradientsOfCopy, kFaultExpertGradientsSummed, kFaultExpertRowsOneOff,
                  kFaultCopiesNotDivided},
       .recipes = {"bf16", "fp8_current", "fp8_delayed:amax_history_len=3", "fp8_block", "mxfp8"},
       .run = &CheckExpertCopies});
  group.scenarios.push_back(
      {.name = "divided-experts-train-as-their-parts",
       .invariant =
           "Copies of experts whose weights are divided over ranks train as copies of each "
           "expert's parts by themselves, whose partial products are summed in the order "
           "of the ranks.",
       .criterion =
           "y, dx, dw and db of every expert bit-equal to parts of a linear layer by hand "
           "for each on two copies; column- and row-parallel, sequence-parallel and not, an "
           "expert without rows, of bf16 odd counts; microbatches in flight over an "
           "update, one recomputed, one moved to the host and back; weights quantized "
           "and not.",
       .bug_classes = {},
       .faults = {kFaultExpertPartialLeft, kFaultGradientOfOtherGroup, kFaultCopiesNotDivided,
                  kFaultExpertRowsOneOff, kFaultRankOrderLeft, kFaultReduceScatterOwner,
                  kFaultChunkOrder},
       .recipes = {"bf16", "fp8_current", "fp8_delayed:amax_history_len=3", "fp8_block", "mxfp8",
                   "nvfp4:disable_stochastic_rounding=true"},
       .run = &CheckDividedExperts});
  group.scenarios.push_back(
      {.name = "experts-share-the-amax-of-their-rows",
       .invariant = "Under a named group each expert's rows are quantized under the amax of all of "
                    "them, whichever rank and copy has them, and no other expert's.",
       .criterion =
           "y, dx and dw of every expert bit-equal to copies of a linear layer by hand that "
           "quantize their rows under the maximum over both copies' by plain loops; on 1, 2 and "
           "4 ranks over those with the same experts, over all and over listed ones, and where "
           "ranks divide every expert's weight; an expert without rows; weights quantized and "
           "not.",
       .faults = {kFaultExpertAmaxPlace, kFaultAmaxNotReduced, kFaultRankZeroAmax},
       .recipes = {"fp8_current", "nvfp4:disable_stochastic_rounding=true"},
       .run = &CheckExpertAmaxes});
  group.faults = {
      InCode(kFaultExpertAmaxPlace,
             "Puts the amaxes of a rank's experts first among those of all experts."),
      InCode(kFaultExpertGradientsOfCopy,
             "Sums the gradients of experts over the ranks of a copy, which hold others."),
      InCode(kFaultExpertRowsOneOff, "Gives every rank the rows one after its own."),
      InCode(kFaultCopiesNotDivided, "Gives every copy of the experts the first one's rows."),
      InCode(kFaultRankOrderLeft, "Gives tokens in the order of the ranks that had them."),
      InCode(kFaultExpertGradientsSummed,
             "Sums the gradients of experts that have the same place on their ranks."),
      InCode(kFaultRestoredExpertsStale,
             "Refreshes, after a restore, the columnwise codes of the first expert alone.", 49),
  };
  return group;
}

}  // namespace quantgate
