#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/layer/attention_core.h"
#include "kernels/layer/experts/expert_amaxes.h"
#include "kernels/layer/layer_request.h"
#include "kernels/layer/layer_saved.h"

namespace quantgate {
namespace {

/// Backward of one program, from its last operation to its first.
class ProgramBackward {
 public:
  ProgramBackward(ProgramRun& run, std::vector<OperationSaved>& saved)
      : run_(run), saved_(saved), gradients_(run.program.values.size()) {}

  absl::Status Run(const StepOperand& grad_output);

  /// By value; absent if none is needed.
  const std::vector<ValueGradient>& gradients() const { return gradients_; }
  ParameterGradients parameters;
  std::vector<LinearWgrad> deferred;

 private:
  absl::StatusOr<ValueGradient> BackwardOperation(size_t index, const ValueGradient& dy);
  absl::StatusOr<ValueGradient> BackwardLinearOperation(size_t index, const ValueGradient& dy);
  absl::Status Contribute(int value, ValueGradient gradient);

  ProgramRun& run_;
  std::vector<OperationSaved>& saved_;
  std::vector<ValueGradient> gradients_;
};

absl::StatusOr<ValueGradient> ProgramBackward::BackwardLinearOperation(size_t index,
                                                                       const ValueGradient& dy) {
  const PlannedOperation& operation = run_.program.operations[index];
  LinearGradient gradient = dy;
  gradient.expert_amaxes = run_.expert_amaxes;
  QG_ASSIGN_OR_RETURN(LinearBackward backward,
                      BackwardLinear(run_.recorder, *saved_[index].linear, run_.state, gradient));
  if (backward.dw.has_value()) parameters[operation.weight] = std::move(backward.dw);
  if (backward.db.has_value()) parameters[operation.bias] = std::move(backward.db);
  if (backward.deferred.has_value()) deferred.push_back(*std::move(backward.deferred));
  ValueGradient dx;
  dx.value = std::move(backward.dx);
  return dx;
}

/// The gradient of the operation's input.
absl::StatusOr<ValueGradient> ProgramBackward::BackwardOperation(size_t index,
                                                                 const ValueGradient& dy) {
  const PlannedOperation& operation = run_.program.operations[index];
  ValueGradient& others = gradients_[operation.input];
  switch (operation.kind) {
    case OperationKind::kNorm: {
      // A residual's gradient joins the sum before its rounding, as in one kernel.
      Tensor residual;
      if (run_.layer.fused && others.has_value()) {
        residual = others.plain();
        others = ValueGradient();
      }
      return BackwardNorm(run_, index, saved_[index], dy, residual, parameters);
    }
    case OperationKind::kBasicLinear:
      return BackwardLinearOperation(index, dy);
    case OperationKind::kBias:
      return BackwardBias(run_, index, dy, parameters);
    case OperationKind::kActivation:
      return BackwardActivation(run_, index, saved_[index], dy);
    case OperationKind::kQuantize:
      return BackwardQuantize(run_, index, dy);
    case OperationKind::kScale:
      return BackwardScale(run_, index, dy);
    case OperationKind::kAttention:
      return BackwardAttention(run_, index, saved_[index], dy);
    case OperationKind::kAdd:
      break;
  }
  ValueGradient same;
  same.value = dy.plain();
  QG_RETURN_IF_ERROR(Contribute(operation.addend, same));
  return same;
}

/// Adds to the gradient from later operations, rounding each sum to the activation dtype.
absl::Status ProgramBackward::Contribute(int value, ValueGradient gradient) {
  if (!run_.program.values[value].needs_gradient || !gradient.has_value()) return absl::OkStatus();
  ValueGradient& sum = gradients_[value];
  if (!sum.has_value()) {
    sum = std::move(gradient);
    return absl::OkStatus();
  }
  ValueGradient total;
  QG_ASSIGN_OR_RETURN(
      total.value,
      run_.recorder.Timed(
          {StageKind::kOperation, absl::StrCat("add to ", run_.program.values[value].gradient)},
          [&] {
            return run_.recorder.engine().Add(sum.plain(), gradient.plain(),
                                              run_.layer.activation_dtype,
                                              run_.recorder.cancellation());
          }));
  sum = std::move(total);
  return absl::OkStatus();
}

absl::Status ProgramBackward::Run(const StepOperand& grad_output) {
  gradients_.back().value = grad_output.value;
  gradients_.back().codes = grad_output.codes;
  gradients_.back().is_of_codes = grad_output.is_codes();
  for (size_t left = run_.program.operations.size(); left > 0; --left) {
    const size_t index = left - 1;
    const PlannedOperation& operation = run_.program.operations[index];
    if (!operation.needs_backward) continue;
    const ValueGradient dy = gradients_[left];
    QG_ASSIGN_OR_RETURN(ValueGradient dx, BackwardOperation(index, dy));
    QG_RETURN_IF_ERROR(Contribute(operation.input, std::move(dx)));
  }
  return absl::OkStatus();
}

void AddGradients(const LayerPlan& layer, const ProgramPlan& program,
                  const std::vector<ValueGradient>& gradients, BackwardResult& result) {
  const size_t last = gradients.size() - 1;
  const bool is_slice = layer.has_experts;
  std::string previous;
  for (size_t i = 0; i <= last; ++i) {
    const std::string& name = program.values[i].gradient;
    const bool is_outer = !is_slice && (i == 0 || i == last || name == "grad_output");
    if (is_outer || name == previous || !gradients[i].has_value()) continue;
    result.intermediates.insert(result.intermediates.end(), gradients[i].inside.begin(),
                                gradients[i].inside.end());
    result.intermediates.push_back({name, gradients[i].plain()});
    previous = name;
  }
}

/// Parameters' gradients under their names, in the order of ParametersOf.
std::vector<NamedTensor> Named(const LayerSpec& spec, const ParameterGradients& gradients) {
  std::vector<NamedTensor> named;
  for (const LayerParameter& parameter : ParametersOf(spec)) {
    const auto found = gradients.find(parameter.name);
    if (found != gradients.end()) named.push_back({parameter.gradient, found->second});
  }
  return named;
}

absl::Status NotOfThisStep(const char* what) {
  return RefusePrecondition("saved", "of another step",
                            absl::StrCat("must be what a ", what, " left"));
}

}  // namespace

absl::StatusOr<BackwardResult> BackwardLayer(StepRecorder& recorder, const LayerSpec& spec,
                                             LayerState& state, std::unique_ptr<LayerSaved> given,
                                             const StepOperand& grad_output) {
  auto* const saved = dynamic_cast<ForwardSaved*>(given.get());
  if (saved == nullptr) return NotOfThisStep("forward");
  const LayerPlan& plan = *saved->plan();
  BackwardResult result;
  if (!plan.has_backward) return result;
  if (grad_output.is_codes()) QG_RETURN_IF_ERROR(CheckGivenGradient(plan, grad_output.codes));
  QG_ASSIGN_OR_RETURN(const Tensor cast,
                      recorder.Cast("cast grad_output", grad_output.value, plan.activation_dtype));
  auto deferred = std::make_unique<DeferredSaved>(saved->shared_options());
  std::vector<Tensor> parts = {cast};
  const bool is_grouped = plan.has_experts;
  if (is_grouped) {
    QG_ASSIGN_OR_RETURN(parts, SplitExpertRows(plan, cast));
  }
  ExpertAmaxes expert_amaxes(saved->options(), [&](TensorRole) { return parts; });
  std::vector<Tensor> dx;
  ParameterGradients gradients;
  for (size_t i = 0; i < plan.programs.size(); ++i) {
    const ProgramPlan& program = plan.programs[i];
    ProgramRun run{recorder, plan, program, state, saved->shared_options()};
    if (is_grouped) run.expert_amaxes = &expert_amaxes;
    ProgramBackward backward(run, saved->operations[i]);
    QG_RETURN_IF_ERROR(backward.Run(StepOperand(parts[i], grad_output.codes)));
    AddGradients(plan, program, backward.gradients(), result);
    gradients.merge(backward.parameters);
    for (LinearWgrad& wgrad : backward.deferred) deferred->wgrads.push_back(std::move(wgrad));
    dx.push_back(backward.gradients()[0].plain());
  }
  if (plan.programs[0].values[0].needs_gradient) {
    QG_ASSIGN_OR_RETURN(result.dx, JoinExpertRows(recorder, "concatenate dx", plan, dx));
  }
  result.gradients = Named(spec, gradients);
  if (!deferred->wgrads.empty()) result.deferred = std::move(deferred);
  return result;
}

absl::StatusOr<std::vector<NamedTensor>> BackwardWgrad(StepRecorder& recorder,
                                                       const LayerSpec& spec, LayerState& state,
                                                       std::unique_ptr<LayerSaved> given) {
  auto* const saved = dynamic_cast<DeferredSaved*>(given.get());
  if (saved == nullptr) return NotOfThisStep("backward with a deferred wgrad");
  ParameterGradients gradients;
  for (LinearWgrad& wgrad : saved->wgrads) {
    QG_ASSIGN_OR_RETURN(Tensor dw, RunDeferredWgrad(recorder, wgrad, state));
    if (dw.has_value()) gradients[wgrad.unit.names.weight] = std::move(dw);
  }
  return Named(spec, gradients);
}

}  // namespace quantgate
