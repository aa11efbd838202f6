// Recipes with a format per direction, beside those that they must equal.
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/layer/layer_faults.h"
#include "kernels/layer/layer_step.h"
#include "kernels/training/session_faults.h"
#include "kernels/training/training_session.h"
#include "kernels/validate/scenarios/linear_subject.h"
#include "kernels/validate/scenarios/oracles/expected_copy.h"
#include "kernels/validate/scenarios/oracles/history_model.h"
#include "kernels/validate/scenarios/oracles/quantize_checks.h"
#include "kernels/validate/scenarios/scenario_groups.h"

namespace quantgate {
namespace {

absl::Status CheckSameFormat(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const Recipe vanilla,
                      Recipe::Parse(context.recipe().knobs().find("fprop")->second));
  QG_ASSIGN_OR_RETURN(const LinearOperands operands,
                      MakeLinearOperands(context, DType::kBF16, 64, 64, 128, 20));
  QG_ASSIGN_OR_RETURN(const LinearRun run, RunLinearOn(context, operands, context.recipe()));
  QG_ASSIGN_OR_RETURN(const NamedOutputs expected,
                      ExpectedLinear(context.reference(), operands, vanilla));
  return ExpectSameOutputs(context, "", run.outputs, expected);
}

// The recipe with its backward override must give the outputs of a hybrid recipe that states the
// same dataflow by formats.
absl::Status CheckDequantizedIsHybrid(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const Recipe hybrid,
                      Recipe::Create("hybrid", {{"fprop", context.recipe().name()},
                                                {"columnwise_source", "rowwise_dequantized"}}));
  QG_ASSIGN_OR_RETURN(const LinearOperands operands,
                      MakeLinearOperands(context, DType::kBF16, 64, 64, 128, 22));
  QG_ASSIGN_OR_RETURN(const LinearRun overridden, RunLinearOn(context, operands, context.recipe()));
  QG_ASSIGN_OR_RETURN(const LinearRun by_format, RunLinearOn(context, operands, hybrid));
  NamedOutputs expected;
  for (const auto& [name, tensor] : by_format.outputs) {
    QG_ASSIGN_OR_RETURN(expected[name], context.ToHost(tensor));
  }
  return ExpectSameOutputs(context, "", overridden.outputs, expected);
}

// Two steps quantize different tensors: the columnwise codes must follow the rowwise codes of their
// own step.
absl::Status CheckColumnwiseSource(ScenarioContext& context) {
  const Quantizer& quantizer = context.recipe().QuantizerFor(TensorRole::kWeight);
  for (int64_t step = 0; step < 2; ++step) {
    context.SetStep(step);
    QG_ASSIGN_OR_RETURN(const Tensor source, context.Generate(Distribution::kLogNormalOutliers,
                                                              70 + step, DType::kBF16, {64, 96}));
    QG_ASSIGN_OR_RETURN(const QuantizedTensor quantized,
                        QuantizeOn(context, source, quantizer, {true, true}));
    QG_ASSIGN_OR_RETURN(const QuantizedTensor on_host, CopiesOnHost(context.engine(), quantized));
    QG_ASSIGN_OR_RETURN(const Tensor values,
                        ExpectedValues(*on_host.rowwise, Usage::kRowwise, 64, 96, DType::kBF16));
    QG_ASSIGN_OR_RETURN(const QuantizedCopy from_codes,
                        ExpectedCopy(values, quantizer.columnwise, Usage::kColumnwise));
    QG_ASSIGN_OR_RETURN(const QuantizedCopy from_source,
                        ExpectedCopy(source, quantizer.columnwise, Usage::kColumnwise));
    QG_ASSIGN_OR_RETURN(const ParityReport parity, context.reference().CompareBits(
                                                       from_codes.data, from_source.data, nullptr));
    context.Expect(!parity.equal, "codes of the two sources", "equal", "different");
    QG_RETURN_IF_ERROR(
        context.ExpectSameCopy("weight columnwise", quantized.columnwise, from_codes));
  }
  return absl::OkStatus();
}

