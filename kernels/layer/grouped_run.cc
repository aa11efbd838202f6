#include "kernels/layer/grouped_run.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/comm/row_blocks.h"
#include "kernels/layer/layer_faults.h"
#include "kernels/layer/layer_request.h"
#include "kernels/layer/layer_sharding.h"

namespace quantgate {
namespace {

/// What happens on one rank before and after its grouped_linear.
class Surroundings {
 public:
  Surroundings(StepRecorder& recorder, const ParallelStep& parallel)
      : recorder_(recorder), group_(*parallel.tp), parallel_(parallel) {}

  /// This rank's rows of `whole` from all ranks: in high precision, before anything is quantized,
  /// so that no block and no amax sees that rows were divided. Absent tensors stay so.
  absl::StatusOr<Tensor> Gathered(const char* what, const Tensor& whole) {
    if (!whole.has_value() || !parallel_.divides_rows()) return whole;
    QG_ASSIGN_OR_RETURN(const std::vector<Tensor> parts,
                        RowBlocks(whole, RowsOf(whole), recorder_.faults()));
    const Tensor& own = parts[static_cast<size_t>(group_.rank())];
    return recorder_.Timed(absl::StrCat("all-gather ", what),
                           [&] { return group_.AllGather(own); });
  }

  /// `partial` as the sum over the ranks; what it was goes to `partials`.
  absl::Status Sum(const char* what, Tensor& partial, std::vector<NamedTensor>& partials) {
    if (!partial.has_value()) return absl::OkStatus();
    partials.push_back({what, partial});
    if (recorder_.faults().Has(kFaultExpertPartialLeft)) return absl::OkStatus();
    const bool divides = parallel_.divides_rows();
    const char* const call = divides ? "reduce-scatter " : "all-reduce ";
    QG_ASSIGN_OR_RETURN(partial, recorder_.Timed(absl::StrCat(call, what), [&] {
      return divides ? group_.ReduceScatter(partial, RowsOf(partial), parallel_.profile)
                     : group_.AllReduce(partial, parallel_.profile);
    }));
    return absl::OkStatus();
  }

 private:
  std::vector<int64_t> RowsOf(const Tensor& whole) const {
    return EvenRows(whole.shape()[0], group_.size());
  }

  StepRecorder& recorder_;
  ProcessGroup& group_;
  const ParallelStep& parallel_;
};

}  // namespace

absl::StatusOr<GroupedStep> RunGrouped(Engine& engine, const LayerRequest& whole,
                                       ParallelStep parallel, const Recipe& recipe,
                                       const Arithmetic& arithmetic,
                                       const Cancellation* cancellation) {
  GroupedStep step;
  QG_ASSIGN_OR_RETURN(step.request, ShardLayer(engine, whole, std::move(parallel)));
  LayerRequest& request = step.request;
  QG_RETURN_IF_ERROR(CheckLayer(request, recipe));
  QG_RETURN_IF_ERROR(CheckLayerGemms(request, recipe, arithmetic));
  StepRecorder recorder(engine, arithmetic, cancellation);
  recorder.SeedFaults(request.parallel->tp->faults());
  Surroundings around(recorder, *request.parallel);
  const bool is_column = request.layer.parallel_mode == ParallelMode::kColumn;
  Tensor& divided = is_column ? request.x : request.grad_output;
  QG_ASSIGN_OR_RETURN(divided, around.Gathered(is_column ? "x" : "grad_output", divided));
  QG_ASSIGN_OR_RETURN(LayerWork work, DoLayer(recorder, request, recipe));
  QG_RETURN_IF_ERROR(is_column ? around.Sum("dx", work.backward.dx, step.partials)
                               : around.Sum("y", work.forward.y, step.partials));
  QG_ASSIGN_OR_RETURN(step.result, FinishStep(recorder, request, work.plan, work.state,
                                              std::move(work.forward), std::move(work.backward)));
  return step;
}

}  // namespace quantgate
