// Weights that sessions hold quantized, cached weights, and main gradients.
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/layer/layer_faults.h"
#include "kernels/layer/layer_step.h"
#include "kernels/training/session_faults.h"
#include "kernels/validate/scenarios/linear_subject.h"
#include "kernels/validate/scenarios/oracles/expected_copy.h"
#include "kernels/validate/scenarios/oracles/quantize_checks.h"
#include "kernels/validate/scenarios/scenario_groups.h"
#include "kernels/validate/scenarios/sessions/session_subject.h"

namespace quantgate {
namespace {

using Training = std::unique_ptr<ComparedTraining>;

SessionSpec QuantizedWeights(const Recipe& recipe) {
  SessionSpec spec = TwoLayerSpec(recipe);
  spec.weights = WeightStorage::kQuantized;
  return spec;
}

// An evaluation comes between a step and its update. The next dgrad reads the columnwise codes of
// the weight, which must be those of the updated weight.
absl::Status CheckFreshColumnwise(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const Training training,
                      ComparedTraining::Open(context, QuantizedWeights(context.recipe()), 60));
  for (int64_t step = 0; step < 3; ++step) {
    context.SetStep(step);
    QG_RETURN_IF_ERROR(training->TrainStep(step));
    QG_RETURN_IF_ERROR(training->Evaluate(100 + step));
    QG_RETURN_IF_ERROR(training->Optimize());
  }
  return absl::OkStatus();
}

absl::Status CheckRequantization(ScenarioContext& context) {
  for (const Requantization requantization :
       {Requantization::kFromF32, Requantization::kThroughBf16}) {
    SessionSpec spec = QuantizedWeights(context.recipe());
    spec.requantization = requantization;
    QG_ASSIGN_OR_RETURN(const Training training, ComparedTraining::Open(context, spec, 62));
    for (int64_t step = 0; step < 3; ++step) {
      context.SetStep(step);
      QG_RETURN_IF_ERROR(training->TrainStep(step));
      QG_RETURN_IF_ERROR(training->Optimize());
    }
  }
  return absl::OkStatus();
}

/// A session that trained two steps of quantized weights with this requantization, and the bf16
/// weights that it exports.
struct Trained {
  std::unique_ptr<OneRankSession> session;
  std::map<std::string, Tensor> exported = {};
};
absl::StatusOr<Trained> TrainTwoSteps(ScenarioContext& context, Requantization requantization) {
  SessionSpec spec = QuantizedWeights(context.recipe());
  spec.requantization = requantization;
  QG_ASSIGN_OR_RETURN(const auto parameters, MakeParameters(context, 68));
  std::map<std::string, Tensor> on_engine;
  for (const auto& [name, tensor] : parameters) {
    QG_ASSIGN_OR_RETURN(on_engine[name], context.ToEngine(tensor));
  }
  Trained trained;
  QG_ASSIGN_OR_RETURN(trained.session,
                      OneRankSession::Open(context.engine(), spec, on_engine,
                                           context.cancellation(), context.faults()));
  for (uint64_t step = 0; step < 2; ++step) {
    ForwardStep forward;
    QG_ASSIGN_OR_RETURN(const Tensor x, context.Generate(Distribution::kNormal, 330 + step,
                                                         DType::kBF16, {32, 32}));
    QG_ASSIGN_OR_RETURN(const Tensor dy, context.Generate(Distribution::kNormal, 340 + step,
                                                          DType::kBF16, {32, 32}, 0x1p-6f));
    QG_ASSIGN_OR_RETURN(forward.x, context.ToEngine(x));
    QG_ASSIGN_OR_RETURN(const Tensor dy_on_engine, context.ToEngine(dy));
    QG_RETURN_IF_ERROR(trained.session->Forward(forward, context.cancellation()).status());
    QG_RETURN_IF_ERROR(
        trained.session->Backward({"0", dy_on_engine}, context.cancellation()).status());
    QG_RETURN_IF_ERROR(trained.session->Optimize({}, context.cancellation()).status());
  }
  for (const auto& [name, tensor] : parameters) {
    QG_ASSIGN_OR_RETURN(const Tensor found,
                        trained.session->Find(name + ".master", context.cancellation()));
    QG_ASSIGN_OR_RETURN(const Tensor master, context.ToHost(found));
    QG_ASSIGN_OR_RETURN(trained.exported[name], ExpectedCast(master, DType::kBF16));
  }
  return trained;
}

// The rollout has the bf16 export and quantizes it itself. It gives the trainer's y only if the
// trainer quantizes what it exports.
absl::Status CheckRollout(ScenarioContext& context) {
  for (const bool through_bf16 : {true, false}) {
    QG_ASSIGN_OR_RETURN(const Trained trained,
                        TrainTwoSteps(context, through_bf16 ? Requantization::kThroughBf16
                                                            : Requantization::kFromF32));
    ForwardStep step;
    step.train = false;
    QG_ASSIGN_OR_RETURN(const Tensor x,
                        context.Generate(Distribution::kNormal, 350, DType::kBF16, {32, 32}));
    QG_ASSIGN_OR_RETURN(step.x, context.ToEngine(x));
    QG_ASSIGN_OR_RETURN(const SessionStepResult evaluated,
                        trained.session->Forward(step, context.cancellation()));
    QG_ASSIGN_OR_RETURN(const Tensor y, context.ToHost(OutputsOf(evaluated).at("y")));
    NetworkByHand rollout(context.reference(), TwoLayerSpec(context.recipe()), trained.exported);
    QG_ASSIGN_OR_RETURN(const Tensor expected, rollout.Forward("0", x, /*train=*/false));
    if (through_bf16) {
      QG_RETURN_IF_ERROR(context.ExpectSameBits("y of trainer and rollout", y, expected));
      continue;
    }
    QG_ASSIGN_OR_RETURN(const ParityReport parity,
                        context.reference().CompareBits(y, expected, context.cancellation()));
    context.Expect(!parity.equal, "y of a trainer that quantizes fp32, and of its rollout", "equal",
                   "different");
  }
  return absl::OkStatus();
}

// Held weights move to another recipe after an update, and their codes to the new recipe's rule.
absl::Status CheckHeldAcrossRecipes(ScenarioContext& context) {
  const bool is_current = context.recipe().name() == "fp8_current";
  QG_ASSIGN_OR_RETURN(const Recipe next, Recipe::Parse(is_current ? "mxfp8" : "fp8_current"));
  QG_ASSIGN_OR_RETURN(const Training training,
                      ComparedTraining::Open(context, QuantizedWeights(context.recipe()), 66));
  for (int64_t step = 0; step < 4; ++step) {
    context.SetStep(step);
    if (step == 2) QG_RETURN_IF_ERROR(training->ChangeRecipe(next));
    QG_RETURN_IF_ERROR(training->TrainStep(step));
    QG_RETURN_IF_ERROR(training->Optimize());
  }
  return absl::OkStatus();
}

// An evaluation, which needs no columnwise copy, makes the cache, and training uses it. After an
// update it holds codes of the old weights and must not be read.
absl::Status CheckCache(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const Training training,
                      ComparedTraining::Open(context, TwoLayerSpec(context.recipe()), 64));
  for (int64_t round = 0; round < 2; ++round) {
    context.SetStep(round);
    ForwardStep step;
    step.train = false;
    step.is_first = round == 0 ? Microbatch::kFirst : Microbatch::kLater;
    QG_ASSIGN_OR_RETURN(step.x, training->MakeX(70 + round));
    QG_RETURN_IF_ERROR(training->Forward(step));
    step.train = true;
    step.is_first = Microbatch::kLater;
    QG_RETURN_IF_ERROR(training->Forward(step));
    QG_ASSIGN_OR_RETURN(const Tensor grad_output, training->MakeGradOutput(70 + round));
    QG_RETURN_IF_ERROR(training->Backward(step.microbatch, grad_output));
    QG_RETURN_IF_ERROR(training->Optimize());
  }
  return absl::OkStatus();
}

