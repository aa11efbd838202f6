// A linear layer as one request: one unit, with nothing kept afterwards.
#include "kernels/layer/linear.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/layer/linear_check.h"

namespace quantgate {
namespace {

absl::Status Invalid(const char* field, const std::string& value, const std::string& rule) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", value, "; ", rule));
}

absl::Status CheckDType(const char* field, const Tensor& tensor) {
  if (IsHighPrecision(tensor.dtype())) return absl::OkStatus();
  return Invalid(field, TensorText(tensor), "its dtype must be f32, bf16 or f16");
}

absl::Status CheckShape(const char* field, const Tensor& tensor, const Shape& expected,
                        const char* reason) {
  if (tensor.shape() == expected) return absl::OkStatus();
  return Invalid(field, TensorText(tensor),
                 absl::StrCat("its shape must be ", ShapeText(expected), ", ", reason));
}

absl::Status CheckOperands(const LinearRequest& request) {
  if (!request.x.has_value()) return Invalid("x", "absent", "a linear layer needs it");
  if (!request.weight.has_value()) return Invalid("weight", "absent", "a linear layer needs it");
  QG_RETURN_IF_ERROR(CheckDType("x", request.x));
  QG_RETURN_IF_ERROR(CheckDType("weight", request.weight));
  if (request.x.rank() < 1) {
    return Invalid("x", TensorText(request.x), "its rank must be at least 1, [..., K]");
  }
  if (request.weight.rank() != 2) {
    return Invalid("weight", TensorText(request.weight), "its rank must be 2, [N][K]");
  }
  if (request.weight.shape()[0] < 1) {
    return Invalid("weight", TensorText(request.weight), "N, its first dim, must be at least 1");
  }
  if (request.weight.shape()[1] < 1) {
    return Invalid("weight", TensorText(request.weight), "K, its last dim, must be at least 1");
  }
  if (request.x.columns() != request.weight.columns()) {
    return Invalid("x", TensorText(request.x),
                   absl::StrCat("its last dim must be K = ", request.weight.columns(),
                                " of weight ", TensorText(request.weight)));
  }
  return absl::OkStatus();
}

Shape OutputShape(const LinearRequest& request) {
  Shape shape = request.x.shape();
  shape.back() = request.weight.shape()[0];
  return shape;
}

absl::Status CheckMainGrad(const LinearRequest& request) {
  if (!request.grad_output.has_value()) {
    return Invalid("main_grad", TensorText(request.main_grad),
                   "nothing accumulates into it without grad_output");
  }
  if (!request.requires_grad.weight) {
    return Invalid("main_grad", TensorText(request.main_grad),
                   "nothing accumulates into it where weight requires no gradient");
  }
  if (request.main_grad.dtype() != DType::kF32) {
    return Invalid("main_grad", TensorText(request.main_grad), "its dtype must be f32");
  }
  return CheckShape("main_grad", request.main_grad, request.weight.shape(), "as weight's");
}

absl::Status CheckDelayed(const LinearRequest& request, const Recipe& recipe) {
  if (!recipe.is_delayed()) return absl::OkStatus();
  if (recipe.backward_override() != BackwardOverride::kNone) {
    return Invalid("backward_override",
                   std::string(BackwardOverrideName(recipe.backward_override())),
                   "delayed scaling has no backward override");
  }
  for (const auto& [role, state] : request.delayed) {
    QG_RETURN_IF_ERROR(CheckDelayedScaling(
        state, absl::StrCat("delayed_state[", std::string(TensorRoleName(role)), "]")));
  }
  return absl::OkStatus();
}

LinearUnit UnitOf(const LinearRequest& request, const Recipe& recipe) {
  LinearUnit unit;
  unit.m = request.x.rows();
  unit.n = request.weight.shape()[0];
  unit.k = request.weight.shape()[1];
  LinearFacts& facts = unit.facts;
  facts.x_dtype = request.x.dtype();
  facts.weight_dtype = request.weight.dtype();
  facts.activation_dtype = recipe.activation_dtype().value_or(request.x.dtype());
  facts.has_bias = request.bias.has_value();
  facts.has_main_grad = request.main_grad.has_value();
  if (request.grad_output.has_value()) {
    facts.needs_dx = request.requires_grad.x;
    facts.needs_dw = request.requires_grad.weight;
    facts.needs_db = request.requires_grad.bias;
  }
  facts.is_empty = unit.m == 0;
  facts.calibrate = request.calibrate;
  unit.flow = DataflowOf(facts, recipe);
  return unit;
}

LayerState StateOf(const LinearRequest& request) {
  LayerState state;
  state.parameters["weight"].value = request.weight;
  if (request.main_grad.has_value()) state.main_grads["weight"] = request.main_grad;
  for (const auto& [role, delayed] : request.delayed) {
    state.delayed[std::string(TensorRoleName(role))] = delayed;
  }
  return state;
}

absl::Status UpdateScales(StepRecorder& recorder, const char* stage,
                          const std::vector<TensorRole>& roles, const Recipe& recipe,
                          LayerState& state) {
  return recorder.Timed(stage, [&]() -> absl::Status {
    for (const TensorRole role : roles) {
      QG_RETURN_IF_ERROR(UpdateDelayedState(recorder, recipe.delayed_scaling(),
                                            recipe.QuantizerFor(role).rowwise.element,
                                            state.delayed[std::string(TensorRoleName(role))]));
    }
    return absl::OkStatus();
  });
}

void AddNotes(StepRecorder& recorder, const LinearDataflow& flow, const Recipe& recipe) {
  if (!recipe.is_quantized() && recipe.backward_override() != BackwardOverride::kNone) {
    recorder.AddNote(absl::StrCat(
        "backward_override=", std::string(BackwardOverrideName(recipe.backward_override())),
        " has no effect without a quantized recipe"));
  }
  if (flow.is_calibration) {
    recorder.AddNote("calibration: computed in high precision, only the amaxes are noted");
  } else if (recipe.is_delayed() && !flow.has_backward()) {
    recorder.AddNote("forward only: scales are not updated, row 0 of each history has the amax");
  }
}

/// What backward gives, named, in the order of LinearOutputs.
absl::Status AddGradients(StepRecorder& recorder, LinearSaved& saved, LayerState& state,
                          const Tensor& grad_output, std::vector<NamedTensor>& outputs) {
  LinearGradient gradient;
  gradient.value = grad_output;
  QG_ASSIGN_OR_RETURN(LinearBackward backward, BackwardLinear(recorder, saved, state, gradient));
  if (backward.dx.has_value()) outputs.push_back({"dx", std::move(backward.dx)});
  if (backward.dw.has_value()) outputs.push_back({"dw", std::move(backward.dw)});
  if (saved.unit.flow.needs_dw && saved.unit.facts.has_main_grad) {
    outputs.push_back({"main_grad", state.main_grads.at("weight")});
  }
  if (backward.db.has_value()) outputs.push_back({"db", std::move(backward.db)});
  return absl::OkStatus();
}

void AddState(const LayerState& state, std::vector<NamedTensor>& out) {
  for (const TensorRole role : {TensorRole::kInput, TensorRole::kWeight, TensorRole::kGradOutput}) {
    const std::string name(TensorRoleName(role));
    const DelayedScalingState& delayed = state.delayed.at(name);
    out.push_back({absl::StrCat(name, ".scale"), delayed.scale});
    out.push_back({absl::StrCat(name, ".amax_history"), delayed.amax_history});
  }
}

}  // namespace