// A recipe must have one format per GEMM, and a GEMM refuses operands of two formats, such as
// rowwise codes of x and rowwise codes of grad_output.
absl::Status CheckPairs(ScenarioContext& context) {
  const std::string other = R"({"rowwise":"fp8_block","columnwise":"fp8_block"})";
  Recipe::Knobs all = context.recipe().knobs();
  for (const char* direction : {"input", "weight", "grad_output"}) {
    Recipe::Knobs one = context.recipe().knobs();
    one[direction] = all[direction] = other;
    context.ExpectCode(absl::StrCat("recipe whose ", direction, " is of another format"),
                       Recipe::Create("hybrid", one).status(), absl::StatusCode::kInvalidArgument);
  }
  // The format itself is accepted: the refusals above are because of the difference.
  context.ExpectCode("recipe of that format throughout", Recipe::Create("hybrid", all).status(),
                     absl::StatusCode::kOk);
  const Quantizer& x = context.recipe().QuantizerFor(TensorRole::kInput);
  const Quantizer& dy = context.recipe().QuantizerFor(TensorRole::kGradOutput);
  QG_ASSIGN_OR_RETURN(const Tensor source,
                      context.Generate(Distribution::kNormal, 23, DType::kBF16, {64, 64}));
  QG_ASSIGN_OR_RETURN(const QuantizedTensor of_x, QuantizeOn(context, source, x, {true, true}));
  QG_ASSIGN_OR_RETURN(const QuantizedTensor of_dy, QuantizeOn(context, source, dy, {true, true}));
  GemmDesc desc;
  desc.a = OperandOf(*of_dy.rowwise);
  desc.b = OperandOf(*of_x.rowwise);
  context.ExpectCode("GEMM of x rowwise and grad_output rowwise",
                     context.engine().Gemm(desc, context.cancellation()).status(),
                     absl::StatusCode::kInvalidArgument);
  desc.layout = GemmLayout::kNT;  // mxfp8 stores columnwise codes in the order of the source.
  desc.a = OperandOf(*of_dy.columnwise);
  desc.b = OperandOf(*of_x.columnwise);
  context.ExpectCode("GEMM of x columnwise and grad_output columnwise",
                     context.engine().Gemm(desc, context.cancellation()).status(),
                     absl::StatusCode::kOk);
  return absl::OkStatus();
}

// y and dx of the step by hand, each quantized by its own rule.
absl::Status CheckResults(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const LinearOperands operands,
                      MakeLinearOperands(context, DType::kBF16, 64, 64, 128, 24));
  QG_ASSIGN_OR_RETURN(const LinearRun run, RunLinearOn(context, operands, context.recipe()));
  QG_ASSIGN_OR_RETURN(NamedOutputs expected,
                      ExpectedLinear(context.reference(), operands, context.recipe()));
  const std::pair<const char*, TensorRole> results[] = {{"y", TensorRole::kOutput},
                                                        {"dx", TensorRole::kGradInput}};
  for (const auto& [name, role] : results) {
    Tensor& result = expected.at(name);
    QG_ASSIGN_OR_RETURN(
        const QuantizedCopy codes,
        ExpectedCopy(result, context.recipe().QuantizerFor(role).rowwise, Usage::kRowwise));
    QG_ASSIGN_OR_RETURN(result, ExpectedValues(codes, Usage::kRowwise, result.rows(),
                                               result.columns(), result.dtype()));
  }
  return ExpectSameOutputs(context, "", run.outputs, expected);
}

/// A fresh history into which this amax was noted, after the update that follows.
HistoryModel UpdatedHistory(const Recipe& recipe, float amax, DType element) {
  HistoryModel model(recipe.delayed_scaling(), element == DType::kF8E4M3 ? 448.0f : 57344.0f);
  model.NoteCast(amax);
  model.Update();
  return model;
}

