#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/comm/overlap/overlap.h"
#include "kernels/layer/attention_core.h"
#include "kernels/layer/experts/expert_amaxes.h"
#include "kernels/layer/layer_faults.h"
#include "kernels/layer/layer_saved.h"

namespace quantgate {
namespace {

LayerOutline OutlineOf(const LayerState& state, const StepOperand& x, const StepOptions& options) {
  LayerOutline outline;
  outline.x_dtype = x.value.dtype();
  outline.x_shape = x.value.shape();
  outline.x_is_codes = x.is_codes();
  for (const auto& [name, parameter] : state.parameters) {
    const bool is_quantized = parameter.is_quantized();
    if (!is_quantized && !parameter.value.has_value()) continue;
    outline.parameters[name] = {
        is_quantized ? parameter.quantized.source_dtype : parameter.value.dtype(),
        is_quantized ? parameter.quantized.shape : parameter.value.shape(), is_quantized};
  }
  for (const auto& [weight, main_grad] : state.main_grads) {
    if (main_grad.has_value()) outline.main_grads.insert(weight);
  }
  outline.parallel = options.parallel;
  return outline;
}

void AddNotes(StepRecorder& recorder, const LayerSpec& spec, const LayerPlan& plan,
              const Recipe& recipe) {
  const LayerTraits& traits = spec.traits();
  const std::vector<Recipe> modules = RecipesOfModules(spec, recipe);
  const bool is_quantized = std::any_of(modules.begin(), modules.end(),
                                        [](const Recipe& of) { return of.is_quantized(); });
  const std::string mode(BackwardOverrideName(recipe.backward_override()));
  const bool has_override = recipe.backward_override() != BackwardOverride::kNone;
  if (has_override && !is_quantized) {
    recorder.AddNote(
        absl::StrCat("backward_override=", mode, " has no effect without a quantized recipe"));
  } else if (has_override && !traits.override_note.empty()) {
    recorder.AddNote(absl::StrCat("backward_override=", mode, " of ", std::string(traits.name),
                                  ": ", std::string(traits.override_note)));
  }
  if (is_quantized && traits.has(OperationKind::kAttention)) {
    recorder.AddNote(
        "attention between its projections is not quantized: scores, contexts and their gradients "
        "are products in the activation dtype");
  }
  const bool has_rule = std::any_of(modules.begin(), modules.end(), [](const Recipe& of) {
    return of.QuantizerFor(TensorRole::kGradInput).rowwise.is_quantized();
  });
  if (has_override && is_quantized && has_rule) {
    recorder.AddNote(absl::StrCat("grad_input is not quantized under backward_override=", mode));
  }
  if (plan.is_calibration) {
    recorder.AddNote("calibration: computed in high precision, only the amaxes are noted");
  }
  for (const ProgramPlan& program : plan.programs) {
    for (const std::string& note : program.notes) recorder.AddNote(note);
  }
}

absl::StatusOr<LayerValue> ForwardLinearOperation(ProgramRun& run, size_t index,
                                                  const LayerValue& x, OperationSaved& saved) {
  const PlannedOperation& operation = run.program.operations[index];
  LinearInput input;
  input.x = x.tensor;
  input.codes = x.codes;
  input.expert_amaxes = run.expert_amaxes;
  if (!operation.bias.empty()) input.bias = run.state.parameters.at(operation.bias).value;
  QG_ASSIGN_OR_RETURN(LinearForward forward,
                      ForwardLinear(run.recorder, operation.linear, run.state, input, run.options));
  if (forward.whole_x.has_value()) {
    Shape shape = x.tensor.shape();
    shape.front() = operation.linear.parallel.first_dim;
    QG_ASSIGN_OR_RETURN(run.whole_norm_out,
                        forward.whole_x.Reinterpret(forward.whole_x.dtype(), std::move(shape)));
  }
  saved.linear = std::move(forward.saved);
  return LayerValue{std::move(forward.y), {}, {}};
}

absl::StatusOr<LayerValue> ForwardOperation(ProgramRun& run, size_t index,
                                            const std::vector<LayerValue>& values,
                                            OperationSaved& saved) {
  const PlannedOperation& operation = run.program.operations[index];
  const LayerValue& x = values[operation.input];
  switch (operation.kind) {
    case OperationKind::kNorm:
      return ForwardNorm(run, index, x, saved);
    case OperationKind::kBasicLinear:
      return ForwardLinearOperation(run, index, x, saved);
    case OperationKind::kBias:
      return ForwardBias(run, index, x);
    case OperationKind::kActivation:
      return ForwardActivation(run, index, x, saved);
    case OperationKind::kQuantize:
      return ForwardQuantize(run, index, x);
    case OperationKind::kAdd:
      return ForwardAdd(run, index, x, values[operation.addend]);
    case OperationKind::kAttention:
      return ForwardAttention(run, index, x, saved);
    case OperationKind::kScale:
      break;
  }
  return ForwardScale(run, index, x);
}

/// Checks what a step needs to run but its check does not need: the ends of groups.
absl::Status CheckEnds(const ParallelStep& parallel) {
  if (parallel.tp == nullptr && parallel.size() > 1) {
    return Refuse("parallel.tp", "null",
                  "a step of several ranks needs this rank's end of their group");
  }
  const Overlap* const overlap = parallel.overlap;
  if (overlap == nullptr) {
    if (!parallel.column_overlap.has_any() && !parallel.row_overlap.has_any()) {
      return absl::OkStatus();
    }
    return Refuse("parallel.overlap", "null",
                  "a step whose units overlap needs this rank's end of overlapped calls");
  }
  if (&overlap->group() == parallel.tp) return absl::OkStatus();
  return Refuse("parallel.overlap", absl::StrCat("of group \"", overlap->group().name(), "\""),
                absl::StrCat("it must be of parallel.tp, group \"", parallel.tp->name(), "\""));
}

/// Keeps in the state what modules with seeded bugs remember from this step.
void RememberStep(const SeededFaults& faults, const StepOptions& options, LayerState& state) {
  const bool is_seeded = faults.Has(kFaultBackwardUsesLastGroup) ||
                         faults.Has(kFaultScaleOfQuantizer) || faults.Has(kFaultColumnBytesStale) ||
                         faults.Has(kFaultGroupKept) || faults.Has(kFaultGatheredGradientKept);
  const bool keeps_derived = faults.Has(kFaultDerivedCodesKept);
  if (!keeps_derived && (!is_seeded || options.parallel == nullptr)) return;
  if (state.seeded_memory == nullptr) state.seeded_memory = std::make_shared<SeededMemory>();
  state.seeded_memory->parallel = options.parallel;
}

/// Every value of one program, x first.
absl::StatusOr<std::vector<LayerValue>> ForwardProgram(ProgramRun& run, const StepOperand& x,
                                                       std::vector<OperationSaved>& saved) {
  std::vector<LayerValue> values = {{x.value, x.codes, {}}};
  saved.resize(run.program.operations.size());
  for (size_t i = 0; i < run.program.operations.size(); ++i) {
    QG_ASSIGN_OR_RETURN(LayerValue value, ForwardOperation(run, i, values, saved[i]));
    values.push_back(std::move(value));
  }
  return values;
}

/// The tensors of the role that a forward quantizes, by expert: rows of x as the expert's unit
/// casts them, or weights.
absl::StatusOr<std::vector<Tensor>> ForwardSources(StepRecorder& recorder, const LayerPlan& plan,
                                                   const LayerState& state,
                                                   const std::vector<Tensor>& inputs,
                                                   TensorRole role) {
  std::vector<Tensor> sources;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (role == TensorRole::kWeight) {
      sources.push_back(state.parameters.at(plan.programs[i].operations[0].weight).value);
      continue;
    }
    const std::string stage = absl::StrCat("cast ", plan.programs[i].values[0].name);
    QG_ASSIGN_OR_RETURN(sources.emplace_back(),
                        recorder.Cast(stage, inputs[i], plan.activation_dtype));
  }
  return sources;
}

/// Adds the tensors between operations, and a program's own x and y if they are slices.
void AddIntermediates(const LayerPlan& layer, const ProgramPlan& program,
                      const std::vector<LayerValue>& values, ForwardResult& result) {
  const size_t last = values.size() - 1;
  const bool is_slice = layer.has_experts;
  for (size_t i = 0; i <= last; ++i) {
    const bool is_returned = static_cast<int>(i) == program.norm_out && layer.returns_norm_output;
    if (is_returned) result.norm_out = values[i].plain();
    const bool is_outer = !is_slice && (i == 0 || i == last);
    result.intermediates.insert(result.intermediates.end(), values[i].inside.begin(),
                                values[i].inside.end());
    if (is_returned || is_outer) continue;
    result.intermediates.push_back({program.values[i].name, values[i].plain()});
  }
}

}  // namespace