absl::Status CheckLinearTensors(const LinearRequest& request) {
  QG_RETURN_IF_ERROR(CheckOperands(request));
  const Shape y_shape = OutputShape(request);
  // The largest output type; a shape whose bytes overflow is refused here, not at allocation.
  QG_RETURN_IF_ERROR(CheckedElementCount(y_shape, DType::kF32, "y").status());
  if (request.bias.has_value()) {
    QG_RETURN_IF_ERROR(CheckDType("bias", request.bias));
    QG_RETURN_IF_ERROR(
        CheckShape("bias", request.bias, {request.weight.shape()[0]}, "N of weight"));
  }
  if (request.grad_output.has_value()) {
    QG_RETURN_IF_ERROR(CheckDType("grad_output", request.grad_output));
    QG_RETURN_IF_ERROR(CheckShape("grad_output", request.grad_output, y_shape,
                                  "x's with N of weight as its last dim"));
  }
  return request.main_grad.has_value() ? CheckMainGrad(request) : absl::OkStatus();
}

absl::Status CheckLinear(const LinearRequest& request, const Recipe& recipe) {
  QG_RETURN_IF_ERROR(CheckLinearTensors(request));
  QG_RETURN_IF_ERROR(CheckDelayed(request, recipe));
  LinearFields fields;
  fields.x = request.x;
  fields.weight = request.weight;
  return CheckLinearUnit(UnitOf(request, recipe), fields, recipe);
}

absl::Status CheckLinearGemms(const LinearRequest& request, const Recipe& recipe,
                              const Arithmetic& arithmetic) {
  return CheckLinearUnitGemms(UnitOf(request, recipe), recipe, arithmetic);
}

