#include "kernels/validate/scenarios/linear_subject.h"

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/layer/linear.h"

namespace quantgate {

absl::StatusOr<LinearRun> RunLinearOn(ScenarioContext& context, const LinearOperands& operands,
                                      const Recipe& recipe) {
  LinearRequest request;
  QG_ASSIGN_OR_RETURN(request.x, context.ToEngine(operands.x));
  QG_ASSIGN_OR_RETURN(request.weight, context.ToEngine(operands.weight));
  QG_ASSIGN_OR_RETURN(request.bias, context.ToEngine(operands.bias));
  QG_ASSIGN_OR_RETURN(request.grad_output, context.ToEngine(operands.grad_output));
  QG_ASSIGN_OR_RETURN(request.main_grad, context.ToEngine(operands.main_grad));
  request.requires_grad = operands.requires_grad;
  request.seed = operands.seed;
  QG_RETURN_IF_ERROR(CheckLinear(request, recipe));
  QG_ASSIGN_OR_RETURN(LinearResult result,
                      RunLinear(context.engine(), request, recipe, {}, context.cancellation()));
  LinearRun run;
  static_cast<StepRecords&>(run) = std::move(static_cast<StepRecords&>(result));
  for (NamedTensor& output : result.outputs) run.outputs[output.name] = std::move(output.tensor);
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
