// Training sessions whose experts are divided over ranks (docs/distributed.md section 9.2), or
// their weights (section 2.1).
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/comm/comm_faults.h"
#include "kernels/layer/expert_faults.h"
#include "kernels/layer/layer_faults.h"
#include "kernels/training/session_faults.h"
#include "kernels/training/shard_faults.h"
#include "kernels/validate/scenarios/expected_copy.h"
#include "kernels/validate/scenarios/parallel_subject.h"
#include "kernels/validate/scenarios/rank_session_subject.h"
#include "kernels/validate/scenarios/scenario_groups.h"

namespace quantgate {
namespace {

constexpr int64_t kExpertIn = 64, kExpertOut = 32;
constexpr size_t kExpertCount = 4;

using RowsOfExperts = std::vector<int64_t>;
/// Of one copy.
const RowsOfExperts& FewRows() {
  static const auto& rows = *new RowsOfExperts{64, 0, 32, 96};
  return rows;
}
/// Whole blocks of 32 on each of four copies.
const RowsOfExperts& RowsOfCopies() {
  static const auto& rows = *new RowsOfExperts{128, 0, 256, 128};
  return rows;
}
/// On each of two.
const RowsOfExperts& RowsOfTwoCopies() {
  static const auto& rows = *new RowsOfExperts{64, 0, 128, 64};
  return rows;
}

std::string WeightName(size_t expert) { return absl::StrCat("fc.weight.", expert); }

SessionSpec ExpertSpec(const Recipe& recipe, WeightStorage weights, const RowsOfExperts& rows) {
  SessionLayer layer;
  layer.name = "fc";
  layer.spec.kind = LayerKind::kGroupedLinear;
  layer.spec.m_splits = rows;
  SessionSpec spec{.layers = {layer}, .recipe = recipe};
  spec.weights = weights;
  spec.masters = Masters::kF32;
  spec.optimizer.kind = OptimizerSpec::Kind::kSgd;
  spec.optimizer.sgd.learning_rate = 0.25f;
  spec.seed = 5;
  return spec;
}

/// Of each of so many copies.
SessionSpec OnRanks(SessionSpec spec, int ranks, int copies = 1) {
  if (ranks * copies == 1) return spec;
  spec.parallel.emplace();
  spec.parallel->tensor_parallel = 1;
  spec.parallel->expert_parallel = ranks;
  spec.parallel->data_parallel = copies;
  return spec;
}

absl::StatusOr<std::map<std::string, Tensor>> MakeExperts(ScenarioContext& context,
                                                          int64_t outputs = kExpertOut) {
  std::map<std::string, Tensor> weights;
  for (size_t expert = 0; expert < kExpertCount; ++expert) {
    QG_ASSIGN_OR_RETURN(weights[WeightName(expert)],
                        context.Generate(Distribution::kNormal, 300 + expert, DType::kBF16,
                                         {outputs, kExpertIn}, 0.125f));
  }
  return weights;
}

CopiesByHand MakeByHand(Engine& reference, const SessionSpec& spec, const Tensor& weight,
                        int copies, const CopiesByHand*) {
  return CopiesByHand(reference, spec, {{"fc.weight", weight}}, copies);
}
PlacesByHand MakeByHand(Engine& reference, const SessionSpec& spec, const Tensor& weight,
                        int copies, const PlacesByHand*) {
  return PlacesByHand(reference, spec, weight, copies);
}

/// Every expert as copies of one linear layer, CopiesByHand, or as copies of its parts,
/// PlacesByHand, on its own rows. An expert without rows is left as it is and has gradients of
/// zero.
template <typename LinearByHand = CopiesByHand>
class ExpertsByHand {
 public:
  ExpertsByHand(Engine& reference, const SessionSpec& spec,
                const std::map<std::string, Tensor>& weights, int copies = 1)
      : reference_(reference), rows_(spec.layers[0].spec.m_splits) {
    // Each draws the random numbers of its place among the experts.
    for (size_t expert = 0; expert < kExpertCount; ++expert) {
      SessionSpec alone = spec;
      alone.layers[0].spec = LayerSpec();
      alone.layers[0].spec.parallel_mode = spec.layers[0].spec.parallel_mode;
      const Tensor& weight = weights.at(WeightName(expert));
      weight_shape_ = weight.shape();
      experts_.push_back(
          MakeByHand(reference, alone, weight, copies, static_cast<const LinearByHand*>(nullptr)));
      experts_.back().DrawAsOneOf(static_cast<uint32_t>(expert), kExpertCount);
    }
  }

  void GoOnAs(int copies) {
    for (LinearByHand& expert : experts_) expert.GoOnAs(copies);
  }
  void ShareAmaxes() {
    for (LinearByHand& expert : experts_) expert.ShareAmaxes();
  }