/// One step of a linear layer, whose state goes on from step to step.
absl::StatusOr<NamedOutputs> StepOnState(ScenarioContext& context, const LinearOperands& operands,
                                         Microbatch microbatch, LayerState& state) {
  const LayerSpec linear;
  StepRecorder recorder(context.engine(), Arithmetic(), context.cancellation());
  recorder.SeedFaults(context.faults());
  QG_ASSIGN_OR_RETURN(const Tensor x, context.ToEngine(operands.x));
  QG_ASSIGN_OR_RETURN(const Tensor grad_output, context.ToEngine(operands.grad_output));
  const StepOptions options{
      .recipe = context.recipe(), .microbatch = microbatch, .seed = operands.seed};
  QG_ASSIGN_OR_RETURN(ForwardResult forward, ForwardLayer(recorder, linear, state, x, options));
  QG_ASSIGN_OR_RETURN(
      const BackwardResult backward,
      BackwardLayer(recorder, linear, state, std::move(forward.saved), grad_output));
  NamedOutputs outputs = {{"y", forward.y}, {"dx", backward.dx}};
  for (const NamedTensor& gradient : backward.gradients) outputs[gradient.name] = gradient.tensor;
  return outputs;
}

// Between two microbatches the parameter changes, as before a captured graph is played again with
// its flag set: the cast of the weight is skipped, and the step reads the codes of the first one.
absl::Status CheckSkippedCast(ScenarioContext& context) {
  const Quantizer& quantizer = context.recipe().QuantizerFor(TensorRole::kWeight);
  LayerState state;
  Tensor cast;  // What the cached codes were made from.
  int64_t step = 0;
  for (const Microbatch microbatch : {Microbatch::kFirst, Microbatch::kLater, Microbatch::kLater,
                                      Microbatch::kFirst, Microbatch::kLater}) {
    context.SetStep(step);
    QG_ASSIGN_OR_RETURN(LinearOperands operands,
                        MakeLinearOperands(context, DType::kBF16, 32, 64, 64, 360 + step));
    // Every weight is larger than the one before, so that its scales and amaxes differ.
    QG_ASSIGN_OR_RETURN(operands.weight,
                        context.Generate(Distribution::kNormal, 370 + step, DType::kBF16, {64, 64},
                                         static_cast<float>(1 << 2 * step)));
    QG_ASSIGN_OR_RETURN(state.parameters["weight"].value, context.ToEngine(operands.weight));
    QG_ASSIGN_OR_RETURN(state.parameters["bias"].value, context.ToEngine(operands.bias));
    if (microbatch == Microbatch::kFirst) cast = operands.weight;
    operands.weight = cast;
    QG_ASSIGN_OR_RETURN(const NamedOutputs outputs,
                        StepOnState(context, operands, microbatch, state));
    QG_ASSIGN_OR_RETURN(const NamedOutputs expected,
                        ExpectedLinear(context.reference(), operands, context.recipe()));
    QG_RETURN_IF_ERROR(ExpectSameOutputs(context, "", outputs, expected));
    QuantizeArguments arguments;
    if (context.recipe().is_delayed()) {
      QG_ASSIGN_OR_RETURN(arguments.scale, Tensor::FromScalar(1.0f));
    }
    QG_ASSIGN_OR_RETURN(const QuantizedTensor codes,
                        ExpectedQuantization(cast, quantizer, {true, true}, arguments));
    QG_RETURN_IF_ERROR(ExpectSameQuantization(context, "cached weight",
                                              state.workspaces.at("weight").quantized, codes));
    if (context.recipe().is_delayed()) {
      // No scale is updated here, so that row 0 has the largest amax of all casts.
      QG_ASSIGN_OR_RETURN(const Tensor history,
                          context.ToHost(state.delayed.at("weight").amax_history));
      context.ExpectSameFloat("amax of the weight", *history.as<float>(), ExpectedAmax(cast));
    }
    ++step;
  }
  return absl::OkStatus();
}