absl::StatusOr<ForwardResult> ForwardLayer(StepRecorder& recorder, const LayerSpec& spec,
                                           LayerState& state, const StepOperand& x,
                                           const StepOptions& given) {
  StepOptions options = given;
  options.recipe = RecipeOfLayer(spec, given.recipe);
  if (options.parallel != nullptr) QG_RETURN_IF_ERROR(CheckEnds(*options.parallel));
  if (recorder.faults().Has(kFaultRequiresGradSwapped)) {
    std::swap(options.requires_grad.x, options.requires_grad.weight);
    options.plan = nullptr;
  }
  if (options.plan == nullptr) {
    options.plan =
        std::make_shared<const LayerPlan>(PlanLayer(spec, OutlineOf(state, x, options), options));
  }
  // LayerSaved keeps the plan beside the options.
  const LayerPlanPointer plan = std::exchange(options.plan, nullptr);
  RememberStep(recorder.faults(), options, state);
  const auto shared_options = std::make_shared<const StepOptions>(options);
  AddNotes(recorder, spec, *plan, options.recipe);
  auto saved = std::make_unique<ForwardSaved>(plan, shared_options);
  saved->operations.resize(plan->programs.size());
  ForwardResult result;
  std::vector<Tensor> inputs = {x.value}, parts;
  ExpertAmaxes expert_amaxes(*shared_options, [&](TensorRole role) {
    return ForwardSources(recorder, *plan, state, inputs, role);
  });
  const bool is_grouped = plan->has_experts;
  if (is_grouped) {
    QG_ASSIGN_OR_RETURN(inputs, SplitExpertRows(*plan, x.value));
  }
  for (size_t i = 0; i < plan->programs.size(); ++i) {
    const ProgramPlan& program = plan->programs[i];
    ProgramRun run{recorder, *plan, program, state, shared_options};
    if (is_grouped) run.expert_amaxes = &expert_amaxes;
    QG_ASSIGN_OR_RETURN(
        std::vector<LayerValue> values,
        ForwardProgram(run, is_grouped ? StepOperand(inputs[i]) : x, saved->operations[i]));
    AddIntermediates(*plan, program, values, result);
    if (run.whole_norm_out.has_value()) result.norm_out = run.whole_norm_out;
    parts.push_back(values.back().plain());
  }
  QG_ASSIGN_OR_RETURN(result.y, JoinExpertRows(recorder, "concatenate y", *plan, parts));
  if (options.grad_enabled) result.saved = std::move(saved);
  return result;
}

}  // namespace quantgate