  absl::StatusOr<NamedOutputs> Forward(const ForwardStep& step) {
    std::vector<Tensor> rows;
    for (size_t expert = 0, begin = 0; expert < experts_.size(); ++expert) {
      QG_ASSIGN_OR_RETURN(const Tensor x, RowsOf(step.x, expert, begin));
      if (x.rows() == 0) continue;
      ForwardStep own = step;
      own.x = x;
      QG_ASSIGN_OR_RETURN(const NamedOutputs outputs, experts_[expert].Forward(own));
      rows.push_back(outputs.at("y"));
    }
    return Joined("y", rows);
  }

  absl::StatusOr<NamedOutputs> Backward(const BackwardStep& step) {
    std::vector<Tensor> rows;
    NamedOutputs gradients;
    for (size_t expert = 0, begin = 0; expert < experts_.size(); ++expert) {
      QG_ASSIGN_OR_RETURN(const Tensor dy, RowsOf(step.grad_output, expert, begin));
      Tensor& dw = gradients[absl::StrCat("fc.dw.", expert)];
      if (dy.rows() == 0) {
        QG_ASSIGN_OR_RETURN(dw, Tensor::Allocate(DType::kBF16, weight_shape_));
        for (int64_t i = 0; i < dw.element_count(); ++i) SetValue(dw, i, 0.0f);
        continue;
      }
      QG_ASSIGN_OR_RETURN(const NamedOutputs outputs,
                          experts_[expert].Backward({step.microbatch, dy}));
      rows.push_back(outputs.at("dx"));
      dw = outputs.at("fc.dw");
    }
    QG_ASSIGN_OR_RETURN(NamedOutputs outputs, Joined("dx", rows));
    outputs.merge(gradients);
    return outputs;
  }

  absl::Status Optimize() {
    for (LinearByHand& expert : experts_) QG_RETURN_IF_ERROR(expert.Optimize());
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<Tensor> RowsOf(const Tensor& batch, size_t expert, size_t& begin) const {
    const int64_t count = rows_[expert];
    const auto first = static_cast<int64_t>(begin);
    begin += static_cast<size_t>(count);
    return batch.RowRange(first, count);
  }
  absl::StatusOr<NamedOutputs> Joined(const std::string& name, const std::vector<Tensor>& rows) {
    QG_ASSIGN_OR_RETURN(const Tensor joined, reference_.ConcatenateRows(rows, nullptr));
    return NamedOutputs{{name, joined}};
  }

  Engine& reference_;
  const RowsOfExperts rows_;
  Shape weight_shape_;
  std::vector<LinearByHand> experts_;
};

// Gradients that no update has taken yet move with their experts.
absl::Status CheckExpertTraining(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const auto weights, MakeExperts(context));
  for (const WeightStorage storage : StoragesByHand(context.recipe())) {
    const SessionSpec spec = ExpertSpec(context.recipe(), storage, FewRows());
    ComparedRanks<ExpertsByHand<>> training(context, {192, kExpertIn, kExpertOut},
                                            ExpertsByHand<>(context.reference(), spec, weights));
    QG_RETURN_IF_ERROR(training.session().Open(OnRanks(spec, 4), weights));
    uint64_t seed = 1;
    QG_RETURN_IF_ERROR(training.TrainStep(seed++));
    for (const int ranks : {2, 1, 4}) {
      context.SetStep(ranks);
      QG_RETURN_IF_ERROR(training.session().GoOnAs(OnRanks(spec, ranks)));
      QG_RETURN_IF_ERROR(training.TrainStep(seed++));
      QG_RETURN_IF_ERROR(training.Optimize());
      QG_RETURN_IF_ERROR(training.TrainStep(seed++));
    }
  }
  return absl::OkStatus();
}

/// Two copies of the experts, each on two ranks: an expert's gradients are summed over the ranks
/// that hold it. Then on other ranks and copies, and on one rank.
absl::Status CheckExpertCopies(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const auto weights, MakeExperts(context));
  for (const WeightStorage storage : StoragesByHand(context.recipe())) {
    const SessionSpec spec = ExpertSpec(context.recipe(), storage, RowsOfCopies());
    ComparedRanks<ExpertsByHand<>> training(context, {512, kExpertIn, kExpertOut},
                                            ExpertsByHand<>(context.reference(), spec, weights, 2));
    QG_RETURN_IF_ERROR(training.session().Open(OnRanks(spec, 2, 2), weights));
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
      QG_RETURN_IF_ERROR(training.session().GoOnAs(OnRanks(spec, ranks, copies)));
      training.by_hand().GoOnAs(copies);
      QG_RETURN_IF_ERROR(train());
    }
    QG_RETURN_IF_ERROR(training.Forward("last", seed));
  }
  return absl::OkStatus();
}

constexpr int64_t kDividedColumns = 64;  ///< Whole blocks of 32 on each of two ranks.