// ---- Main gradients

/// A tensor of small integers: sums of a few dozen products are exact in every arithmetic.
absl::StatusOr<Tensor> SmallIntegers(ScenarioContext& context, uint64_t seed, Shape shape) {
  QG_ASSIGN_OR_RETURN(const Tensor uniform,
                      context.Generate(Distribution::kUniform, seed, DType::kF32, shape));
  QG_ASSIGN_OR_RETURN(Tensor integers, Tensor::Allocate(DType::kBF16, std::move(shape)));
  for (int64_t i = 0; i < integers.element_count(); ++i) {
    SetValue(integers, i, static_cast<float>(static_cast<int>(ValueAt(uniform, i) * 4.0f)));
  }
  return integers;
}

/// main_grad += dy^T x in double, which is exact here.
void AddProduct(const Tensor& dy, const Tensor& x, std::vector<double>& main_grad) {
  const int64_t columns = x.columns();
  for (int64_t n = 0; n < dy.columns(); ++n) {
    for (int64_t k = 0; k < columns; ++k) {
      for (int64_t m = 0; m < x.rows(); ++m) {
        main_grad[n * columns + k] += static_cast<double>(ValueAt(dy, m * dy.columns() + n)) *
                                      static_cast<double>(ValueAt(x, m * columns + k));
      }
    }
  }
}