std::vector<std::string> LinearOutputs(const LinearRequest& request) {
  std::vector<std::string> outputs = {"y"};
  if (!request.grad_output.has_value()) return outputs;
  if (request.requires_grad.x) outputs.push_back("dx");
  if (request.requires_grad.weight) {
    outputs.push_back(request.main_grad.has_value() ? "main_grad" : "dw");
  }
  if (request.requires_grad.bias && request.bias.has_value()) outputs.push_back("db");
  return outputs;
}

std::vector<std::string> LinearStages(const LinearRequest& request, const Recipe& recipe) {
  const LinearDataflow flow = UnitOf(request, recipe).flow;
  const DType activation = flow.activation_dtype;
  std::vector<std::string> stages;
  const auto add_if = [&](bool condition, const char* name) {
    if (condition) stages.push_back(name);
  };

  add_if(request.x.dtype() != activation, "cast x");
  add_if(flow.is_calibration, "calibrate x");
  add_if(flow.is_calibration, "calibrate weight");
  add_if(flow.reads_x_codes(), "quantize x");
  add_if(flow.reads_weight_codes(), "quantize weight");
  add_if(flow.reads_weight && request.weight.dtype() != activation, "cast weight");
  add_if(flow.has_weight_copy() && request.weight.dtype() != activation, "cast dequantized weight");
  add_if(request.bias.has_value() && request.bias.dtype() != flow.bias_dtype, "cast bias");
  stages.push_back("fprop");
  if (!flow.has_backward()) return stages;

  stages.push_back("fingerprint saved operands");
  add_if(flow.is_delayed, "update scales of forward");
  add_if(request.grad_output.dtype() != activation, "cast grad_output");
  add_if(flow.needs_db, "bias gradient");
  add_if(flow.is_calibration, "calibrate grad_output");
  add_if(flow.reads_grad_output_codes(), "quantize grad_output");
  // The fingerprints at use are taken right before the operands are read, all in one stage.
  stages.push_back("check saved operands");
  if (flow.needs_dx) {
    add_if(flow.reads_dequantized(), "dequantize saved weight");
    add_if(flow.reads_originals() && request.weight.dtype() != activation, "cast saved weight");
    stages.push_back("dgrad");
  }
  if (flow.needs_dw) {
    // wgrad of an empty batch is zero without reading x.
    add_if(!flow.is_empty && flow.reads_dequantized(), "dequantize saved x");
    add_if(!flow.is_empty && flow.reads_originals() && request.x.dtype() != activation,
           "cast saved x");
    stages.push_back("wgrad");
  }
  add_if(flow.is_delayed && flow.reads_grad_output_codes(), "update scales of backward");
  return stages;
}

absl::StatusOr<LinearResult> RunLinear(Engine& engine, const LinearRequest& request,
                                       const Recipe& recipe, const Arithmetic& arithmetic,
                                       const Cancellation* cancellation, StageObserver on_stage) {
  QG_RETURN_IF_ERROR(CheckLinear(request, recipe));
  QG_RETURN_IF_ERROR(CheckLinearGemms(request, recipe, arithmetic));
  const LinearUnit unit = UnitOf(request, recipe);
  StepOptions options{.recipe = recipe,
                      .requires_grad = request.requires_grad,
                      .calibrate = request.calibrate,
                      .seed = request.seed};
  StepRecorder recorder(engine, arithmetic, cancellation, on_stage);
  AddNotes(recorder, unit.flow, recipe);
  LayerState state = StateOf(request);
  LinearInput input;
  input.x = request.x;
  input.bias = request.bias;
  LinearResult result;
  QG_ASSIGN_OR_RETURN(LinearForward forward,
                      ForwardLinear(recorder, unit, state, input,
                                    std::make_shared<const StepOptions>(std::move(options))));
  result.outputs.push_back({"y", std::move(forward.y)});
  if (unit.flow.has_backward()) {
    if (unit.flow.is_delayed) {
      QG_RETURN_IF_ERROR(UpdateScales(recorder, "update scales of forward",
                                      {TensorRole::kInput, TensorRole::kWeight}, recipe, state));
    }
    QG_RETURN_IF_ERROR(
        AddGradients(recorder, *forward.saved, state, request.grad_output, result.outputs));
    if (unit.flow.is_delayed && unit.flow.reads_grad_output_codes()) {
      QG_RETURN_IF_ERROR(UpdateScales(recorder, "update scales of backward",
                                      {TensorRole::kGradOutput}, recipe, state));
    }
  }
  QG_ASSIGN_OR_RETURN(static_cast<StepRecords&>(result), recorder.Finish());
  if (unit.flow.is_delayed || unit.flow.is_calibration) AddState(state, result.state);
  return result;
}

}  // namespace quantgate