// One step, whose amaxes are those of the tensors that each direction was cast from.
absl::Status CheckDirectionsHistories(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const LinearOperands operands,
                      MakeLinearOperands(context, DType::kBF16, 64, 64, 128, 25));
  StepRecorder recorder(context.engine(), Arithmetic(), context.cancellation());
  recorder.SeedFaults(context.faults());
  const LayerSpec linear;
  LayerState state;
  QG_ASSIGN_OR_RETURN(state.parameters["weight"].value, context.ToEngine(operands.weight));
  QG_ASSIGN_OR_RETURN(const Tensor x, context.ToEngine(operands.x));
  QG_ASSIGN_OR_RETURN(const Tensor grad_output, context.ToEngine(operands.grad_output));
  const StepOptions options{.recipe = context.recipe(), .grad_enabled = true};
  QG_ASSIGN_OR_RETURN(ForwardResult forward, ForwardLayer(recorder, linear, state, x, options));
  QG_RETURN_IF_ERROR(
      UpdateScales(recorder, linear, state, context.recipe(), UpdatePoint::kForward));
  QG_RETURN_IF_ERROR(
      BackwardLayer(recorder, linear, state, std::move(forward.saved), grad_output).status());
  QG_RETURN_IF_ERROR(
      UpdateScales(recorder, linear, state, context.recipe(), UpdatePoint::kBackward));
  const std::tuple<const char*, TensorRole, const Tensor*> roles[] = {
      {"input", TensorRole::kInput, &operands.x},
      {"weight", TensorRole::kWeight, &operands.weight},
      {"grad_output", TensorRole::kGradOutput, &operands.grad_output}};
  size_t count = 0;
  for (const auto& [role_name, role, tensor] : roles) {
    const Quantizer& quantizer = context.recipe().QuantizerFor(role);
    for (const Usage usage : quantizer.delayed_directions()) {
      const std::string name =
          absl::StrCat(role_name, usage == Usage::kColumnwise ? "_columnwise" : "");
      const auto found = state.delayed.find(name);
      context.Expect(found != state.delayed.end(), name, "absent", "a state");
      if (found == state.delayed.end()) continue;
      ++count;
      const HistoryModel model =
          UpdatedHistory(context.recipe(), ExpectedAmax(*tensor), quantizer.spec(usage).element);
      QG_ASSIGN_OR_RETURN(const Tensor scale, context.ToHost(found->second.scale));
      context.ExpectSameFloat(name + " scale", *scale.as<float>(), model.scale());
      QG_ASSIGN_OR_RETURN(
          const Tensor expected,
          Tensor::FromBytes(DType::kF32, {static_cast<int64_t>(model.history().size())},
                            std::as_bytes(std::span(model.history()))));
      QG_RETURN_IF_ERROR(
          context.ExpectSameBits(name + " amax_history", found->second.amax_history, expected));
    }
  }
  context.ExpectEqual("states", static_cast<int64_t>(state.delayed.size()),
                      static_cast<int64_t>(count));
  return absl::OkStatus();
}

// Two layers in a session, each the linear of the quantizer that its rule names.
absl::Status CheckLayersRules(ScenarioContext& context) {
  SessionSpec spec{.layers = {{"first", {}}, {"second", {}}}, .recipe = context.recipe()};
  std::map<std::string, Tensor> parameters;
  std::vector<LinearOperands> layers;
  for (const uint64_t seed : {26, 27}) {
    QG_ASSIGN_OR_RETURN(layers.emplace_back(),
                        MakeLinearOperands(context, DType::kBF16, 64, 128, 128, seed));
    const std::string& name = spec.layers[layers.size() - 1].name;
    QG_ASSIGN_OR_RETURN(parameters[name + ".weight"], context.ToEngine(layers.back().weight));
    QG_ASSIGN_OR_RETURN(parameters[name + ".bias"], context.ToEngine(layers.back().bias));
  }
  QG_ASSIGN_OR_RETURN(const auto session,
                      OneRankSession::Open(context.engine(), spec, parameters,
                                           context.cancellation(), context.faults()));
  ForwardStep step;
  QG_ASSIGN_OR_RETURN(step.x, context.ToEngine(layers[0].x));
  QG_ASSIGN_OR_RETURN(const SessionStepResult forward,
                      session->Forward(step, context.cancellation()));
  QG_ASSIGN_OR_RETURN(const Tensor grad_output, context.ToEngine(layers[1].grad_output));
  QG_ASSIGN_OR_RETURN(const SessionStepResult backward,
                      session->Backward({step.microbatch, grad_output}, context.cancellation()));
  // The rules name them: mxfp8 first, fp8_block second.
  QG_ASSIGN_OR_RETURN(const Recipe mxfp8, Recipe::Parse("mxfp8"));
  QG_ASSIGN_OR_RETURN(const Recipe block, Recipe::Parse("fp8_block"));
  QG_ASSIGN_OR_RETURN(NamedOutputs of_first, ExpectedLinear(context.reference(), layers[0], mxfp8));
  layers[1].x = of_first.at("y");
  QG_ASSIGN_OR_RETURN(const NamedOutputs of_second,
                      ExpectedLinear(context.reference(), layers[1], block));
  layers[0].grad_output = of_second.at("dx");
  QG_ASSIGN_OR_RETURN(of_first, ExpectedLinear(context.reference(), layers[0], mxfp8));
  NamedOutputs expected = {{"y", of_second.at("y")}, {"dx", of_first.at("dx")}};
  for (const char* gradient : {"dw", "db"}) {
    expected[absl::StrCat("first.", gradient)] = of_first.at(gradient);
    expected[absl::StrCat("second.", gradient)] = of_second.at(gradient);
  }
  NamedOutputs subject;
  for (const SessionStepResult* result : {&forward, &backward}) {
    for (const NamedTensor& output : result->outputs) subject[output.name] = output.tensor;
  }
  return ExpectSameOutputs(context, "", subject, expected);
}

