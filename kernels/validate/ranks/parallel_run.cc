#include "kernels/validate/ranks/parallel_run.h"

#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/layer/amax_reduction.h"
#include "kernels/layer/experts/expert_run.h"
#include "kernels/layer/experts/grouped_run.h"
#include "kernels/layer/layer_sharding.h"

namespace quantgate {
namespace {

/// The request with its tensors for this engine. States of delayed scaling
/// are on the host.
absl::StatusOr<LayerRequest> Imported(Engine& engine, const LayerRequest& whole) {
  LayerRequest request = whole;
  std::vector<Tensor*> tensors = {&request.x, &request.grad_output};
  for (auto* by_name : {&request.parameters, &request.main_grads}) {
    for (auto& [name, tensor] : *by_name) tensors.push_back(&tensor);
  }
  for (Tensor* tensor : tensors) {
    QG_ASSIGN_OR_RETURN(*tensor, ImportedFor(engine, *tensor));
  }
  return request;
}

absl::Status RunExpertsOfRank(Rank& rank, const LayerRequest& whole, const Variant& variant,
                              RankStep& mine) {
  ExpertGroups groups{&rank.group(kExpertParallelGroup)};
  if (variant.parallel->data_parallel > 1) groups.copies = &rank.group(kDataParallelGroup);
  groups.profile = variant.parallel->profile;
  if (!variant.parallel->amax_groups.empty()) {
    auto amaxes = std::make_shared<ParallelStep>(StepOf(*variant.parallel, variant.recipe));
    QG_RETURN_IF_ERROR(AttachAmaxGroups(rank, *amaxes));
    groups.step = std::move(amaxes);
  }
  QG_ASSIGN_OR_RETURN(ExpertStep step, RunExperts(rank.engine(), groups, whole, variant.recipe,
                                                  variant.arithmetic, rank.cancellation()));
  mine.request = std::move(step.request);
  mine.result = std::move(step.result);
  mine.tokens = std::move(step.tokens);
  mine.rows = std::move(step.rows);
  mine.own_gradients = std::move(step.own_gradients);
  const auto place = static_cast<size_t>(groups.experts->rank());
  mine.first_expert = DivideExperts(whole.layer, groups.experts->size()).first_expert[place];
  return absl::OkStatus();
}

absl::Status RunGroupedOfRank(Rank& rank, const LayerRequest& whole, const Variant& variant,
                              ParallelStep step, RankStep& mine) {
  QG_ASSIGN_OR_RETURN(GroupedStep done,
                      RunGrouped(rank.engine(), whole, std::move(step), variant.recipe,
                                 variant.arithmetic, rank.cancellation()));
  mine.request = std::move(done.request);
  mine.result = std::move(done.result);
  mine.partials = std::move(done.partials);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ParallelStepResult> RunOnRanks(const LayerRequest& whole, Engine& owner,
                                              const Variant& variant,
                                              const std::vector<Engine*>& engines,
                                              const RankSetting* setting,
                                              const Cancellation* cancellation) {
  const ParallelSpec& parallel = *variant.parallel;
  ParallelStepResult result;
  QG_ASSIGN_OR_RETURN(result.world, MakeWorld(parallel, engines, setting));
  result.ranks.resize(engines.size());
  result.overlaps.resize(engines.size());
  QG_ASSIGN_OR_RETURN(const std::shared_ptr<const Moment> given, owner.MarkMoment());
  const auto run_rank = [&](Rank& rank) -> absl::Status {
    const auto index = static_cast<size_t>(rank.index());
    RankStep& mine = result.ranks[index];
    mine.engine = &rank.engine();
    QG_RETURN_IF_ERROR(rank.engine().WaitFor(*given));
    QG_ASSIGN_OR_RETURN(const LayerRequest imported, Imported(rank.engine(), whole));
    if (parallel.expert_parallel > 1) {
      return RunExpertsOfRank(rank, imported, variant, mine);
    }
    ParallelStep step = StepOf(parallel, variant.recipe);
    step.tp = &rank.group(kTensorParallelGroup);
    QG_RETURN_IF_ERROR(AttachAmaxGroups(rank, step));
    if (imported.layer.traits().has_experts) {
      return RunGroupedOfRank(rank, imported, variant, std::move(step), mine);
    }
    if (parallel.overlap.has_value()) {
      QG_ASSIGN_OR_RETURN(result.overlaps[index], RankOverlap::Create(rank));
      step.overlap = &result.overlaps[index]->overlap();
    }
    QG_ASSIGN_OR_RETURN(mine.request, ShardLayer(rank.engine(), imported, std::move(step)));
    QG_ASSIGN_OR_RETURN(mine.result, RunLayer(rank.engine(), mine.request, variant.recipe,
                                              variant.arithmetic, rank.cancellation()));
    return absl::OkStatus();
  };
  QG_RETURN_IF_ERROR(result.world->Run(run_rank, cancellation));
  return result;
}

}  // namespace quantgate