SessionSpec OneLinear(const Recipe& recipe, LayerKind kind) {
  SessionLayer layer;
  layer.name = "fc";
  layer.spec.kind = kind;
  SessionSpec spec{.layers = {layer}, .recipe = recipe};
  spec.masters = Masters::kF32;
  spec.optimizer.kind = OptimizerSpec::Kind::kSgd;
  spec.optimizer.sgd.learning_rate = 0.25f;
  return spec;
}

absl::Status CheckMainGradients(ScenarioContext& context) {
  constexpr int64_t kM = 32, kN = 32, kK = 64;
  SessionSpec spec = OneLinear(context.recipe(), LayerKind::kLinear);
  spec.main_grads = true;
  QG_ASSIGN_OR_RETURN(const Tensor weight, SmallIntegers(context, 80, {kN, kK}));
  QG_ASSIGN_OR_RETURN(const Tensor on_engine, context.ToEngine(weight));
  QG_ASSIGN_OR_RETURN(auto session,
                      OneRankSession::Open(context.engine(), spec, {{"fc.weight", on_engine}},
                                           context.cancellation(), context.faults()));
  std::vector<double> expected(kN * kK);
  int64_t step_number = 0;
  for (const Microbatch is_first : {Microbatch::kFirst, Microbatch::kLater, Microbatch::kUnset,
                                    Microbatch::kFirst, Microbatch::kLater}) {
    context.SetStep(step_number++);
    QG_ASSIGN_OR_RETURN(const Tensor x, SmallIntegers(context, 90 + step_number, {kM, kK}));
    QG_ASSIGN_OR_RETURN(const Tensor dy, SmallIntegers(context, 190 + step_number, {kM, kN}));
    ForwardStep step;
    step.is_first = is_first;
    QG_ASSIGN_OR_RETURN(step.x, context.ToEngine(x));
    QG_ASSIGN_OR_RETURN(const Tensor dy_on_engine, context.ToEngine(dy));
    QG_RETURN_IF_ERROR(session->Forward(step, context.cancellation()).status());
    QG_RETURN_IF_ERROR(session->Backward({"0", dy_on_engine}, context.cancellation()).status());
    if (is_first == Microbatch::kFirst) expected.assign(expected.size(), 0.0);
    AddProduct(dy, x, expected);
    QG_ASSIGN_OR_RETURN(const Tensor found, session->Find("fc.main_grad", context.cancellation()));
    QG_ASSIGN_OR_RETURN(const Tensor main_grad, context.ToHost(found));
    for (size_t i = 0; i < expected.size(); ++i) {
      // Compares values, not bits: the sign of a zero sum may differ.
      const auto value = static_cast<double>(main_grad.as<float>()[i]);
      context.Expect(value == expected[i], absl::StrCat("main_grad element ", i),
                     absl::StrCat(value), absl::StrCat(expected[i]));
    }
  }
  return absl::OkStatus();
}

