// LayerStages: what RunLayer will do, stage by stage, read from the plan.
#include "absl/strings/str_cat.h"
#include "kernels/layer/amax_reduction.h"
#include "kernels/layer/delayed_reduction.h"
#include "kernels/layer/layer_request.h"
#include "kernels/layer/linear_parallel.h"

namespace quantgate {
namespace {

class StageList {
 public:
  StageList(const LayerRequest& request, const Recipe& recipe, const LayerPlan& plan)
      : recipe_(recipe),
        request_(request),
        plan_(plan),
        options_({.recipe = recipe, .parallel = request.parallel}) {}

  std::vector<std::string> Run();

 private:
  void AddIf(bool condition, const std::string& stage) {
    if (condition) stages_.push_back(stage);
  }
  DType DTypeOf(const std::string& parameter) const {
    return request_.parameters.at(parameter).dtype();
  }
  bool IsCast(DType dtype) const { return dtype != plan_.activation_dtype; }

  void AddForward(const ProgramPlan& program, const PlannedOperation& operation);
  void AddLinearForward(const PlannedOperation& operation);
  /// `stage` quantizes an operand of the role.
  void AddQuantization(const PlannedOperation& operation, TensorRole role, Usages usages,
                       const std::string& stage);
  void AddDelayedReductions(UpdatePoint point);
  void AddShardQuantization(const PlannedOperation& operation, TensorRole role,
                            const std::string& what, Usages usages);
  void AddGatherX(const PlannedOperation& operation);
  void AddRegatherX(const PlannedOperation& operation);
  void AddGatherGradOutput(const PlannedOperation& operation);
  void AddReduction(const PlannedOperation& operation, const char* what);
  void AddQuantizeForward(const PlannedOperation& operation);
  void AddBackward(const ProgramPlan& program);
  void AddBackward(const PlannedOperation& operation);
  void AddLinearBackward(const PlannedOperation& operation);
  void AddQuantizeBackward(const PlannedOperation& operation);

