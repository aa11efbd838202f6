#include "kernels/layer/experts/expert_parallel.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/layer/experts/expert_faults.h"
#include "kernels/quantize/quantized_outline.h"

namespace quantgate {
namespace {

/// x as experts of this rank take it, in the activation dtype.
absl::StatusOr<Tensor> DispatchedInput(StepRecorder& recorder, ProcessGroup& group,
                                       const ExpertPlan& plan, const ExpertOptions& options,
                                       const Recipe& recipe, const Tensor& x) {
  const DType dtype = recipe.activation_dtype().value_or(x.dtype());
  QG_ASSIGN_OR_RETURN(const Tensor rows, recorder.Cast("cast x", x, dtype));
  if (options.payload == ExpertPayload::kSource) {
    return recorder.Timed({StageKind::kCommunicate, "dispatch x"},
                          [&] { return plan.Dispatch(group, rows); });
  }
  const QuantizerSpec rule = recipe.QuantizerFor(TensorRole::kInput).rowwise;
  if (rule.traits().scales != ScaleKind::kE8m0) {
    return Refuse("payload", "mxfp8",
                  absl::StrCat("the recipe quantizes inputs to ",
                               std::string(QuantizerFormatName(rule.format))));
  }
  if (rule.block_dim != 1) {
    return Refuse("payload", "mxfp8 with block_dim 2",
                  "tiles span rows of several tokens; block_dim must be 1");
  }
  // Blocks lie within a row, so that any number of rows can travel: the rows of a rank need be no
  // whole block.
  const int64_t side = BlockLength(rule.format);
  const int64_t count = rows.shape()[0];
  std::vector<int64_t> padded(static_cast<size_t>((count + side - 1) / side * side), kNoRow);
  for (int64_t i = 0; i < count; ++i) padded[static_cast<size_t>(i)] = i;
  QG_ASSIGN_OR_RETURN(const Tensor whole_blocks,
                      recorder.engine().GatherRows(rows, padded, recorder.cancellation()));
  QG_ASSIGN_OR_RETURN(const QuantizedTensor quantized,
                      recorder.Quantize("quantize x", "x", TensorRole::kInput, whole_blocks, rule,
                                        {true, false}, {}));
  QG_ASSIGN_OR_RETURN(const QuantizedTensor moved,
                      recorder.Timed({StageKind::kCommunicate, "dispatch x"},
                                     [&] { return plan.Dispatch(group, quantized); }));
  return recorder.engine().Dequantize(moved, Usage::kRowwise, dtype, recorder.cancellation());
}

/// What CheckLayer says of this rank's experts: row counts are known only after the dispatch.
absl::Status CheckExperts(const LayerSpec& layer, const LayerState& state, const Tensor& rows,
                          const StepOptions& step) {
  LayerRequest request;
  request.layer = layer;
  request.x = rows;
  request.requires_grad = step.requires_grad;
  request.calibrate = step.calibrate;
  for (const auto& [name, parameter] : state.parameters) {
    request.parameters[name] = parameter.value;
    if (!parameter.is_quantized()) continue;
    QG_ASSIGN_OR_RETURN(request.parameters[name],
                        OutlineTensor(parameter.quantized.source_dtype, parameter.quantized.shape));
  }
  const auto first = request.parameters.find("weight.0");
  if (step.grad_enabled && first != request.parameters.end() && first->second.rank() == 2) {
    QG_ASSIGN_OR_RETURN(request.grad_output,
                        OutlineTensor(rows.dtype(), {rows.shape()[0], first->second.shape()[0]}));
  }
  return CheckLayer(request, step.recipe);
}

}  // namespace

absl::StatusOr<ExpertForward> ForwardExperts(StepRecorder& recorder, ProcessGroup& group,
                                             const ExpertOptions& options, LayerSpec layer,
                                             LayerState& state, const Tensor& x,
                                             const ExpertRouting& routing, StepOptions step) {
  if (!layer.traits().has_experts) {
    return Refuse("layer", LayerKindName(layer.kind), "experts are a grouped_linear");
  }
  if (!x.has_value() || x.rank() != 2 || x.shape()[0] != routing.tokens()) {
    return Refuse("x", x.has_value() ? TensorText(x) : "absent",
                  absl::StrCat("must be the ", routing.tokens(), " tokens that are routed"));
  }
  ExpertForward forward;
  QG_ASSIGN_OR_RETURN(forward.saved.plan,
                      ExpertPlan::Create(group, options, routing, recorder.cancellation()));
  const ExpertPlan& plan = forward.saved.plan;
  layer.m_splits = plan.m_splits();
  step.recipe = RecipeOfLayer(layer, step.recipe);
  const auto first = static_cast<uint32_t>(options.first_expert[group.rank()]);
  if (!group.faults().Has(kFaultExpertCallsAlone)) step.first_call_id += first * kCallIdsPerUnit;
  const bool has_wrong_place = group.faults().Has(kFaultExpertAmaxPlace);
  step.experts = {has_wrong_place ? 0 : int64_t{first}, options.first_expert.back()};
  QG_ASSIGN_OR_RETURN(const Tensor rows,
                      DispatchedInput(recorder, group, plan, options, step.recipe, x));
  QG_RETURN_IF_ERROR(CheckExperts(layer, state, rows, step));
  QG_ASSIGN_OR_RETURN(ForwardResult result, ForwardLayer(recorder, layer, state, rows, step));
  QG_ASSIGN_OR_RETURN(forward.y, recorder.Timed({StageKind::kCommunicate, "combine y"}, [&] {
    return plan.Combine(group, result.y, true);
  }));
  forward.saved.saved = std::move(result.saved);
  forward.saved.layer = std::move(layer);
  return forward;
}

absl::StatusOr<BackwardResult> BackwardExperts(StepRecorder& recorder, ProcessGroup& group,
                                               ExpertSaved saved, LayerState& state,
                                               const Tensor& grad_output) {
  if (saved.saved == nullptr) {
    return RefusePrecondition("saved", "empty", "the experts' forward kept nothing for backward");
  }
  saved.plan.FollowCancellation(recorder.cancellation());
  const ExpertPlan& plan = saved.plan;
  QG_ASSIGN_OR_RETURN(const Tensor rows,
                      recorder.Timed({StageKind::kCommunicate, "dispatch grad_output"},
                                     [&] { return plan.DispatchWeighted(group, grad_output); }));
  QG_ASSIGN_OR_RETURN(BackwardResult result,
                      BackwardLayer(recorder, saved.layer, state, std::move(saved.saved), rows));
  if (!result.dx.has_value()) return result;
  QG_ASSIGN_OR_RETURN(result.dx, recorder.Timed({StageKind::kCommunicate, "combine dx"}, [&] {
    return plan.Combine(group, result.dx, false);
  }));
  return result;
}

}  // namespace quantgate
