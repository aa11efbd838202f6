// Training sessions whose copies of experts divide what they have of them (docs/ranks.md
// sections 9.1 to 9.3).
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/layer/layer_faults.h"
#include "kernels/training/sharding/shard_faults.h"
#include "kernels/validate/scenarios/faults/comm_faults.h"
#include "kernels/validate/scenarios/oracles/experts_by_hand.h"
#include "kernels/validate/scenarios/scenario_groups.h"

namespace quantgate {
namespace {

constexpr CopyDivision kDivisions[] = {CopyDivision::kRows, CopyDivision::kElements};

SessionSpec AdamExperts(const Recipe& recipe, WeightStorage weights, const RowsOfExperts& rows) {
  SessionSpec spec = ExpertSpec(recipe, weights, rows);
  spec.optimizer.kind = OptimizerSpec::Kind::kAdam;
  spec.optimizer.adam.learning_rate = 0.125f;
  return spec;
}

/// Rows of each expert: whole blocks of 32 on each of two copies, and on each of three.
const RowsOfExperts& RowsOfTwoOrThreeCopies() {
  static const auto& rows = *new RowsOfExperts{192, 0, 384, 192};
  return rows;
}

/// Trains two copies of the experts, each on two ranks, then resumes on other ranks with the same
/// kind of division, one rank among them. With three copies the elements of some begin within a
/// row, and where a block has 32 rows some have no rows.
absl::Status TrainPiecesOfExperts(ScenarioContext& context, WeightStorage storage,
                                  CopyDivision division) {
  QG_ASSIGN_OR_RETURN(const auto weights, MakeExperts(context, kDividedColumns));
  const SessionSpec spec = AdamExperts(context.recipe(), storage, RowsOfTwoOrThreeCopies());
  ComparedRanks<ExpertsByHand<>> training(context, {768, kExpertIn, kDividedColumns},
                                          ExpertsByHand<>(context.reference(), spec, weights, 2));
  QG_RETURN_IF_ERROR(
      training.session().Open(DividedOverCopies(OnExpertRanks(spec, 2, 2), division), weights));
  QG_RETURN_IF_ERROR(TrainOverAnUpdate(training));
  QG_RETURN_IF_ERROR(training.Optimize());
  uint64_t seed = 20;
  for (const auto& [ranks, copies] :
       {std::pair(1, 2), std::pair(1, 1), std::pair(1, 3), std::pair(2, 2)}) {
    QG_RETURN_IF_ERROR(training.session().ResumeAs(
        DividedOverCopies(OnExpertRanks(spec, ranks, copies), division)));
    training.by_hand().ResumeAs(copies);
    QG_RETURN_IF_ERROR(training.TrainStep(seed++));
    QG_RETURN_IF_ERROR(training.Optimize());
  }
  return training.Forward("last", seed);
}

/// Trains two copies of experts whose weights two ranks divide; the copies divide each part again.
absl::Status TrainPiecesOfParts(ScenarioContext& context, WeightStorage storage,
                                CopyDivision division, ParallelMode mode) {
  QG_ASSIGN_OR_RETURN(const auto weights, MakeExperts(context, kDividedColumns));
  SessionSpec spec = AdamExperts(context.recipe(), storage, RowsOfTwoCopies());
  spec.layers[0].spec.parallel_mode = mode;
  spec.parallel.emplace();
  spec.parallel->tensor_parallel = spec.parallel->data_parallel = 2;
  ComparedRanks<ExpertsByHand<PlacesByHand>> training(
      context, {256, kExpertIn, kDividedColumns},
      ExpertsByHand<PlacesByHand>(context.reference(), spec, weights, 2));
  QG_RETURN_IF_ERROR(training.session().Open(DividedOverCopies(spec, division), weights));
  for (const uint64_t seed : {1, 2}) {
    QG_RETURN_IF_ERROR(training.TrainStep(seed));
    QG_RETURN_IF_ERROR(training.Optimize());
  }
  return training.Forward("last", 3);
}

absl::Status CheckPiecesOfExperts(ScenarioContext& context) {
  const std::vector<WeightStorage> storages = StoragesByHand(context.recipe());
  int64_t run = 0;
  for (const WeightStorage storage : storages) {
    for (const CopyDivision division : kDivisions) {
      context.SetStep(run++);
      // Whole experts and parts of them meet both storages and both divisions.
      const bool is_first = (storage == storages.front()) == (division == CopyDivision::kRows);
      const ParallelMode mode =
          division == CopyDivision::kRows ? ParallelMode::kColumn : ParallelMode::kRow;
      QG_RETURN_IF_ERROR(is_first ? TrainPiecesOfExperts(context, storage, division)
                                  : TrainPiecesOfParts(context, storage, division, mode));
    }
  }
  return absl::OkStatus();
}

}  // namespace

ScenarioGroup ExpertShardScenarios() {
  ScenarioGroup group;
  group.scenarios.push_back(
      {.name = "experts-in-pieces-train-as-whole-ones",
       .invariant = "Ranks that hold a copy of an expert, and divide its weight, masters and "
                    "moments by rows or masters and moments by elements, train as copies of the "
                    "expert by itself; from their checkpoint on 2 ranks, on 1, 3 and 4 again too.",
       .criterion = "y, dx and dw of every expert bit-equal to copies of a linear layer by hand "
                    "for each, and of its parts where ranks divide the experts' weights; "
                    "microbatches in flight over an update, elements that begin within a row, "
                    "copies that have none, an expert that sees none; weights quantized and not.",
       .faults = {kFaultExpertRowsOfCopy, kFaultExpertGradientsOfCopy, kFaultGradientOfOtherGroup,
                  kFaultFragmentsOneOff, kFaultMastersOneRowOff, kFaultGatheredOnce,
                  kFaultBackwardGathersLive, kFaultShardScaleKept, kFaultShardAmaxAlone,
                  kFaultAmaxNotReduced},
       .recipes = {"bf16", "fp8_current", "fp8_delayed:amax_history_len=3", "fp8_block", "mxfp8",
                   "nvfp4:disable_stochastic_rounding=true"},
       .run = &CheckPiecesOfExperts});
  group.faults = {
      InCode(kFaultExpertRowsOfCopy,
             "Gathers an expert's rows over the ranks of a copy, which have other experts."),
      InCode(kFaultFragmentsOneOff,
             "Begins each rank's elements of masters and moments one element early."),
  };
  return group;
}

}  // namespace quantgate