EngineAlterations ColumnwiseByRowwiseRule() {
  return {.quantize = [](Engine& engine, QuantizeCall call) {
    call.quantizer.columnwise = call.quantizer.rowwise;
    return call.On(engine);
  }};
}

/// Keeps the source of all rowwise codes, and gives the source where the codes are dequantized.
EngineAlterations DequantizeGivesSource() {
  auto sources = std::make_shared<std::vector<std::pair<Tensor, Tensor>>>();
  return {
      .quantize = [sources](Engine& engine, QuantizeCall call) -> absl::StatusOr<QuantizedTensor> {
        QG_ASSIGN_OR_RETURN(QuantizedTensor quantized, call.On(engine));
        if (quantized.rowwise.has_value()) {
          sources->push_back({quantized.rowwise->data, call.source});
        }
        return quantized;
      },
      .dequantize = [sources](Engine& engine, DequantizeCall call) -> absl::StatusOr<Tensor> {
        for (const auto& [codes, source] : *sources) {
          if (call.quantized.rowwise.has_value() &&
              codes.data() == call.quantized.rowwise->data.data()) {
            return engine.Cast(source, call.out, call.cancellation);
          }
        }
        return call.On(engine);
      }};
}

EngineAlterations ColumnwiseFromSource() {
  return {.quantize = [](Engine& engine, QuantizeCall call) {
    call.quantizer.columnwise_source = ColumnwiseSource::kOriginal;
    return call.On(engine);
  }};
}

/// Where the operands' scalings differ, multiplies b by itself in place of refusing the GEMM.
EngineAlterations MultipliesMismatched() {
  return {.gemm = [](Engine& engine, GemmDesc desc,
                     const Cancellation* cancellation) -> absl::StatusOr<GemmResult> {
    if (desc.a.scaling != desc.b.scaling) desc.a = desc.b;
    return engine.Gemm(desc, cancellation);
  }};
}

}  // namespace

