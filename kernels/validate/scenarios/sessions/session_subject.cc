#include "kernels/validate/scenarios/sessions/session_subject.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/validate/scenarios/linear_subject.h"

namespace quantgate {
namespace {

constexpr int64_t kRows = 32, kInputs = 32, kHidden = 64, kOutputs = 32;

SessionLayer LinearLayer(const std::string& name) {
  SessionLayer layer;
  layer.name = name;
  layer.spec.kind = LayerKind::kLinear;
  return layer;
}

SessionLayer ReluLayer(const std::string& name) {
  SessionLayer layer;
  layer.name = name;
  layer.spec.kind = LayerKind::kChain;
  OperationSpec relu;
  relu.kind = OperationKind::kActivation;
  relu.name = "relu";
  relu.activation.kind = ActivationKind::kRelu;
  layer.spec.operations.push_back(relu);
  return layer;
}

}  // namespace

SessionSpec TwoLayerSpec(const Recipe& recipe) {
  SessionSpec spec{.layers = {LinearLayer("fc1"), ReluLayer("act"), LinearLayer("fc2")},
                   .recipe = recipe};
  spec.masters = Masters::kF32;
  spec.optimizer.kind = OptimizerSpec::Kind::kSgd;
  spec.optimizer.sgd.learning_rate = 0.25f;
  spec.seed = 7;
  return spec;
}

absl::StatusOr<std::map<std::string, Tensor>> MakeParameters(ScenarioContext& context,
                                                             uint64_t seed) {
  std::map<std::string, Tensor> parameters;
  const std::pair<const char*, Shape> shapes[] = {{"fc1.weight", {kHidden, kInputs}},
                                                  {"fc1.bias", {kHidden}},
                                                  {"fc2.weight", {kOutputs, kHidden}},
                                                  {"fc2.bias", {kOutputs}}};
  for (const auto& [name, shape] : shapes) {
    QG_ASSIGN_OR_RETURN(parameters[name], context.Generate(Distribution::kNormal, seed++,
                                                           DType::kBF16, shape, 0.125f));
  }
  return parameters;
}

absl::StatusOr<std::unique_ptr<ComparedTraining>> ComparedTraining::Open(ScenarioContext& context,
                                                                         const SessionSpec& spec,
                                                                         uint64_t seed) {
  QG_ASSIGN_OR_RETURN(const auto parameters, MakeParameters(context, seed));
  std::map<std::string, Tensor> on_engine;
  for (const auto& [name, tensor] : parameters) {
    QG_ASSIGN_OR_RETURN(on_engine[name], context.ToEngine(tensor));
  }
  QG_ASSIGN_OR_RETURN(
      auto session, TrainingSession::Open(context.engine(), spec, on_engine, context.cancellation(),
                                          context.faults()));
  return std::unique_ptr<ComparedTraining>(new ComparedTraining(
      context, std::move(session), NetworkByHand(context.reference(), spec, parameters)));
}

NamedOutputs OutputsOf(const SessionStepResult& result) {
  NamedOutputs outputs;
  for (const NamedTensor& output : result.outputs) outputs[output.name] = output.tensor;
  return outputs;
}

void ExpectSavedUnchanged(ScenarioContext& context, const StepRecords& records) {
  for (const SavedOperand& saved : records.saved) {
    if (!saved.used) continue;
    context.ExpectSameText(absl::StrCat("saved ", saved.name, " at use"), saved.at_use.Hex(),
                           saved.at_save.Hex());
  }
}

absl::Status ComparedTraining::Forward(const ForwardStep& step) {
  if (has_parted()) return absl::OkStatus();
  ForwardStep on_engine = step;
  QG_ASSIGN_OR_RETURN(on_engine.x, context_.ToEngine(step.x));
  const auto result = session_->Forward(on_engine, context_.cancellation());
  context_.ExpectCode("forward", result.status(), absl::StatusCode::kOk);
  if (!result.ok()) return absl::OkStatus();
  NamedOutputs expected;
  QG_ASSIGN_OR_RETURN(expected["y"], by_hand_.Forward(step.microbatch, step.x, step.train));
  return ExpectSameOutputs(context_, "", OutputsOf(*result), expected);
}

absl::Status ComparedTraining::Backward(const std::string& microbatch, const Tensor& grad_output,
                                        Microbatch is_first) {
  if (has_parted()) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(const Tensor on_engine, context_.ToEngine(grad_output));
  const auto result = session_->Backward({microbatch, on_engine}, context_.cancellation());
  context_.ExpectCode("backward", result.status(), absl::StatusCode::kOk);
  if (!result.ok()) return absl::OkStatus();
  ExpectSavedUnchanged(context_, *result);
  QG_ASSIGN_OR_RETURN(const NamedOutputs expected,
                      by_hand_.Backward(microbatch, grad_output, is_first));
  return ExpectSameOutputs(context_, "", OutputsOf(*result), expected);
}

absl::Status ComparedTraining::Optimize() {
  if (has_parted()) return absl::OkStatus();
  QG_RETURN_IF_ERROR(session_->Optimize({}, context_.cancellation()).status());
  return by_hand_.Optimize();
}

absl::Status ComparedTraining::ChangeRecipe(const Recipe& recipe) {
  if (has_parted()) return absl::OkStatus();
  by_hand_.ChangeRecipe(recipe);
  return session_->ChangeRecipe(recipe, context_.cancellation());
}

absl::StatusOr<Tensor> ComparedTraining::MakeX(uint64_t seed, float scale) {
  return context_.Generate(Distribution::kNormal, 1000 + seed, DType::kBF16, {kRows, kInputs},
                           scale);
}

absl::StatusOr<Tensor> ComparedTraining::MakeGradOutput(uint64_t seed, float scale) {
  return context_.Generate(Distribution::kNormal, 2000 + seed, DType::kBF16, {kRows, kOutputs},
                           scale * 0x1p-6f);
}

absl::Status ComparedTraining::TrainStep(uint64_t seed, float scale) {
  ForwardStep step;
  QG_ASSIGN_OR_RETURN(step.x, MakeX(seed, scale));
  QG_RETURN_IF_ERROR(Forward(step));
  QG_ASSIGN_OR_RETURN(const Tensor grad_output, MakeGradOutput(seed, scale));
  return Backward(step.microbatch, grad_output);
}

absl::Status ComparedTraining::Evaluate(uint64_t seed, float scale) {
  ForwardStep step;
  step.train = false;
  QG_ASSIGN_OR_RETURN(step.x, MakeX(seed, scale));
  return Forward(step);
}

}  // namespace quantgate