// ---- Experts

constexpr int64_t kGroupedExperts = 3, kGroupedRows = 32, kGroupedInputs = 64, kGroupedOutputs = 32;

// Computes every expert by hand as a linear layer of its own, on its own rows.
absl::Status CheckExpertWeights(ScenarioContext& context) {
  SessionSpec spec = OneLinear(context.recipe(), LayerKind::kGroupedLinear);
  spec.weights = WeightStorage::kQuantized;
  spec.layers[0].spec.m_splits.assign(kGroupedExperts, kGroupedRows);
  std::map<std::string, Tensor> parameters;
  std::vector<std::vector<float>> masters(kGroupedExperts);
  for (int64_t expert = 0; expert < kGroupedExperts; ++expert) {
    QG_ASSIGN_OR_RETURN(const Tensor weight,
                        context.Generate(Distribution::kNormal, 300 + expert, DType::kBF16,
                                         {kGroupedOutputs, kGroupedInputs}, 0.125f));
    for (int64_t i = 0; i < weight.element_count(); ++i) {
      masters[expert].push_back(ValueAt(weight, i));
    }
    QG_ASSIGN_OR_RETURN(parameters[absl::StrCat("fc.weight.", expert)], context.ToEngine(weight));
  }
  QG_ASSIGN_OR_RETURN(auto session, OneRankSession::Open(context.engine(), spec, parameters,
                                                         context.cancellation(), context.faults()));
  for (int64_t step = 0; step < 2 && context.difference_count() == 0; ++step) {
    context.SetStep(step);
    const auto rows = [&](uint64_t seed, int64_t columns, float scale) {
      return context.Generate(Distribution::kNormal, seed + step, DType::kBF16,
                              {kGroupedExperts * kGroupedRows, columns}, scale);
    };
    QG_ASSIGN_OR_RETURN(const Tensor x, rows(310, kGroupedInputs, 1.0f));
    QG_ASSIGN_OR_RETURN(const Tensor dy, rows(320, kGroupedOutputs, 0x1p-4f));
    ForwardStep forward;
    QG_ASSIGN_OR_RETURN(forward.x, context.ToEngine(x));
    QG_ASSIGN_OR_RETURN(const Tensor dy_on_engine, context.ToEngine(dy));
    QG_RETURN_IF_ERROR(session->Forward(forward, context.cancellation()).status());
    QG_ASSIGN_OR_RETURN(const SessionStepResult backward,
                        session->Backward({"0", dy_on_engine}, context.cancellation()));
    const NamedOutputs outputs = OutputsOf(backward);
    QG_ASSIGN_OR_RETURN(const Tensor dx, context.ToHost(outputs.at("dx")));
    for (int64_t expert = 0; expert < kGroupedExperts; ++expert) {
      const auto part = [&](const Tensor& whole) {
        return TakeRows(whole, expert * kGroupedRows, kGroupedRows);
      };
      LinearOperands operands;
      QG_ASSIGN_OR_RETURN(operands.x, part(x));
      QG_ASSIGN_OR_RETURN(operands.grad_output, part(dy));
      QG_ASSIGN_OR_RETURN(operands.weight,
                          Tensor::FromBytes(DType::kF32, {kGroupedOutputs, kGroupedInputs},
                                            std::as_bytes(std::span(masters[expert]))));
      QG_ASSIGN_OR_RETURN(const NamedOutputs expected,
                          ExpectedLinear(context.reference(), operands, context.recipe()));
      QG_ASSIGN_OR_RETURN(const Tensor dx_part, part(dx));
      const std::string name = absl::StrCat("expert ", expert, " ");
      QG_RETURN_IF_ERROR(context.ExpectSameBits(name + "dx", dx_part, expected.at("dx")));
      const Tensor& dw = expected.at("dw");
      QG_RETURN_IF_ERROR(
          context.ExpectSameBits(name + "dw", outputs.at(absl::StrCat("fc.dw.", expert)), dw));
      for (int64_t i = 0; i < dw.element_count(); ++i) {
        masters[expert][i] -= spec.optimizer.sgd.learning_rate * ValueAt(dw, i);
      }
    }
    QG_RETURN_IF_ERROR(session->Optimize({}, context.cancellation()).status());
  }
  return absl::OkStatus();
}

}  // namespace