  const Recipe& recipe_;
  const LayerRequest& request_;
  const LayerPlan& plan_;
  const StepOptions options_;  ///< For what it says of amax groups.
  std::vector<std::string> stages_;
};

void StageList::AddQuantization(const PlannedOperation& operation, TensorRole role, Usages usages,
                                const std::string& stage) {
  const AmaxOfRole amax(options_, role);
  if (amax.IsReduced(recipe_.QuantizerFor(role), usages)) {
    // Those of all experts together, before the first is quantized.
    const bool is_grouped = plan_.kind == LayerKind::kGroupedLinear;
    AddIf(!is_grouped || operation.unit == 0,
          is_grouped ? amax.Stage() : operation.names.Stage(amax.Stage()));
  }
  stages_.push_back(operation.names.Stage(stage));
}

void StageList::AddShardQuantization(const PlannedOperation& operation, TensorRole role,
                                     const std::string& what, Usages usages) {
  if (!usages.rowwise && !usages.columnwise) return;
  AddIf(!AmaxOfRole(options_, role).is_named() && ReducesAmax(recipe_.QuantizerFor(role), usages),
        operation.names.Stage("reduce amax of " + what));
  AddQuantization(operation, role, usages, "quantize " + what);
}

void StageList::AddGatherX(const PlannedOperation& operation) {
  const LinearUnit& unit = operation.linear;
  AddShardQuantization(operation, TensorRole::kInput, "x", XShardUsages(unit, recipe_));
  if (unit.parallel.overlap.fprop != OverlapMethod::kNone) return;
  const bool sends_codes = unit.parallel.x_gather == GatherMethod::kCodes && !GathersXSource(unit);
  AddIf(!sends_codes && !GathersXSource(unit), operation.names.Stage("dequantize shard of x"));
  stages_.push_back(operation.names.Stage("all-gather x"));
  if (sends_codes || !unit.flow.quantizes_fprop) return;
  AddQuantization(operation, TensorRole::kInput, {true, false}, "quantize gathered x");
}

void StageList::AddRegatherX(const PlannedOperation& operation) {
  const LinearUnit& unit = operation.linear;
  const LinearDataflow& flow = unit.flow;
  const Usages kept = KeptShardUsages(unit, recipe_);
  const bool is_overridden = flow.backward_override != BackwardOverride::kNone;
  const bool sends_codes = unit.parallel.x_gather == GatherMethod::kCodes;
  AddIf(!is_overridden && !sends_codes && (kept.rowwise || kept.columnwise),
        operation.names.Stage("dequantize shard of x"));
  stages_.push_back(operation.names.Stage("all-gather x"));
  if (!is_overridden && !sends_codes && flow.x_usages.columnwise) {
    AddQuantization(operation, TensorRole::kInput, {false, true}, "quantize gathered x");
  }
  const bool is_requantized =
      flow.reads_dequantized() && unit.parallel.x_gather == GatherMethod::kSource;
  if (!is_requantized) return;
  AddQuantization(operation, TensorRole::kInput, {true, false}, "quantize gathered x");
  stages_.push_back(operation.names.Stage("dequantize gathered x"));
}

void StageList::AddGatherGradOutput(const PlannedOperation& operation) {
  const LinearUnit& unit = operation.linear;
  const auto add = [&](const char* stage) { stages_.push_back(operation.names.Stage(stage)); };
  const bool is_in_dgrad = unit.parallel.overlap.dgrad != OverlapMethod::kNone;
  if (!unit.flow.reads_grad_output_codes()) {
    if (!is_in_dgrad) add("all-gather grad_output");
    return;
  }
  const Usages made = GradOutputShardUsages(unit, recipe_);
  AddShardQuantization(operation, TensorRole::kGradOutput, "grad_output", made);
  if (is_in_dgrad) return;
  const bool sends_codes = unit.parallel.grad_output_gather == GatherMethod::kCodes;
  const bool sends_values = !sends_codes && made.rowwise;
  if (sends_values) add("dequantize shard of grad_output");
  add("all-gather grad_output");
  if (sends_codes) return;
  AddQuantization(operation, TensorRole::kGradOutput, unit.flow.grad_output_usages,
                  "quantize gathered grad_output");
  if (sends_values && ReadsGradOutputSource(unit.flow)) add("all-gather grad_output");
}

void StageList::AddReduction(const PlannedOperation& operation, const char* what) {
  const bool is_scattered = !operation.linear.parallel.rows.empty();
  stages_.push_back(
      operation.names.Stage(absl::StrCat(is_scattered ? "reduce-scatter " : "all-reduce ", what)));
}

void StageList::AddLinearForward(const PlannedOperation& operation) {
  const LinearFacts& facts = operation.linear.facts;
  const LinearDataflow& flow = operation.linear.flow;
  const auto add_if = [&](bool condition, const char* stage) {
    AddIf(condition, operation.names.Stage(stage));
  };
  add_if(!facts.x_is_unrounded && IsCast(facts.x_dtype), "cast x");
  add_if(flow.is_calibration, "calibrate x");
  add_if(flow.is_calibration, "calibrate weight");
  const LinearParallel& parallel = operation.linear.parallel;
  if (parallel.gathers_x()) {
    AddGatherX(operation);
  } else if (flow.reads_x_codes() && !facts.x_is_codes) {
    AddQuantization(operation, TensorRole::kInput, flow.x_usages, kStageQuantizeX);
  }
  if (flow.reads_weight_codes()) {
    AddQuantization(operation, TensorRole::kWeight, flow.weight_usages, kStageQuantizeWeight);
  }
  add_if(flow.reads_weight && IsCast(facts.weight_dtype), "cast weight");
  add_if(flow.has_weight_copy() && IsCast(facts.weight_dtype), "cast dequantized weight");
  add_if(flow.has_backward(), "fingerprint saved operands");
  const bool casts_bias = !operation.bias.empty() && DTypeOf(operation.bias) != flow.bias_dtype;
  add_if(casts_bias && !parallel.is_row(), "cast bias");
  add_if(true, kStageFprop);
  if (parallel.is_row()) {
    if (parallel.overlap.fprop == OverlapMethod::kNone) AddReduction(operation, "y");
    add_if(casts_bias, "cast bias");
    add_if(!operation.bias.empty(), "add bias");
  }
}

void StageList::AddQuantizeForward(const PlannedOperation& operation) {
  const Usages& usages = operation.forward_usages;
  AddIf(plan_.is_calibration && operation.quantizes_forward, operation.name + ".calibrate x");
  if (usages.rowwise || usages.columnwise) {
    AddQuantization(operation, TensorRole::kInput, usages, kStageQuantizeX);
  }
  AddIf(operation.dequantizes_forward, operation.name + ".dequantize x");
}

void StageList::AddForward(const ProgramPlan& program, const PlannedOperation& operation) {
  if (operation.kind == OperationKind::kBasicLinear) return AddLinearForward(operation);
  const PlannedValue& x = program.values[operation.input];
  AddIf(IsCast(x.dtype), operation.name + ".cast x");
  if (operation.kind == OperationKind::kQuantize) return AddQuantizeForward(operation);
  if (operation.kind == OperationKind::kAdd) {
    AddIf(IsCast(program.values[operation.addend].dtype), operation.name + ".cast addend");
  }
  const std::pair<const char*, const std::string&> parameters[] = {
      {"bias", operation.bias}, {"gamma", operation.gamma}, {"beta", operation.beta}};
  for (const auto& [what, name] : parameters) {
    AddIf(!name.empty() && IsCast(DTypeOf(name)), absl::StrCat(operation.name, ".cast ", what));
  }
  stages_.push_back(operation.name);
  const bool saves =
      operation.kind == OperationKind::kNorm || operation.kind == OperationKind::kActivation;
  AddIf(saves && operation.needs_backward, operation.name + ".fingerprint saved operands");
}

void StageList::AddLinearBackward(const PlannedOperation& operation) {
  const LinearFacts& facts = operation.linear.facts;
  const LinearDataflow& flow = operation.linear.flow;
  const auto add_if = [&](bool condition, const char* stage) {
    AddIf(condition, operation.names.Stage(stage));
  };
  add_if(flow.needs_db && facts.grad_output_is_codes, "dequantize grad_output");
  add_if(flow.needs_db, "bias gradient");
  add_if(flow.is_calibration, "calibrate grad_output");
  const LinearParallel& parallel = operation.linear.parallel;
  if (parallel.gathers_grad_output()) {
    AddGatherGradOutput(operation);
  } else if (flow.reads_grad_output_codes() && !facts.grad_output_is_codes) {
    AddQuantization(operation, TensorRole::kGradOutput, flow.grad_output_usages,
                    kStageQuantizeGradOutput);
  }
  // The fingerprints at use are taken right before the operands are read, all in one stage.
  add_if(true, "check saved operands");
  add_if(flow.needs_dx && flow.reads_dequantized(), "dequantize saved weight");
  add_if(flow.needs_dx && flow.reads_originals() && IsCast(facts.weight_dtype),
         "cast saved weight");
  add_if(flow.needs_dx, kStageDgrad);
  const OverlapPlan& overlap = parallel.overlap;
  const bool gathers_beside = parallel.is_column() && overlap.dgrad == OverlapMethod::kBulk;
  const bool scatters_inside =
      parallel.is_column() && overlap.dgrad != OverlapMethod::kNone && !gathers_beside;
  const bool hides_dx = scatters_inside || overlap.wgrad == OverlapMethod::kBulk;
  if (flow.needs_dx && parallel.is_column() && !hides_dx) AddReduction(operation, "dx");
  // Rowwise codes came in dgrad's ring; mxfp8's columnwise ones, which are others, beside it or
  // now.
  add_if(parallel.is_row() && overlap.dgrad != OverlapMethod::kNone &&
             overlap.wgrad == OverlapMethod::kNone &&
             GradOutputShardUsages(operation.linear, recipe_).columnwise,
         "all-gather grad_output");
  // wgrad of an empty batch is zero without reading x.
  const bool reads_x = flow.needs_dw && !flow.is_empty;
  const bool holds_source = parallel.gathers_x() && parallel.x_gather == GatherMethod::kSource;
  const bool reads_codes =
      (flow.reads_dequantized() && !holds_source) || (flow.reads_originals() && facts.x_is_codes);
  add_if(reads_x && reads_codes, "dequantize saved x");
  add_if(reads_x && !reads_codes && flow.reads_originals() && IsCast(facts.x_dtype),
         "cast saved x");
  if (reads_x && parallel.gathers_x() && !gathers_beside) AddRegatherX(operation);
  add_if(flow.needs_dw, kStageWgrad);
}

void StageList::AddQuantizeBackward(const PlannedOperation& operation) {
  const Usages& usages = operation.backward_usages;
  AddIf(plan_.is_calibration && operation.quantizes_backward,
        operation.name + ".calibrate grad_output");
  if (usages.rowwise || usages.columnwise) {
    AddQuantization(operation, TensorRole::kGradOutput, usages, kStageQuantizeGradOutput);
  }
  AddIf(operation.dequantizes_backward, operation.name + ".dequantize grad_output");
}

void StageList::AddBackward(const PlannedOperation& operation) {
  switch (operation.kind) {
    case OperationKind::kBasicLinear:
      return AddLinearBackward(operation);
    case OperationKind::kQuantize:
      return AddQuantizeBackward(operation);
    case OperationKind::kBias:
      return AddIf(operation.needs_parameters, operation.name + ".gradient");
    case OperationKind::kAdd:
      return;
    case OperationKind::kScale:
      return stages_.push_back(operation.name + ".backward");
    case OperationKind::kNorm:
    case OperationKind::kActivation:
      break;
  }
  stages_.push_back(operation.name + ".check saved operands");
  stages_.push_back(operation.name + ".backward");
  AddIf(operation.gradient == ActivationGradient::kForBiasOnly && IsCast(DType::kF32),
        operation.name + ".round gradient");
}

void StageList::AddBackward(const ProgramPlan& program) {
  std::vector<bool> has_gradient(program.values.size(), false);
  const auto contribute = [&](int value) {
    const PlannedValue& planned = program.values[value];
    if (!planned.needs_gradient) return;
    AddIf(has_gradient[value], absl::StrCat("add to ", planned.gradient));
    has_gradient[value] = true;
  };
  for (size_t left = program.operations.size(); left > 0; --left) {
    const PlannedOperation& operation = program.operations[left - 1];
    if (!operation.needs_backward) continue;
    AddBackward(operation);
    // A norm takes a residual's gradient into its own.
    if (operation.kind == OperationKind::kNorm && plan_.fused)
      has_gradient[operation.input] = false;
    if (operation.kind == OperationKind::kAdd) contribute(operation.addend);
    contribute(operation.input);
  }
}

void StageList::AddDelayedReductions(UpdatePoint point) {
  if (request_.parallel == nullptr) return;
  const ParallelStep& step = *request_.parallel;
  for (const std::string& group : DelayedGroups(request_.layer, step.amax_groups, point)) {
    AddIf(ReducesDelayedAmaxes(recipe_, group.empty() ? step.size() : kWorldSizeMax),
          DelayedReductionStage(point, group));
  }
}

std::vector<std::string> StageList::Run() {
  const bool is_grouped = plan_.kind == LayerKind::kGroupedLinear;
  for (const ProgramPlan& program : plan_.programs) {
    for (const PlannedOperation& operation : program.operations) AddForward(program, operation);
  }
  AddIf(is_grouped, "concatenate y");
  if (!plan_.has_backward) return std::move(stages_);
  if (plan_.is_delayed) AddDelayedReductions(UpdatePoint::kForward);
  AddIf(plan_.is_delayed, "update scales of forward");
  AddIf(IsCast(request_.grad_output.dtype()), "cast grad_output");
  for (const ProgramPlan& program : plan_.programs) AddBackward(program);
  AddIf(is_grouped && request_.requires_grad.x, "concatenate dx");
  const bool updates_backward = plan_.is_delayed && QuantizesGradients(plan_);
  if (updates_backward) AddDelayedReductions(UpdatePoint::kBackward);
  AddIf(updates_backward, "update scales of backward");
  return std::move(stages_);
}

}  // namespace

std::vector<std::string> LayerStages(const LayerRequest& request, const Recipe& given) {
  const Recipe recipe = RecipeOfLayer(request.layer, given);
  const LayerPlan plan = PlanOf(request, recipe);
  return StageList(request, recipe, plan).Run();
}

}  // namespace quantgate
