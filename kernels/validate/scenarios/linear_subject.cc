#include "kernels/validate/scenarios/linear_subject.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/layer/layer_step.h"

namespace quantgate {

namespace {

void TakeOutputs(std::vector<NamedTensor>& gradients, NamedOutputs& outputs) {
  for (NamedTensor& gradient : gradients) outputs[gradient.name] = std::move(gradient.tensor);
}

}  // namespace

absl::StatusOr<LinearRun> RunLinearOn(ScenarioContext& context, const LinearOperands& operands,
                                      const Recipe& recipe) {
  LayerState state;
  QG_ASSIGN_OR_RETURN(state.parameters["weight"].value, context.ToEngine(operands.weight));
  if (operands.bias.has_value()) {
    QG_ASSIGN_OR_RETURN(state.parameters["bias"].value, context.ToEngine(operands.bias));
  }
  if (operands.main_grad.has_value()) {
    QG_ASSIGN_OR_RETURN(state.main_grads["weight"], context.ToEngine(operands.main_grad));
  }
  QG_ASSIGN_OR_RETURN(const Tensor x, context.ToEngine(operands.x));
  const StepOptions options{.recipe = recipe,
                            .grad_enabled = operands.grad_output.has_value(),
                            .requires_grad = operands.requires_grad,
                            .seed = operands.seed,
                            .first_call_id = operands.first_call_id};
  StepRecorder recorder(context.engine(), Arithmetic(), context.cancellation());
  recorder.SeedFaults(context.faults());
  LinearRun run;
  const LayerSpec linear;
  QG_ASSIGN_OR_RETURN(ForwardResult forward, ForwardLayer(recorder, linear, state, x, options));
  run.outputs["y"] = std::move(forward.y);
  if (forward.saved != nullptr) {
    QG_ASSIGN_OR_RETURN(const Tensor grad_output, context.ToEngine(operands.grad_output));
    QG_ASSIGN_OR_RETURN(
        BackwardResult backward,
        BackwardLayer(recorder, linear, state, std::move(forward.saved), grad_output));
    if (backward.dx.has_value()) run.outputs["dx"] = std::move(backward.dx);
    TakeOutputs(backward.gradients, run.outputs);
    if (operands.main_grad.has_value() && operands.requires_grad.weight) {
      run.outputs["main_grad"] = state.main_grads.at("weight");
    }
  }
  QG_ASSIGN_OR_RETURN(static_cast<StepRecords&>(run), recorder.Finish());
  return run;
}

absl::Status ExpectSameOutputs(ScenarioContext& context, std::string_view step,
                               const NamedOutputs& subject, const NamedOutputs& expected) {
  std::string subjects, expectations;
  for (const auto& [name, tensor] : subject) absl::StrAppend(&subjects, name, " ");
  for (const auto& [name, tensor] : expected) absl::StrAppend(&expectations, name, " ");
  context.ExpectSameText(absl::StrCat(std::string(step), "outputs"), subjects, expectations);
  for (const auto& [name, tensor] : expected) {
    const auto found = subject.find(name);
    if (found == subject.end()) continue;
    QG_RETURN_IF_ERROR(
        context.ExpectSameBits(absl::StrCat(std::string(step), name), found->second, tensor));
  }
  return absl::OkStatus();
}

absl::StatusOr<LinearRun> ExpectLinearAsByHand(ScenarioContext& context, std::string_view step,
                                               const LinearOperands& operands) {
  QG_ASSIGN_OR_RETURN(LinearRun run, RunLinearOn(context, operands, context.recipe()));
  QG_ASSIGN_OR_RETURN(const NamedOutputs expected,
                      ExpectedLinear(context.reference(), operands, context.recipe()));
  QG_RETURN_IF_ERROR(ExpectSameOutputs(context, step, run.outputs, expected));
  return run;
}

absl::StatusOr<LinearOperands> MakeLinearOperands(ScenarioContext& context, DType dtype, int64_t m,
                                                  int64_t n, int64_t k, uint64_t seed) {
  LinearOperands operands;
  operands.seed = seed;
  const auto normal = [&](uint64_t offset, DType of, Shape shape, float scale) {
    return context.Generate(Distribution::kNormal, seed * 8 + offset, of, std::move(shape), scale);
  };
  QG_ASSIGN_OR_RETURN(operands.x, normal(0, dtype, {m, k}, 1.0f));
  QG_ASSIGN_OR_RETURN(operands.weight, normal(1, DType::kBF16, {n, k}, 0.0625f));
  QG_ASSIGN_OR_RETURN(operands.bias, normal(2, DType::kBF16, {n}, 0.25f));
  QG_ASSIGN_OR_RETURN(operands.grad_output, normal(3, dtype, {m, n}, 0x1p-8f));
  return operands;
}

}  // namespace quantgate
