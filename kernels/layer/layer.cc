#include "kernels/layer/layer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/layer/delayed_reduction.h"
#include "kernels/layer/layer_request.h"
#include "kernels/layer/layer_step.h"

namespace quantgate {
namespace {

bool Has(const std::map<std::string, Tensor>& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  return found != tensors.end() && found->second.has_value();
}

bool IsWanted(const RequiresGrad& wanted, ParameterKind kind) {
  if (kind == ParameterKind::kWeight) return wanted.weight;
  return kind == ParameterKind::kBias ? wanted.bias : wanted.norm;
}

/// The parameters whose gradients a run returns, with the names under which it does.
std::vector<std::pair<LayerParameter, std::string>> ReturnedGradients(const LayerRequest& request) {
  std::vector<std::pair<LayerParameter, std::string>> returned;
  if (!request.grad_output.has_value()) return returned;
  for (LayerParameter& parameter : ParametersOf(request.layer)) {
    if (!IsWanted(request.requires_grad, parameter.kind)) continue;
    if (!Has(request.parameters, parameter.name)) continue;
    const bool accumulates = Has(request.main_grads, parameter.name);
    std::string name = accumulates ? parameter.main_grad : parameter.gradient;
    returned.emplace_back(std::move(parameter), std::move(name));
  }
  return returned;
}

/// Adds the note about a forward under delayed scaling that no update follows.
void AddForwardOnlyNote(StepRecorder& recorder, const LayerPlan& plan) {
  if (!plan.is_delayed || plan.has_backward) return;
  recorder.AddNote("forward only: scales are not updated, row 0 of each history has the amax");
}

void AddState(const LayerPlan& plan, const LayerState& state, LayerResult& result) {
  for (const LayerDelayedState& delayed : plan.delayed_states) {
    const auto found = state.delayed.find(delayed.name);
    if (found == state.delayed.end()) continue;
    result.state.push_back({delayed.name + ".scale", found->second.scale});
    result.state.push_back({delayed.name + ".amax_history", found->second.amax_history});
  }
}

/// Adds the outputs in the order of LayerOutputs.
void AddOutputs(const LayerRequest& request, const LayerState& state, ForwardResult& forward,
                BackwardResult& backward, LayerResult& result) {
  result.outputs.push_back({"y", std::move(forward.y)});
  if (forward.norm_out.has_value()) {
    result.outputs.push_back({"norm_out", std::move(forward.norm_out)});
  }
  if (backward.dx.has_value()) result.outputs.push_back({"dx", std::move(backward.dx)});
  for (const auto& [parameter, name] : ReturnedGradients(request)) {
    if (name == parameter.main_grad) {
      result.outputs.push_back({name, state.main_grads.at(parameter.name)});
      continue;
    }
    const auto found =
        std::find_if(backward.gradients.begin(), backward.gradients.end(),
                     [&](const NamedTensor& gradient) { return gradient.name == name; });
    if (found != backward.gradients.end()) result.outputs.push_back(std::move(*found));
  }
  result.intermediates = std::move(forward.intermediates);
  for (NamedTensor& intermediate : backward.intermediates) {
    result.intermediates.push_back(std::move(intermediate));
  }
}

}  // namespace

LayerOutline OutlineOf(const LayerRequest& request) {
  LayerOutline outline;
  outline.x_dtype = request.x.dtype();
  outline.x_shape = request.x.shape();
  for (const auto& [name, tensor] : request.parameters) {
    if (!tensor.has_value()) continue;
    outline.parameters[name] = {tensor.dtype(), tensor.shape(), request.codes.contains(name)};
  }
  for (const auto& [name, tensor] : request.main_grads) {
    if (tensor.has_value()) outline.main_grads.insert(name);
  }
  outline.parallel = request.parallel;
  outline.x_is_codes = request.codes.contains("x");
  outline.grad_output_is_codes = request.codes.contains("grad_output");
  return outline;
}

StepOperand OperandOf(const LayerRequest& request, const std::string& name) {
  const Tensor& value = name == "x" ? request.x : request.grad_output;
  const auto codes = request.codes.find(name);
  return codes == request.codes.end() ? StepOperand(value) : StepOperand(value, codes->second);
}

LayerState StateOf(const LayerRequest& request, const Recipe& recipe) {
  LayerState state;
  for (const auto& [name, tensor] : request.parameters) {
    if (!tensor.has_value()) continue;
    Parameter& parameter = state.parameters[name];
    const auto codes = request.codes.find(name);
    if (codes == request.codes.end()) {
      parameter.value = tensor;
      continue;
    }
    // The check of the request has compared their format with the rule's.
    parameter.quantized = codes->second;
    parameter.quantizer =
        RecipeOfParameter(request.layer, recipe, name).QuantizerFor(TensorRole::kWeight);
    parameter.quantized.is_hybrid = !parameter.quantizer.has_one_rule();
  }
  for (const auto& [name, tensor] : request.main_grads) {
    if (tensor.has_value()) state.main_grads[name] = tensor;
  }
  state.delayed = request.delayed;
  return state;
}

StepOptions OptionsOf(const LayerRequest& request, const Recipe& recipe) {
  return {.recipe = RecipeOfLayer(request.layer, recipe),
          .grad_enabled = request.grad_output.has_value(),
          .requires_grad = request.requires_grad,
          .calibrate = request.calibrate,
          .seed = request.seed,
          .parallel = request.parallel};
}

LayerResult CollectStep(StepRecorder& recorder, const LayerRequest& request, LayerPlanPointer plan,
                        const LayerState& state, ForwardResult forward, BackwardResult backward) {
  AddForwardOnlyNote(recorder, *plan);
  LayerResult result;
  static_cast<StepRecords&>(result) = recorder.TakeRecords();
  AddOutputs(request, state, forward, backward, result);
  AddState(*plan, state, result);
  result.plan = std::move(plan);
  return result;
}

absl::StatusOr<LayerResult> FinishStep(StepRecorder& recorder, const LayerRequest& request,
                                       LayerPlanPointer plan, const LayerState& state,
                                       ForwardResult forward, BackwardResult backward) {
  LayerResult result = CollectStep(recorder, request, std::move(plan), state, std::move(forward),
                                   std::move(backward));
  QG_RETURN_IF_ERROR(recorder.Read(result));
  return result;
}

bool QuantizesGradients(const LayerPlan& plan) {
  for (const ProgramPlan& program : plan.programs) {
    for (const PlannedOperation& operation : program.operations) {
      const Usages& usages = operation.backward_usages;
      if (usages.rowwise || usages.columnwise) return true;
      if (operation.linear.flow.reads_grad_output_codes()) return true;
    }
  }
  return false;
}

uint32_t CallIdsOf(const LayerSpec& spec) {
  uint32_t units = 0;
  const auto no_biases = [](const std::string&) { return false; };
  for (const LayerProgram& program : ProgramsOf(spec, no_biases)) {
    for (const ProgramOperation& operation : program.operations) {
      if (operation.unit >= 0) ++units;
    }
  }
  return kCallIdsPerUnit * units;
}

absl::Status UpdateScales(StepRecorder& recorder, const LayerSpec& spec, LayerState& state,
                          const Recipe& recipe, UpdatePoint point) {
  if (!recipe.is_delayed()) return absl::OkStatus();
  const bool is_backward = point == UpdatePoint::kBackward;
  const char* const stage = is_backward ? "update scales of backward" : "update scales of forward";
  return recorder.Timed({StageKind::kCompare, stage}, [&]() -> absl::Status {
    for (const LayerDelayedState& delayed : DelayedStatesOf(spec, recipe)) {
      if ((delayed.role == TensorRole::kGradOutput) != is_backward) continue;
      const auto found = state.delayed.find(delayed.name);
      if (found == state.delayed.end()) continue;
      QG_RETURN_IF_ERROR(
          UpdateDelayedState(recorder, recipe.delayed_scaling(), delayed.element, found->second));
    }
    return absl::OkStatus();
  });
}

std::vector<std::string> LayerOutputs(const LayerRequest& request) {
  std::vector<std::string> outputs = {"y"};
  if (request.layer.return_norm_output) outputs.push_back("norm_out");
  if (request.grad_output.has_value() && request.requires_grad.x) outputs.push_back("dx");
  for (const auto& [parameter, name] : ReturnedGradients(request)) outputs.push_back(name);
  return outputs;
}

Shape LayerOutputShape(const LayerRequest& request, std::string_view output) {
  if (output == "dx") return request.x.shape();
  for (const LayerParameter& parameter : ParametersOf(request.layer)) {
    if (output == parameter.gradient || output == parameter.main_grad) {
      return request.parameters.at(parameter.name).shape();
    }
  }
  const LayerPlan plan = PlanOf(request, *Recipe::Parse("bf16"));
  const ProgramPlan& first = plan.programs.front();
  if (output == "norm_out") {
    Shape shape = request.x.shape();
    const PlannedOperation& linear = first.operations[static_cast<size_t>(first.norm_out)];
    if (linear.linear.parallel.returns_x) shape.front() = linear.linear.parallel.first_dim;
    return shape;
  }
  const Shape& y = first.values.back().shape;
  return plan.has_experts ? plan.ShapeOfRows(y.back()) : y;
}

namespace {

absl::Status UpdateScalesOfStep(StepRecorder& recorder, const LayerRequest& request,
                                LayerState& state, const Recipe& recipe, UpdatePoint point) {
  if (request.parallel != nullptr) {
    const ReducedLayer layer{&request.layer, &state};
    QG_RETURN_IF_ERROR(ReduceDelayedAmaxes(recorder, request.parallel->tp, {&layer, 1}, recipe,
                                           point, request.parallel.get()));
  }
  return UpdateScales(recorder, request.layer, state, recipe, point);
}

}  // namespace

absl::StatusOr<ComputedLayer> ComputeLayer(StepRecorder& recorder, const LayerRequest& request,
                                           LayerPlanPointer plan, const Recipe& recipe) {
  const LayerSpec& spec = request.layer;
  ComputedLayer work{
      std::move(plan), StateOf(request, RecipeOfLayer(request.layer, recipe)), {}, {}};
  LayerState& state = work.state;
  StepOptions options = OptionsOf(request, recipe);
  options.plan = work.plan;
  QG_ASSIGN_OR_RETURN(work.forward,
                      ForwardLayer(recorder, spec, state, OperandOf(request, "x"), options));
  if (!work.plan->has_backward) return work;
  if (work.plan->is_delayed) {
    QG_RETURN_IF_ERROR(UpdateScalesOfStep(recorder, request, state, recipe, UpdatePoint::kForward));
  }
  QG_ASSIGN_OR_RETURN(work.backward,
                      BackwardLayer(recorder, spec, state, std::move(work.forward.saved),
                                    OperandOf(request, "grad_output")));
  if (work.plan->is_delayed && QuantizesGradients(*work.plan)) {
    QG_RETURN_IF_ERROR(
        UpdateScalesOfStep(recorder, request, state, recipe, UpdatePoint::kBackward));
  }
  return work;
}

absl::StatusOr<StartedLayer> StartLayer(Engine& engine, const LayerRequest& request,
                                        LayerPlanPointer plan, const Recipe& recipe,
                                        const Arithmetic& arithmetic,
                                        const Cancellation* cancellation, StageObserver on_stage) {
  StartedLayer started;
  started.recorder = std::make_unique<StepRecorder>(engine, arithmetic, cancellation, on_stage);
  QG_ASSIGN_OR_RETURN(ComputedLayer work,
                      ComputeLayer(*started.recorder, request, std::move(plan), recipe));
  started.result = CollectStep(*started.recorder, request, work.plan, work.state,
                               std::move(work.forward), std::move(work.backward));
  return started;
}

absl::StatusOr<LayerResult> RunLayer(Engine& engine, const LayerRequest& request,
                                     const Recipe& recipe, const Arithmetic& arithmetic,
                                     const Cancellation* cancellation, StageObserver on_stage) {
  QG_RETURN_IF_ERROR(CheckLayerTensors(request));
  QG_ASSIGN_OR_RETURN(const LayerPlanPointer plan, DecideLayer(request, recipe));
  QG_RETURN_IF_ERROR(CheckLayerGemms(*plan, arithmetic));
  QG_ASSIGN_OR_RETURN(StartedLayer started, StartLayer(engine, request, plan, recipe, arithmetic,
                                                       cancellation, on_stage));
  QG_RETURN_IF_ERROR(started.Finish());
  return std::move(started.result);
}

}  // namespace quantgate
