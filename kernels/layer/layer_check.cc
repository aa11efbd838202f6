#include <algorithm>
#include <memory>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/refusal.h"
#include "kernels/layer/amax_reduction.h"
#include "kernels/layer/layer_request.h"
#include "kernels/layer/linear/given_codes.h"
#include "kernels/layer/linear/linear_check.h"
#include "kernels/quantize/quantized_outline.h"

namespace quantgate {
namespace {

absl::Status CheckDelayed(const LayerRequest& request, const Recipe& recipe) {
  if (!recipe.is_delayed()) return absl::OkStatus();
  const std::vector<LayerDelayedState> known = DelayedStatesOf(request.layer, recipe);
  if (!known.empty() && recipe.backward_override() != BackwardOverride::kNone) {
    return Refuse("backward_override",
                  std::string(BackwardOverrideName(recipe.backward_override())),
                  "delayed scaling has no backward override");
  }
  for (const auto& [given, state] : request.delayed) {
    const std::string& name = given;
    const std::string field = absl::StrCat("delayed_state[", name, "]");
    const bool is_known = std::any_of(
        known.begin(), known.end(), [&](const LayerDelayedState& one) { return one.name == name; });
    if (!is_known) {
      return Refuse(field, "no such state",
                    absl::StrCat("the layer's are ",
                                 absl::StrJoin(known, ", ", [](std::string* text, const auto& one) {
                                   absl::StrAppend(text, one.name);
                                 })));
    }
    QG_RETURN_IF_ERROR(CheckDelayedScaling(state, field));
  }
  return absl::OkStatus();
}

/// How errors name the dims of a linear operation: x if it reads x, else its weight; an expert's
/// rows by their split.
absl::StatusOr<LinearFields> FieldsOf(const LayerRequest& request, size_t program,
                                      const PlannedOperation& operation) {
  LinearFields fields;
  fields.m = {"x", request.x};
  fields.n = {absl::StrCat("parameters[", operation.weight, "]"),
              request.parameters.at(operation.weight)};
  fields.k = operation.input == 0 ? fields.m : fields.n;
  if (!request.layer.traits().has_experts) return fields;
  fields.m.name = absl::StrCat("layer.m_splits[", program, "]");
  QG_ASSIGN_OR_RETURN(fields.m.tensor,
                      OutlineTensor(request.x.dtype(), {operation.linear.m, operation.linear.k}));
  return fields;
}

/// Checks the codes that a quantize operation makes for others, which no linear unit checks.
absl::Status CheckQuantize(const LayerPlan& plan, const ProgramPlan& program,
                           const PlannedOperation& operation) {
  if (operation.quantizes_forward) {
    QG_RETURN_IF_ERROR(operation.linear.recipe->CheckRole(TensorRole::kInput));
  }
  if (operation.quantizes_backward) {
    QG_RETURN_IF_ERROR(operation.gradient_recipe->CheckRole(TensorRole::kGradOutput));
  }
  const std::pair<TensorRole, Usages> quantizations[] = {
      {TensorRole::kInput, operation.forward_usages},
      {TensorRole::kGradOutput, operation.backward_usages}};
  const Shape& shape = program.values[operation.input].shape;
  for (const auto& [role, usages] : quantizations) {
    if (!usages.rowwise && !usages.columnwise) continue;
    const absl::Status status =
        CheckQuantization(plan.activation_dtype, shape, operation.QuantizerFor(role), usages);
    if (!status.ok()) {
      return Refuse(operation.field, ShapeText(shape), std::string(status.message()));
    }
  }
  return absl::OkStatus();
}

/// Checks the amax groups of the operands that a linear operation quantizes itself.
absl::Status CheckAmaxes(const LinearUnit& unit, const AmaxGroups& groups) {
  const LinearFacts& facts = unit.facts;
  const std::tuple<TensorRole, bool, Usages> operands[] = {
      {TensorRole::kInput, facts.x_is_codes, unit.flow.x_usages},
      {TensorRole::kWeight, facts.weight_is_codes, unit.flow.weight_usages},
      {TensorRole::kGradOutput, facts.grad_output_is_codes, unit.flow.grad_output_usages}};
  for (const auto& [role, is_codes, usages] : operands) {
    if (is_codes) continue;
    QG_RETURN_IF_ERROR(
        CheckAmaxesOfRole("", groups, role, unit.recipe->QuantizerFor(role), usages));
  }
  return absl::OkStatus();
}

/// A linear operation that gathers must quantize itself, so that each rank's codes have the group's
/// amax and the directions that are gathered.
absl::Status CheckGathered(const PlannedOperation& operation) {
  const LinearUnit& unit = operation.linear;
  const std::pair<TensorRole, bool> operands[] = {
      {TensorRole::kInput, unit.parallel.gathers_x()},
      {TensorRole::kGradOutput, unit.parallel.gathers_grad_output()}};
  for (const auto& [role, is_gathered] : operands) {
    const Quantizer& quantizer = unit.recipe->QuantizerFor(role);
    const bool is_split =
        unit.flow.is_delayed && !quantizer.is_uniform() && !quantizer.delayed_directions().empty();
    if (!is_gathered || !is_split) continue;
    return Refuse("recipe", unit.recipe->ShortText(),
                  absl::StrCat(std::string(TensorRoleName(role)),
                               " has delayed scaling in one direction, or by two rules, which does "
                               "not go with sequence parallelism: what such a rule gathers is "
                               "quantized when it is gathered, in backward after the update of its "
                               "scale"));
  }
  const bool x = unit.facts.x_is_codes && unit.parallel.gathers_x();
  const bool grad_output = unit.facts.grad_output_is_codes && unit.parallel.gathers_grad_output();
  if (!x && !grad_output) return absl::OkStatus();
  return Refuse(operation.field, std::string(ParallelModeName(unit.parallel.mode)),
                absl::StrCat("under sequence parallelism it takes no ", x ? "x" : "grad_output",
                             " that a quantize operation made"));
}

/// Refuses rules for results where the result that a module gives is not the GEMM's own, or has
/// parts on other ranks.
absl::Status CheckResults(const LayerRequest& request, const PlannedOperation& operation) {
  const LinearUnit& unit = operation.linear;
  if (!unit.flow.quantizes_output && !unit.flow.quantizes_grad_input) return absl::OkStatus();
  const std::string recipe = unit.recipe->ShortText();
  if (request.parallel != nullptr) {
    return RefuseResultRule(
        "recipe", *unit.recipe,
        unit.flow.quantizes_output ? TensorRole::kOutput : TensorRole::kGradInput);
  }
  const bool has_bias = request.parameters.contains(unit.names.bias);
  if (unit.flow.quantizes_output && has_bias && operation.bias.empty() &&
      !request.layer.traits().has_operations) {
    return Refuse("layer.fused", "false",
                  absl::StrCat("under recipe ", recipe, ", whose rule for output is about the sum ",
                               "with the bias, which another operation adds"));
  }
  return absl::OkStatus();
}

/// Refuses what the step's overlap plan asks for by name and a unit cannot carry out.
absl::Status CheckOverlap(const LayerRequest& request, const PlannedOperation& operation) {
  const ParallelStep* const step = request.parallel.get();
  // The units of a grouped_linear do not communicate, so there is nothing to overlap.
  if (step == nullptr || !operation.linear.parallel.is_parallel()) return absl::OkStatus();
  const bool is_column = operation.parallel_mode == ParallelMode::kColumn;
  absl::Status status = CheckNamedOverlap(is_column ? step->column_overlap : step->row_overlap,
                                          operation.overlap_facts, *operation.linear.recipe);
  if (status.ok()) status = CheckLinearUnitOverlap(operation.linear, step->profile);
  if (status.ok()) return status;
  return WithinField(absl::StrCat("parallel.", is_column ? "column" : "row", "_overlap"), status);
}

/// Checks the operands of a linear unit that the request gives as codes.
absl::Status CheckGivenOperands(const LayerRequest& request, const PlannedOperation& operation) {
  const auto x = request.codes.find("x");
  if (operation.input == 0 && x != request.codes.end()) {
    QG_RETURN_IF_ERROR(CheckGivenCodes("x", TensorRole::kInput, x->second, operation.linear));
  }
  const auto weight = request.codes.find(operation.weight);
  if (weight == request.codes.end()) return absl::OkStatus();
  return CheckGivenCodes(absl::StrCat("parameters[", operation.weight, "]"), TensorRole::kWeight,
                         weight->second, operation.linear);
}

}  // namespace

absl::Status CheckGivenGradient(const LayerPlan& plan, const QuantizedTensor& codes) {
  const std::string given = absl::StrCat("given as ", CodesText(codes));
  if (plan.has_experts) {
    return Refuse("grad_output", given,
                  "the rows of each expert are quantized by themselves, in a grouped_linear");
  }
  const PlannedOperation* const last = FirstOfBackward(plan.programs.front());
  if (last == nullptr) {
    return Refuse("grad_output", given,
                  absl::StrCat(plan.programs.front().operations.back().name,
                               ", the last operation, reads it in high precision"));
  }
  if (last->linear.parallel.is_parallel()) {
    return Refuse("grad_output", given, kRanksQuantize);
  }
  return CheckGivenCodes("grad_output", TensorRole::kGradOutput, codes, last->linear);
}

absl::Status CheckLayer(const LayerRequest& request, const Recipe& recipe) {
  QG_RETURN_IF_ERROR(CheckLayerTensors(request));
  return DecideLayer(request, recipe).status();
}

absl::StatusOr<LayerPlanPointer> DecideLayer(const LayerRequest& request, const Recipe& given) {
  const Recipe recipe = RecipeOfLayer(request.layer, given);
  QG_RETURN_IF_ERROR(recipe.CheckForLayers());
  QG_RETURN_IF_ERROR(CheckDelayed(request, recipe));
  const auto plan = std::make_shared<const LayerPlan>(PlanOf(request, recipe));
  for (size_t i = 0; i < plan->programs.size(); ++i) {
    const ProgramPlan& program = plan->programs[i];
    for (const PlannedOperation& operation : program.operations) {
      if (operation.kind == OperationKind::kQuantize) {
        QG_RETURN_IF_ERROR(CheckQuantize(*plan, program, operation));
      }
      if (operation.kind != OperationKind::kBasicLinear) continue;
      QG_RETURN_IF_ERROR(operation.linear.recipe->CheckModule());
      QG_RETURN_IF_ERROR(CheckGathered(operation));
      QG_RETURN_IF_ERROR(CheckResults(request, operation));
      QG_ASSIGN_OR_RETURN(const LinearFields fields, FieldsOf(request, i, operation));
      QG_RETURN_IF_ERROR(CheckLinearUnit(operation.linear, fields));
      QG_RETURN_IF_ERROR(CheckGivenOperands(request, operation));
      if (request.parallel != nullptr) {
        QG_RETURN_IF_ERROR(CheckAmaxes(operation.linear, request.parallel->amax_groups));
      }
      QG_RETURN_IF_ERROR(CheckOverlap(request, operation));
    }
  }
  const auto grad_output = request.codes.find("grad_output");
  if (grad_output != request.codes.end()) {
    QG_RETURN_IF_ERROR(CheckGivenGradient(*plan, grad_output->second));
  }
  return plan;
}

absl::Status CheckLayerGemms(const LayerPlan& plan, const Arithmetic& arithmetic) {
  for (const ProgramPlan& program : plan.programs) {
    for (const PlannedOperation& operation : program.operations) {
      const bool multiplies = operation.kind == OperationKind::kBasicLinear ||
                              operation.kind == OperationKind::kAttention;
      if (!multiplies) continue;
      // Attention without rows has no GEMM.
      if (operation.kind == OperationKind::kAttention && operation.linear.flow.is_empty) continue;
      QG_RETURN_IF_ERROR(CheckLinearUnitGemms(operation.linear, arithmetic));
    }
  }
  return absl::OkStatus();
}

}  // namespace quantgate