ScenarioGroup WeightScenarios() {
  ScenarioGroup group;
  group.scenarios.push_back(
      {.name = "columnwise-fresh-after-evaluation",
       .invariant = "Every direction that a quantized weight holds follows each update, "
                    "evaluations in between or not.",
       .criterion = "dx after train, evaluate, update, train bit-equal to a network by hand that "
                    "quantizes its masters anew.",
       .bug_classes = {1, 2},
       .faults = {kFaultColumnwiseLeftStale, kFaultUsagesLostInEvaluation},
       .recipes = {"mxfp8", "fp8_block", "fp8_block:w_block_dim=1", "nvfp4",
                   "nvfp4:disable_2d_quantization=true", "fp8_current", "fp8_rowwise"},
       .run = &CheckFreshColumnwise});
  group.scenarios.push_back(
      {.name = "quantized-weights-follow-masters",
       .invariant = "Quantized weights are made from their masters, or through bf16 where that is "
                    "asked for.",
       .criterion = "Outputs of three steps bit-equal to a network by hand, both ways.",
       .faults = {kFaultRequantizationTheOtherWay},
       .recipes = {"mxfp8", "fp8_block", "fp8_current"},
       .run = &CheckRequantization});
  group.scenarios.push_back(
      {.name = "rollout-reads-the-trainers-weights",
       .invariant =
           "Who quantizes the bf16 weights that a trainer exports has the trainer's codes, "
           "if the trainer quantizes through bf16.",
       .criterion =
           "y of an evaluation after two steps bit-equal to a network by hand that has the "
           "export alone; different where the trainer quantizes its fp32 masters.",
       .bug_classes = {62},
       .faults = {kFaultRequantizationTheOtherWay},
       .recipes = {"fp8_block", "mxfp8", "fp8_current", "fp8_rowwise"},
       .run = &CheckRollout});
  group.scenarios.push_back(
      {.name = "requantized-weights-reproducible",
       .invariant = "A weight quantized again from the same master has the same codes.",
       .criterion = "Outputs of three steps, whose weights are rounded to nearest, bit-equal to a "
                    "network by hand.",
       .bug_classes = {40},
       .faults = {kFaultWeightsRoundedStochastically},
       .recipes = {"nvfp4", "nvfp4:disable_2d_quantization=true"},
       .run = &CheckRequantization});
  group.scenarios.push_back(
      {.name = "held-weights-follow-recipe",
       .invariant = "Weights held quantized are quantized anew from their masters when another "
                    "recipe reads them by another rule.",
       .criterion =
           "Outputs of two steps before a change of recipe and two after it bit-equal to a "
           "network by hand that quantizes its masters by the recipe of each step.",
       .faults = {kFaultCodesKeptAtChange},
       .recipes = {"mxfp8", "fp8_block", "nvfp4", "fp8_current", "fp8_rowwise"},
       .run = &CheckHeldAcrossRecipes});
  group.scenarios.push_back(
      {.name = "cached-weights-follow-usage-and-update",
       .invariant = "A cached weight gets the direction that training needs, and does not outlive "
                    "its parameter.",
       .criterion = "Outputs of evaluate (cache made), train (cache used), update, evaluate, train "
                    "bit-equal to a network by hand without a cache.",
       .bug_classes = {32},
       .faults = {kFaultWorkspaceKeptAfterUpdate},
       .recipes = {"mxfp8", "fp8_block", "fp8_block:w_block_dim=1", "nvfp4", "fp8_current",
                   "fp8_rowwise"},
       .run = &CheckCache});
  group.scenarios.push_back(
      {.name = "skipped-casts-write-nothing",
       .invariant = "Where cached codes of a weight are to be kept, its cast leaves codes, scales "
                    "and amaxes as they are, whatever the parameter has become.",
       .criterion =
           "y, dx, dw and db of five steps bit-equal to a step by hand with the weight that "
           "was cast last; its codes, scales, amaxes and history to a recomputation.",
       .bug_classes = {57},
       .faults = {kFaultSkippedCastDone, kFaultSkippedCastInPart},
       .recipes = {"fp8_delayed:amax_history_len=3", "fp8_current", "fp8_block", "mxfp8", "nvfp4",
                   "fp8_rowwise"},
       .run = &CheckSkippedCast});
  group.scenarios.push_back(
      {.name = "main-gradients-overwritten-once",
       .invariant = "The first microbatch overwrites a main gradient, the others add to it.",
       .criterion = "Main gradients of integer tensors equal to exact sums after each of five "
                    "microbatches.",
       .bug_classes = {33},
       .faults = {kFaultMainGradientOverwritten, kFaultMainGradientKept},
       .recipes = {"bf16", "mxfp8:backward_override=high_precision"},
       .run = &CheckMainGradients});
  group.scenarios.push_back(
      {.name = "every-experts-weight-fresh",
       .invariant = "After an update the quantized weight of every expert is fresh.",
       .criterion = "dx and dw of every expert bit-equal to a linear step by hand from its master.",
       .bug_classes = {49},
       .faults = {kFaultLaterExpertsLeftStale},
       .recipes = {"mxfp8", "fp8_block", "fp8_rowwise"},
       .run = &CheckExpertWeights});
  group.faults = {
      InCode(kFaultColumnwiseLeftStale,
             "Leaves the columnwise codes of a weight as they were when it is updated.", 1),
      InCode(kFaultUsagesLostInEvaluation,
             "Drops the columnwise codes of quantized weights in an evaluation.", 2),
      InCode(kFaultRequantizationTheOtherWay,
             "Quantizes weights through bf16 where fp32 is asked for, and the other way round.",
             62),
      InCode(kFaultWeightsRoundedStochastically, "Rounds updated weights stochastically.", 40),
      InCode(kFaultCodesKeptAtChange,
             "Keeps the codes of held weights when another recipe reads them by another rule."),
      InCode(kFaultWorkspaceKeptAfterUpdate, "Keeps cached weights after their update.", 32),
      InCode(kFaultSkippedCastDone, "Casts a weight whose cached codes are to be kept.", 57),
      InCode(kFaultSkippedCastInPart,
             "Keeps the cached codes of a weight and writes its scales and amaxes anew.", 57),
      InCode(kFaultMainGradientOverwritten,
             "Overwrites main gradients in microbatches after the first.", 33),
      InCode(kFaultMainGradientKept, "Adds to main gradients in the first microbatch.", 33),
      InCode(kFaultLaterExpertsLeftStale,
             "Refreshes the columnwise codes of the first expert alone.", 49),
  };
  return group;
}

}  // namespace quantgate