ScenarioGroup HybridScenarios() {
  ScenarioGroup group;
  group.scenarios.push_back(
      {.name = "same-format-hybrid-equals-vanilla",
       .invariant = "A hybrid recipe with one format for all GEMMs is that format's recipe.",
       .criterion = "y, dx, dw and db bit-equal to a step by hand under the plain recipe.",
       .bug_classes = {35},
       .faults = {"hybrid-columnwise-by-rowwise-rule"},
       .recipes = {"hybrid:fprop=fp8_current,dgrad=fp8_current,wgrad=fp8_current",
                   "hybrid:fprop=fp8_block,dgrad=fp8_block,wgrad=fp8_block",
                   "hybrid:fprop=mxfp8,dgrad=mxfp8,wgrad=mxfp8",
                   "hybrid:fprop=nvfp4,dgrad=nvfp4,wgrad=nvfp4"},
       .run = &CheckSameFormat});
  group.scenarios.push_back(
      {.name = "dequantized-equals-high-precision-backward",
       .invariant = "The override dequantized is the hybrid recipe with this format forward and "
                    "high precision, made from its codes, backward.",
       .criterion = "y, dx, dw and db bit-equal.",
       .bug_classes = {59},
       .faults = {"dequantized-reads-original"},
       .recipes = {"mxfp8:backward_override=dequantized", "fp8_block:backward_override=dequantized",
                   "fp8_current:backward_override=dequantized",
                   "nvfp4:backward_override=dequantized"},
       .run = &CheckDequantizedIsHybrid});
  group.scenarios.push_back(
      {.name = "columnwise-made-from-rowwise-codes",
       .invariant = "Under columnwise_source=rowwise_dequantized columnwise codes follow the "
                    "rowwise ones, after an update too.",
       .criterion = "Bit-equal to a quantization of the rowwise codes' values, which differs from "
                    "one of the source.",
       .bug_classes = {36},
       .faults = {"columnwise-source-ignored"},
       .recipes = {"hybrid:fprop=mxfp8,dgrad=nvfp4,wgrad=mxfp8,"
                   "columnwise_source=rowwise_dequantized",
                   "hybrid:fprop=nvfp4,dgrad=mxfp8,wgrad=mxfp8,"
                   "columnwise_source=rowwise_dequantized"},
       .run = &CheckColumnwiseSource});
  group.scenarios.push_back(
      {.name = "hybrid-directions-go-together",
       .invariant = "Operands of different formats are refused, by the recipe and by the GEMM.",
       .criterion = "INVALID_ARGUMENT from both; OK for one format throughout.",
       .bug_classes = {35},
       .faults = {"mismatched-operands-multiplied"},
       .recipes = {"hybrid:fprop=mxfp8,dgrad=nvfp4,wgrad=mxfp8"},
       .run = &CheckPairs});
  group.scenarios.push_back(
      {.name = "results-have-the-values-of-their-codes",
       .invariant = "Rules of a custom recipe for output and grad_input quantize y and dx, each by "
                    "its own, and nothing else.",
       .criterion = "y and dx bit-equal to those of a step by hand, quantized and dequantized "
                    "element by element; dw and db to the step's.",
       .faults = {kFaultResultLeft, kFaultResultRulesSwapped},
       .recipes = {R"(custom:rules=[{"tensor_type":"output","quantizer":"mxfp8"},)"
                   R"({"tensor_type":"grad_input","quantizer":"fp8_current"},)"
                   R"({"quantizer":"fp8_current"}])",
                   R"(custom:rules=[{"tensor_type":"output","quantizer":"fp8_block"},)"
                   R"({"tensor_type":"grad_input","quantizer":{"format":"nvfp4"}},)"
                   R"({"quantizer":"mxfp8"}])"},
       .run = &CheckResults});
  group.scenarios.push_back(
      {.name = "directions-note-their-own-amaxes",
       .invariant = "Delayed scaling within hybrid has a history for each direction that has it, "
                    "with the amaxes of that direction's casts.",
       .criterion =
           "Scales and histories after a step bit-equal to a model of each, and no others.",
       .faults = {kFaultAmaxOfOtherDirection},
       .recipes = {"hybrid:fprop=fp8_current,wgrad=fp8_current,"
                   R"(dgrad={"name":"fp8_delayed","knobs":{"amax_history_len":3}})",
                   "hybrid:dgrad=mxfp8,wgrad=mxfp8,"
                   R"(fprop={"name":"fp8_delayed","knobs":{"amax_history_len":3}})"},
       .run = &CheckDirectionsHistories});
  group.scenarios.push_back(
      {.name = "rules-follow-their-layer",
       .invariant = "Each layer of a session follows the rules that a custom recipe has for it.",
       .criterion = "y, dx, dw and db of two layers bit-equal to linear steps by hand, one under "
                    "each rule's recipe.",
       .faults = {kFaultRulesOfFirstLayer},
       .recipes = {R"(custom:rules=[{"layer_name":"first","quantizer":"mxfp8"},)"
                   R"({"quantizer":"fp8_block"}])",
                   R"(custom:rules=[{"module_path":"second","quantizer":"fp8_block"},)"
                   R"({"layer_name":"*","quantizer":"mxfp8"}])"},
       .run = &CheckLayersRules});
  group.faults = {
      {kFaultResultLeft, "y and dx are handed on as the GEMM gave them, whatever the rules say.",
       0},
      {kFaultResultRulesSwapped, "Quantizes y by the rule for dx, and dx by the rule for y.", 0},
      {kFaultAmaxOfOtherDirection,
       "Notes an amax in the history of the tensor's other direction, if that has one.", 0},
      {kFaultRulesOfFirstLayer, "Every layer follows the rules for the first.", 0},
      {"hybrid-columnwise-by-rowwise-rule",
       "Quantizes the columnwise direction by the rowwise direction's rule.", 35,
       &ColumnwiseByRowwiseRule},
      {"dequantized-reads-original", "Gives the source in place of the codes' values.", 59,
       &DequantizeGivesSource},
      {"columnwise-source-ignored", "Makes columnwise codes from the source always.", 36,
       &ColumnwiseFromSource},
      {"mismatched-operands-multiplied", "Multiplies operands of different formats.", 35,
       &MultipliesMismatched},
  };
  return group;
}

}  // namespace quantgate