/// Two updates of two microbatches each by two copies, each of which two ranks divide.
absl::Status TrainDividedExperts(ScenarioContext& context, ParallelMode mode, bool has_rows,
                                 WeightStorage storage) {
  QG_ASSIGN_OR_RETURN(const auto weights, MakeExperts(context, kDividedColumns));
  SessionSpec spec = ExpertSpec(context.recipe(), storage, RowsOfTwoCopies());
  spec.layers[0].spec.parallel_mode = mode;
  spec.parallel.emplace();
  spec.parallel->tensor_parallel = spec.parallel->data_parallel = 2;
  spec.parallel->sequence_parallel = has_rows;
  ComparedRanks<ExpertsByHand<PlacesByHand>> training(
      context, {256, kExpertIn, kDividedColumns},
      ExpertsByHand<PlacesByHand>(context.reference(), spec, weights, 2));
  QG_RETURN_IF_ERROR(training.session().Open(spec, weights));
  for (const uint64_t seed : {1, 3}) {
    QG_RETURN_IF_ERROR(training.TrainStep(seed));
    QG_RETURN_IF_ERROR(training.TrainStep(seed + 1));
    QG_RETURN_IF_ERROR(training.Optimize());
  }
  return training.Forward("last", 5);
}

absl::Status CheckDividedExperts(ScenarioContext& context) {
  const std::vector<WeightStorage> storages = StoragesByHand(context.recipe());
  int64_t run = 0;
  for (const ParallelMode mode : kParallelModes) {
    for (const bool has_rows : {false, true}) {
      context.SetStep(run++);
      // Either storage with either mode and either division of rows.
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

/// Ranks that divide experts, over those with the same ones and over all, where an expert that a
/// rank has not is 0; and ranks that divide their weights.
absl::Status CheckExpertAmaxes(ScenarioContext& context) {
  using Kind = AmaxGroup::Kind;
  QG_ASSIGN_OR_RETURN(const auto weights, MakeExperts(context, kDividedColumns));
  for (const WeightStorage storage : StoragesByHand(context.recipe())) {
    const SessionSpec whole = ExpertSpec(context.recipe(), storage, RowsOfTwoCopies());
    for (const Kind kind : {Kind::kData, Kind::kWorld}) {
      context.SetStep(static_cast<int64_t>(kind));
      SessionSpec spec = OnRanks(whole, 2, 2);
      spec.parallel->amax_groups = {{TensorRole::kInput, {kind}},
                                    {TensorRole::kWeight, {kind}},
                                    {TensorRole::kGradOutput, {kind}}};
      QG_RETURN_IF_ERROR(TrainUnderSharedAmaxes<CopiesByHand>(context, spec, weights));
    }
    for (const ParallelMode mode : kParallelModes) {
      context.SetStep(10 + static_cast<int64_t>(mode));
      SessionSpec spec = whole;
      spec.layers[0].spec.parallel_mode = mode;
      spec.parallel.emplace();
      spec.parallel->tensor_parallel = spec.parallel->data_parallel = 2;
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
                    "checkpoint on 2, on 1 and on 4 ranks again too.",
       .criterion = "y, dx and dw of every expert bit-equal to a linear layer by hand for each, "
                    "with uneven counts and an expert without rows; weights quantized and not.",
       .bug_classes = {49},
       .faults = {kFaultRankOrderLeft, kFaultExpertGradientsSummed, kFaultRestoredExpertsStale,
                  kFaultSourcesReversed, kFaultExpertCallsAlone,
                  kFaultCheckpointRestartsRandomNumbers},
       .recipes = {"bf16", "fp8_current", "fp8_block", "mxfp8", "nvfp4"},
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
       .criterion = "y, dx and dw of every expert bit-equal to parts of a linear layer by hand for "
                    "each on two copies; column- and row-parallel, sequence-parallel and not, an "
                    "expert without rows; weights quantized and not.",
       .bug_classes = {},
       .faults = {kFaultExpertPartialLeft, kFaultGradientOfOtherGroup, kFaultCopiesNotDivided,
                  kFaultExpertRowsOneOff, kFaultRankOrderLeft, kFaultReduceScatterOwner,
                  kFaultChunkOrder},
       .recipes = {"bf16", "fp8_current", "fp8_block", "mxfp8",
                   "nvfp4:disable_stochastic_rounding=true"},
       .run = &CheckDividedExperts});
  group.scenarios.push_back(
      {.name = "experts-share-the-amax-of-their-rows",
       .invariant = "Under a named group each expert's rows are quantized under the amax of all of "
                    "them, whichever rank and copy has them, and no other expert's.",
       .criterion =
           "y, dx and dw of every expert bit-equal to copies of a linear layer by hand that "
           "quantize their rows under the maximum over both copies' by plain loops; over ranks "
           "with the same experts, over all, and where ranks divide every expert's weight; an "
           "expert without rows; weights quantized and not.",
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
