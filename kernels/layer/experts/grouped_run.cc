#include "kernels/layer/experts/grouped_run.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/comm/row_blocks.h"
#include "kernels/layer/layer_faults.h"
#include "kernels/layer/layer_request.h"
#include "kernels/layer/layer_sharding.h"

namespace quantgate {
namespace {

/// This rank's part of dim 0 under sequence parallelism.
absl::StatusOr<Tensor> OwnRows(const ParallelStep& parallel, const Tensor& whole) {
  if (!parallel.divides_rows()) return whole;
  const ProcessGroup& group = *parallel.tp;
  QG_ASSIGN_OR_RETURN(const std::vector<Tensor> parts,
                      RowBlocks(whole, EvenRows(whole.shape()[0], group.size())));
  return parts[static_cast<size_t>(group.rank())];
}

/// Replaces `partial`, unless it is absent, by SumOfExperts, and adds it to `partials`.
absl::Status Sum(StepRecorder& recorder, const ParallelStep& parallel, const char* what,
                 Tensor& partial, std::vector<NamedTensor>& partials) {
  if (!partial.has_value()) return absl::OkStatus();
  partials.push_back({what, partial});
  QG_ASSIGN_OR_RETURN(partial, SumOfExperts(recorder, parallel, what, partial));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Tensor> GatherForExperts(StepRecorder& recorder, const ParallelStep& parallel,
                                        const char* what, const Tensor& own) {
  if (!parallel.divides_rows()) return own;
  return recorder.Timed({StageKind::kCommunicate, absl::StrCat("all-gather ", what)},
                        [&] { return parallel.tp->AllGather(own); });
}

std::shared_ptr<const void> HoldGatheredForExperts(StepRecorder& recorder,
                                                   const ParallelStep& parallel,
                                                   const Tensor& whole) {
  if (!parallel.divides_rows() || !whole.has_value()) return nullptr;
  return recorder.HoldGathered(static_cast<int64_t>(whole.byte_size()));
}

absl::StatusOr<Tensor> SumOfExperts(StepRecorder& recorder, const ParallelStep& parallel,
                                    const char* what, const Tensor& partial) {
  ProcessGroup& group = *parallel.tp;
  if (group.faults().Has(kFaultExpertPartialLeft)) return partial;
  const bool divides = parallel.divides_rows();
  const char* const call = divides ? "reduce-scatter " : "all-reduce ";
  return recorder.Timed({StageKind::kCommunicate, absl::StrCat(call, what)}, [&] {
    return divides ? group.ReduceScatter(partial, EvenRows(partial.shape()[0], group.size()),
                                         parallel.profile)
                   : group.AllReduce(partial, parallel.profile);
  });
}

absl::StatusOr<GroupedStep> RunGrouped(Engine& engine, const LayerRequest& whole,
                                       ParallelStep parallel, const Recipe& recipe,
                                       const Arithmetic& arithmetic,
                                       const Cancellation* cancellation) {
  GroupedStep step;
  QG_ASSIGN_OR_RETURN(step.request, ShardLayer(engine, whole, std::move(parallel)));
  LayerRequest& request = step.request;
  QG_RETURN_IF_ERROR(CheckLayerTensors(request));
  QG_ASSIGN_OR_RETURN(const LayerPlanPointer plan, DecideLayer(request, recipe));
  QG_RETURN_IF_ERROR(CheckLayerGemms(*plan, arithmetic));
  StepRecorder recorder(engine, arithmetic, cancellation);
  recorder.SeedFaults(request.parallel->tp->faults());
  const ParallelStep& step_of_rank = *request.parallel;
  const bool is_column = request.layer.parallel_mode == ParallelMode::kColumn;
  Tensor& divided = is_column ? request.x : request.grad_output;
  if (divided.has_value()) {
    QG_ASSIGN_OR_RETURN(const Tensor own, OwnRows(step_of_rank, divided));
    QG_ASSIGN_OR_RETURN(
        divided, GatherForExperts(recorder, step_of_rank, is_column ? "x" : "grad_output", own));
  }
  std::shared_ptr<const void> gathered;
  if (!is_column) gathered = HoldGatheredForExperts(recorder, step_of_rank, divided);
  QG_ASSIGN_OR_RETURN(ComputedLayer work, ComputeLayer(recorder, request, plan, recipe));
  gathered = nullptr;
  QG_RETURN_IF_ERROR(Sum(recorder, step_of_rank, is_column ? "dx" : "y",
                         is_column ? work.backward.dx : work.forward.y, step.partials));
  QG_ASSIGN_OR_RETURN(step.result, FinishStep(recorder, request, work.plan, work.state,
                                              std::move(work.forward), std::move(work.backward)));
  return step;
}

}  // namespace quantgate
