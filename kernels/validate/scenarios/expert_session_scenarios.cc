// Training sessions whose experts are divided over ranks (docs/distributed.md section 9.2).
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/layer/expert_faults.h"
#include "kernels/training/session_faults.h"
#include "kernels/validate/scenarios/expected_copy.h"
#include "kernels/validate/scenarios/rank_session_subject.h"
#include "kernels/validate/scenarios/scenario_groups.h"

namespace quantgate {
namespace {

constexpr int64_t kExpertIn = 64, kExpertOut = 32;
const std::vector<int64_t>& RowsOfExperts() {
  static const auto& rows = *new std::vector<int64_t>{64, 0, 32, 96};
  return rows;
}

std::string WeightName(size_t expert) { return absl::StrCat("fc.weight.", expert); }

SessionSpec ExpertSpec(const Recipe& recipe, WeightStorage weights) {
  SessionLayer layer;
  layer.name = "fc";
  layer.spec.kind = LayerKind::kGroupedLinear;
  layer.spec.m_splits = RowsOfExperts();
  SessionSpec spec{.layers = {layer}, .recipe = recipe};
  spec.weights = weights;
  spec.masters = Masters::kF32;
  spec.optimizer.kind = OptimizerSpec::Kind::kSgd;
  spec.optimizer.sgd.learning_rate = 0.25f;
  spec.seed = 5;
  return spec;
}

SessionSpec OnRanks(SessionSpec spec, int ranks) {
  if (ranks == 1) return spec;
  spec.parallel.emplace();
  spec.parallel->tensor_parallel = 1;
  spec.parallel->expert_parallel = ranks;
  return spec;
}

absl::StatusOr<std::map<std::string, Tensor>> MakeExperts(ScenarioContext& context) {
  std::map<std::string, Tensor> weights;
  for (size_t expert = 0; expert < RowsOfExperts().size(); ++expert) {
    QG_ASSIGN_OR_RETURN(weights[WeightName(expert)],
                        context.Generate(Distribution::kNormal, 300 + expert, DType::kBF16,
                                         {kExpertOut, kExpertIn}, 0.125f));
  }
  return weights;
}

/// Every expert as a network of one linear layer, on its own rows. An expert without rows is left
/// as it is and has gradients of zero.
class ExpertsByHand {
 public:
  ExpertsByHand(Engine& reference, const SessionSpec& spec,
                const std::map<std::string, Tensor>& weights)
      : reference_(reference) {
    // Each draws the random numbers of its place among the experts.
    const auto experts = static_cast<uint32_t>(RowsOfExperts().size());
    for (size_t expert = 0; expert < experts; ++expert) {
      SessionSpec alone = spec;
      alone.layers[0].spec = LayerSpec();
      NetworkByHand& network = experts_.emplace_back(
          reference, alone,
          std::map<std::string, Tensor>{{"fc.weight", weights.at(WeightName(expert))}});
      network.DrawAsOneOf(static_cast<uint32_t>(expert), experts);
    }
  }

  absl::StatusOr<NamedOutputs> Forward(const ForwardStep& step) {
    std::vector<Tensor> rows;
    for (size_t expert = 0, begin = 0; expert < experts_.size(); ++expert) {
      QG_ASSIGN_OR_RETURN(const Tensor x, RowsOf(step.x, expert, begin));
      if (x.rows() == 0) continue;
      QG_ASSIGN_OR_RETURN(rows.emplace_back(),
                          experts_[expert].Forward(step.microbatch, x, step.train));
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
        QG_ASSIGN_OR_RETURN(dw, Tensor::Allocate(DType::kBF16, {kExpertOut, kExpertIn}));
        for (int64_t i = 0; i < dw.element_count(); ++i) SetValue(dw, i, 0.0f);
        continue;
      }
      QG_ASSIGN_OR_RETURN(const NamedOutputs outputs,
                          experts_[expert].Backward(step.microbatch, dy));
      rows.push_back(outputs.at("dx"));
      dw = outputs.at("fc.dw");
    }
    QG_ASSIGN_OR_RETURN(NamedOutputs outputs, Joined("dx", rows));
    outputs.merge(gradients);
    return outputs;
  }

  absl::Status Optimize() {
    for (NetworkByHand& expert : experts_) QG_RETURN_IF_ERROR(expert.Optimize());
    return absl::OkStatus();
  }

 private:
  static absl::StatusOr<Tensor> RowsOf(const Tensor& batch, size_t expert, size_t& begin) {
    const int64_t count = RowsOfExperts()[expert];
    const auto first = static_cast<int64_t>(begin);
    begin += static_cast<size_t>(count);
    return batch.RowRange(first, count);
  }
  absl::StatusOr<NamedOutputs> Joined(const std::string& name, const std::vector<Tensor>& rows) {
    QG_ASSIGN_OR_RETURN(const Tensor joined, reference_.ConcatenateRows(rows, nullptr));
    return NamedOutputs{{name, joined}};
  }

  Engine& reference_;
  std::vector<NetworkByHand> experts_;
};

// Gradients that no update has taken yet move with their experts.
absl::Status CheckExpertTraining(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const auto weights, MakeExperts(context));
  for (const WeightStorage storage : StoragesByHand(context.recipe())) {
    const SessionSpec spec = ExpertSpec(context.recipe(), storage);
    ComparedRanks<ExpertsByHand> training(context, {192, kExpertIn, kExpertOut},
                                          ExpertsByHand(context.reference(), spec, weights));
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
  group.faults = {
      InCode(kFaultRankOrderLeft, "Gives tokens in the order of the ranks that had them."),
      InCode(kFaultExpertGradientsSummed,
             "Sums the gradients of experts that have the same place on their ranks."),
      InCode(kFaultRestoredExpertsStale,
             "Refreshes, after a restore, the columnwise codes of the first expert alone.", 49),
  };
  return group;
}

}  // namespace quantgate
