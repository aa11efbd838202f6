// What training keeps between steps: every trace beside a network trained by hand.
#include <array>
#include <bit>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/training/session_faults.h"
#include "kernels/validate/scenarios/linear_subject.h"
#include "kernels/validate/scenarios/oracles/expected_copy.h"
#include "kernels/validate/scenarios/scenario_groups.h"
#include "kernels/validate/scenarios/sessions/session_subject.h"

namespace quantgate {
namespace {

using Training = std::unique_ptr<ComparedTraining>;

absl::StatusOr<Training> OpenTwoLayers(ScenarioContext& context) {
  return ComparedTraining::Open(context, TwoLayerSpec(context.recipe()), 50);
}

absl::Status TrainSteps(ScenarioContext& context, ComparedTraining& training, int64_t begin,
                        int64_t end) {
  for (int64_t step = begin; step < end && !training.has_diverged(); ++step) {
    context.SetStep(step);
    QG_RETURN_IF_ERROR(training.TrainStep(static_cast<uint64_t>(step)));
    QG_RETURN_IF_ERROR(training.Optimize());
  }
  return absl::OkStatus();
}

absl::Status CheckHundredSteps(ScenarioContext& context) {
  SessionSpec spec = TwoLayerSpec(context.recipe());
  spec.optimizer.kind = OptimizerSpec::Kind::kAdam;
  QG_ASSIGN_OR_RETURN(const Training training, ComparedTraining::Open(context, spec, 50));
  return TrainSteps(context, *training, 0, 100);
}

// x and the gradients grow and shrink from step to step, so that a scale that does not follow them
// shows.
absl::Status CheckHistories(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const Training training, OpenTwoLayers(context));
  int64_t step = 0;
  for (const float scale : {1.0f, 8.0f, 0.25f, 0.25f, 2.0f, 0.125f}) {
    context.SetStep(step);
    QG_RETURN_IF_ERROR(training->TrainStep(step++, scale));
    QG_RETURN_IF_ERROR(training->Optimize());
  }
  return absl::OkStatus();
}

absl::Status CheckEvaluation(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const Training training, OpenTwoLayers(context));
  for (int64_t step = 0; step < 3; ++step) {
    context.SetStep(step);
    QG_RETURN_IF_ERROR(training->TrainStep(step));
    QG_RETURN_IF_ERROR(training->Evaluate(100 + step, 64.0f));
    QG_RETURN_IF_ERROR(training->Optimize());
  }
  return absl::OkStatus();
}

// Three microbatches of very different magnitudes, with all forwards before the first backward.
absl::Status CheckInFlight(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const Training training, OpenTwoLayers(context));
  for (int64_t round = 0; round < 2; ++round) {
    context.SetStep(round);
    const std::pair<const char*, float> batches[] = {{"a", 1.0f}, {"b", 32.0f}, {"c", 0.125f}};
    uint64_t seed = 10 * round;
    for (const auto& [name, scale] : batches) {
      ForwardStep step;
      step.microbatch = name;
      QG_ASSIGN_OR_RETURN(step.x, training->MakeX(++seed, scale));
      QG_RETURN_IF_ERROR(training->Forward(step));
    }
    for (const auto& [name, scale] : batches) {
      QG_ASSIGN_OR_RETURN(const Tensor grad_output, training->MakeGradOutput(++seed, scale));
      QG_RETURN_IF_ERROR(training->Backward(name, grad_output));
    }
  }
  return absl::OkStatus();
}

/// The recipe with one knob changed.
absl::StatusOr<Recipe> WithKnob(const Recipe& recipe, const std::string& knob,
                                const std::string& value) {
  Recipe::Knobs knobs = recipe.knobs();
  knobs[knob] = value;
  return Recipe::Create(recipe.name(), knobs);
}

/// The recipe with one knob changed: a change that a comparison of recipe classes would miss.
absl::StatusOr<Recipe> OtherKnobs(const Recipe& recipe) {
  if (recipe.name() == "mxfp8") return WithKnob(recipe, "fp8_format", "hybrid");
  if (recipe.name() == "nvfp4") return WithKnob(recipe, "disable_rht", "true");
  return WithKnob(recipe, "power_2_scales", recipe.name() == "fp8_block" ? "false" : "true");
}

absl::Status CheckKnobChange(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const Training training, OpenTwoLayers(context));
  QG_RETURN_IF_ERROR(TrainSteps(context, *training, 0, 2));
  QG_ASSIGN_OR_RETURN(const Recipe other, OtherKnobs(context.recipe()));
  QG_RETURN_IF_ERROR(training->ChangeRecipe(other));
  QG_RETURN_IF_ERROR(TrainSteps(context, *training, 2, 4));
  QG_RETURN_IF_ERROR(training->ChangeRecipe(context.recipe()));
  return TrainSteps(context, *training, 4, 5);
}

// The histories hold a large amax, which the new algorithm, most_recent, ignores.
absl::Status CheckAlgorithmChange(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const Training training, OpenTwoLayers(context));
  QG_RETURN_IF_ERROR(training->TrainStep(1, 32.0f));
  QG_ASSIGN_OR_RETURN(const Recipe recent,
                      WithKnob(context.recipe(), "amax_compute_algo", "most_recent"));
  QG_RETURN_IF_ERROR(training->ChangeRecipe(recent));
  for (int64_t step = 2; step < 5; ++step) {
    context.SetStep(step);
    QG_RETURN_IF_ERROR(training->TrainStep(step));
  }
  return absl::OkStatus();
}

absl::Status CheckForwardsRecipe(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const Training training, OpenTwoLayers(context));
  ForwardStep step;
  QG_ASSIGN_OR_RETURN(step.x, training->MakeX(1));
  QG_RETURN_IF_ERROR(training->Forward(step));
  QG_RETURN_IF_ERROR(training->ChangeRecipe(
      context.recipe().WithBackwardOverride(BackwardOverride::kDequantized)));
  QG_ASSIGN_OR_RETURN(const Tensor grad_output, training->MakeGradOutput(1));
  QG_RETURN_IF_ERROR(training->Backward(step.microbatch, grad_output));
  context.SetStep(1);
  return training->TrainStep(2);
}

// Two microbatches are in flight, so that scales and random numbers advance between a forward and
// its recomputation.
absl::Status CheckRecomputation(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const Training training, OpenTwoLayers(context));
  for (int64_t round = 0; round < 2; ++round) {
    context.SetStep(round);
    for (const auto& [name, scale] : {std::pair{"a", 1.0f}, {"b", 16.0f}}) {
      ForwardStep step;
      step.microbatch = name;
      step.recompute = true;
      QG_ASSIGN_OR_RETURN(step.x, training->MakeX(20 + round, scale));
      QG_RETURN_IF_ERROR(training->Forward(step));
    }
    for (const char* name : {"a", "b"}) {
      QG_ASSIGN_OR_RETURN(const Tensor grad_output, training->MakeGradOutput(30 + round));
      QG_RETURN_IF_ERROR(training->Backward(name, grad_output));
    }
  }
  return absl::OkStatus();
}

// The recipe is changed before two forwards and changed back after them, as where a module opens a
// scope of its own within one that is checkpointed. Both are recomputed outside of their scope.
absl::Status CheckInnerRecipe(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const Recipe outer, Recipe::Parse("bf16"));
  QG_ASSIGN_OR_RETURN(const Training training,
                      ComparedTraining::Open(context, TwoLayerSpec(outer), 52));
  QG_RETURN_IF_ERROR(training->ChangeRecipe(context.recipe()));
  for (const auto& [name, scale] : {std::pair{"a", 1.0f}, {"b", 16.0f}}) {
    ForwardStep step;
    step.microbatch = name;
    step.recompute = true;
    QG_ASSIGN_OR_RETURN(step.x, training->MakeX(24, scale));
    QG_RETURN_IF_ERROR(training->Forward(step));
  }
  QG_RETURN_IF_ERROR(training->ChangeRecipe(outer));
  for (const char* name : {"a", "b"}) {
    QG_ASSIGN_OR_RETURN(const Tensor grad_output, training->MakeGradOutput(34));
    QG_RETURN_IF_ERROR(training->Backward(name, grad_output));
  }
  return absl::OkStatus();
}

/// The outputs of two linear layers by hand, "first" and "second", whose y and dx have the values
/// of their codes where the recipe has rules for them.
absl::StatusOr<NamedOutputs> TwoLinearsByHand(ScenarioContext& context,
                                              std::array<LinearOperands, 2> layers) {
  const Recipe& recipe = context.recipe();
  const auto step = [&](LinearOperands operands) -> absl::StatusOr<NamedOutputs> {
    QG_ASSIGN_OR_RETURN(NamedOutputs outputs,
                        ExpectedLinear(context.reference(), operands, recipe));
    for (const auto& [name, role] :
         {std::pair{"y", TensorRole::kOutput}, {"dx", TensorRole::kGradInput}}) {
      const auto found = outputs.find(name);
      const QuantizerSpec& rule = recipe.QuantizerFor(role).rowwise;
      if (found == outputs.end() || !rule.is_quantized()) continue;
      Tensor& result = found->second;
      QG_ASSIGN_OR_RETURN(const QuantizedCopy codes, ExpectedCopy(result, rule, Usage::kRowwise));
      QG_ASSIGN_OR_RETURN(result, ExpectedValues(codes, Usage::kRowwise, result.rows(),
                                                 result.columns(), result.dtype()));
    }
    return outputs;
  };
  LinearOperands forward_alone = layers[0];
  forward_alone.grad_output = Tensor();
  QG_ASSIGN_OR_RETURN(NamedOutputs first, step(forward_alone));
  layers[1].x = first.at("y");
  QG_ASSIGN_OR_RETURN(const NamedOutputs second, step(layers[1]));
  layers[0].grad_output = second.at("dx");
  QG_ASSIGN_OR_RETURN(first, step(layers[0]));
  NamedOutputs all = {{"y", second.at("y")}, {"dx", first.at("dx")}};
  for (const char* gradient : {"dw", "db"}) {
    all[absl::StrCat("first.", gradient)] = first.at(gradient);
    all[absl::StrCat("second.", gradient)] = second.at(gradient);
  }
  return all;
}

// What is asked for of a session of two layers comes back, whatever lies between it and the loss: a
// first x that needs no gradient, frozen weights, a y that has the values of its codes.
absl::Status CheckGradientsFlow(ScenarioContext& context) {
  SessionSpec spec{.layers = {{"first", {}}, {"second", {}}}, .recipe = context.recipe()};
  std::array<LinearOperands, 2> layers;
  std::map<std::string, Tensor> parameters;
  for (size_t i = 0; i < layers.size(); ++i) {
    QG_ASSIGN_OR_RETURN(layers[i], MakeLinearOperands(context, DType::kBF16, 32, 64, 64, 36 + i));
    layers[i].seed = spec.seed;
    QG_ASSIGN_OR_RETURN(parameters[spec.layers[i].name + ".weight"],
                        context.ToEngine(layers[i].weight));
    QG_ASSIGN_OR_RETURN(parameters[spec.layers[i].name + ".bias"],
                        context.ToEngine(layers[i].bias));
  }
  QG_ASSIGN_OR_RETURN(const auto session,
                      OneRankSession::Open(context.engine(), spec, parameters,
                                           context.cancellation(), context.faults()));
  QG_ASSIGN_OR_RETURN(const NamedOutputs all, TwoLinearsByHand(context, layers));
  const struct {
    RequiresGrad wanted;
    std::vector<std::string> outputs;
  } cases[] = {
      {{}, {"y", "dx", "first.dw", "first.db", "second.dw", "second.db"}},
      {{.x = false}, {"y", "first.dw", "first.db", "second.dw", "second.db"}},
      {{.weight = false, .bias = false}, {"y", "dx"}},
      {{.x = false, .weight = false}, {"y", "first.db", "second.db"}},
  };
  for (const auto& [wanted, names] : cases) {
    ForwardStep step;
    step.requires_grad = wanted;
    QG_ASSIGN_OR_RETURN(step.x, context.ToEngine(layers[0].x));
    QG_ASSIGN_OR_RETURN(const Tensor grad_output, context.ToEngine(layers[1].grad_output));
    QG_ASSIGN_OR_RETURN(const SessionStepResult forward,
                        session->Forward(step, context.cancellation()));
    QG_ASSIGN_OR_RETURN(const SessionStepResult backward,
                        session->Backward({step.microbatch, grad_output}, context.cancellation()));
    NamedOutputs subject = OutputsOf(forward), expected;
    subject.merge(OutputsOf(backward));
    for (const std::string& name : names) expected[name] = all.at(name);
    const std::string where = absl::StrCat("x ", wanted.x ? 1 : 0, " w ", wanted.weight ? 1 : 0,
                                           " b ", wanted.bias ? 1 : 0, ": ");
    QG_RETURN_IF_ERROR(ExpectSameOutputs(context, where, subject, expected));
  }
  return absl::OkStatus();
}

absl::Status CheckUsersTensors(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const Training training, OpenTwoLayers(context));
  QG_ASSIGN_OR_RETURN(const Tensor x, training->MakeX(1));
  QG_ASSIGN_OR_RETURN(const Tensor grad_output, training->MakeGradOutput(1));
  // Separate copies in the engine's memory stand for the user's tensors.
  Tensor held[2];
  const Tensor* const given[] = {&x, &grad_output};
  for (int i = 0; i < 2; ++i) {
    QG_ASSIGN_OR_RETURN(held[i], context.engine().Allocate(given[i]->dtype(), given[i]->shape()));
    QG_RETURN_IF_ERROR(context.engine().Write(given[i]->bytes(), held[i], 0));
  }
  ForwardStep step;
  step.x = held[0];
  QG_ASSIGN_OR_RETURN(const SessionStepResult forward,
                      training->session().Forward(step, context.cancellation()));
  QG_ASSIGN_OR_RETURN(const SessionStepResult backward,
                      training->session().Backward({"0", held[1]}, context.cancellation()));
  ExpectSavedUnchanged(context, backward);
  QG_RETURN_IF_ERROR(context.ExpectSameBits("x after backward", held[0], x));
  return context.ExpectSameBits("grad_output after backward", held[1], grad_output);
}

absl::Status CheckOffload(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const Training training, OpenTwoLayers(context));
  for (int64_t round = 0; round < 2 && !training->has_diverged(); ++round) {
    context.SetStep(round);
    for (const char* name : {"a", "b"}) {
      ForwardStep step;
      step.microbatch = name;
      QG_ASSIGN_OR_RETURN(step.x, training->MakeX(40 + round));
      QG_RETURN_IF_ERROR(training->Forward(step));
    }
    OneRankSession& session = training->session();
    QG_RETURN_IF_ERROR(session.Offload("a", context.cancellation()));
    QG_ASSIGN_OR_RETURN(const Tensor grad_output, training->MakeGradOutput(50 + round));
    QG_RETURN_IF_ERROR(training->Backward("b", grad_output));
    QG_RETURN_IF_ERROR(session.Reload("a", context.cancellation()));
    QG_RETURN_IF_ERROR(training->Backward("a", grad_output));
  }
  return absl::OkStatus();
}

absl::Status CheckCheckpoint(ScenarioContext& context) {
  const SessionSpec spec = TwoLayerSpec(context.recipe());
  QG_ASSIGN_OR_RETURN(const Training training, ComparedTraining::Open(context, spec, 50));
  QG_RETURN_IF_ERROR(TrainSteps(context, *training, 0, 3));
  QG_ASSIGN_OR_RETURN(const TensorFile file,
                      training->session().Checkpoint(context.cancellation()));
  QG_ASSIGN_OR_RETURN(auto restored,
                      OneRankSession::Restore(context.engine(), spec, file, context.cancellation(),
                                              context.faults()));
  training->Replace(std::move(restored));
  return TrainSteps(context, *training, 3, 6);
}

// Some steps have zeros for x and grad_output: their amaxes are 0, unlike the histories before.
absl::Status CheckZeroSteps(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const Training training, OpenTwoLayers(context));
  int64_t step = 0;
  for (const float scale : {4.0f, 1.0f, 0.0f, 0.0f, 1.0f, 0.0f, 2.0f}) {
    context.SetStep(step);
    QG_RETURN_IF_ERROR(training->TrainStep(step++, scale));
  }
  return absl::OkStatus();
}

absl::Status CheckInfiniteStep(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const Training training, OpenTwoLayers(context));
  for (int64_t step = 0; step < 7; ++step) {
    context.SetStep(step);
    if (step != 1) {
      QG_RETURN_IF_ERROR(training->TrainStep(step, step == 0 ? 1.0f : 8.0f));
      continue;
    }
    ForwardStep forward;
    QG_ASSIGN_OR_RETURN(forward.x, training->MakeX(step));
    SetValue(forward.x, 5, std::bit_cast<float>(0x7F800000u));
    QG_RETURN_IF_ERROR(training->Forward(forward));
    QG_ASSIGN_OR_RETURN(const Tensor grad_output, training->MakeGradOutput(step));
    QG_RETURN_IF_ERROR(training->Backward(forward.microbatch, grad_output));
  }
  return absl::OkStatus();
}

constexpr char kCustomRules[] =
    R"(custom:rules=[{"tensor_type":"weight","quantizer":{"format":"mxfp8","block_dim":2}},)"
    R"({"quantizer":"mxfp8"}])";

}  // namespace

ScenarioGroup SessionScenarios() {
  const std::vector<std::string> every_recipe = {"bf16",
                                                 "fp8_delayed:amax_history_len=4",
                                                 "fp8_current",
                                                 "fp8_block",
                                                 "mxfp8",
                                                 "nvfp4",
                                                 "fp8_rowwise",
                                                 "hybrid:fprop=mxfp8,dgrad=nvfp4,wgrad=fp8_block",
                                                 kCustomRules,
                                                 "mxfp8:backward_override=dequantized",
                                                 "fp8_current:backward_override=high_precision"};
  const std::string delayed = "fp8_delayed:amax_history_len=3";
  ScenarioGroup group;
  group.scenarios.push_back(
      {.name = "hundred-steps-equal-second-path",
       .invariant = "Training is its quantizations, GEMMs and updates, one after the other.",
       .criterion = "y, dx and every gradient of 100 Adam steps of a two-layer MLP bit-equal to a "
                    "network trained by hand.",
       .faults = {kFaultMasterIgnored},
       .recipes = every_recipe,
       .run = &CheckHundredSteps});
  group.scenarios.push_back(
      {.name = "delayed-state-kept-over-steps",
       .invariant = "Histories, scales and random numbers go on from step to step.",
       .criterion = "Outputs of six steps of changing sizes bit-equal to a network by hand with "
                    "histories of its own.",
       .bug_classes = {46},
       .faults = {kFaultStateRebuiltEveryForward, kFaultBackwardUpdateSkipped},
       .recipes = {delayed, "fp8_delayed:amax_history_len=1,update=unfused"},
       .run = &CheckHistories});
  group.scenarios.push_back(
      {.name = "zero-steps-update-by-their-rule",
       .invariant = "A session's histories roll over steps that saw nothing as the recipe's update "
                    "says.",
       .criterion = "Outputs of seven steps, three of zeros, bit-equal to a network by hand.",
       .bug_classes = {19},
       .faults = {kFaultUpdateRuleSwapped},
       .recipes = {"fp8_delayed:amax_history_len=3",
                   "fp8_delayed:amax_history_len=3,update=unfused"},
       .run = &CheckZeroSteps});
  group.scenarios.push_back(
      {.name = "infinite-step-stays-in-histories",
       .invariant = "One infinite input keeps a session's scale until it has left the history.",
       .criterion = "Outputs of seven steps, one with an infinity, bit-equal to a network by hand.",
       .bug_classes = {20},
       .faults = {kFaultInfiniteAmaxForgotten},
       .recipes = {"fp8_delayed:amax_history_len=3"},
       .run = &CheckInfiniteStep});
  group.scenarios.push_back(
      {.name = "evaluation-leaves-no-trace",
       .invariant = "An evaluation changes nothing that training sees.",
       .criterion = "Outputs bit-equal to a network by hand whose histories no evaluation enters.",
       .bug_classes = {17},
       .faults = {kFaultEvaluationPollutesHistory},
       .recipes = {delayed, "mxfp8"},
       .run = &CheckEvaluation});
  group.scenarios.push_back(
      {.name = "microbatches-in-flight-keep-apart",
       .invariant = "Each of several forwards in flight keeps its scales, random numbers and "
                    "update.",
       .criterion = "Outputs of three interleaved microbatches bit-equal to a network by hand.",
       .bug_classes = {4, 18, 22},
       .faults = {kFaultScalesOfAnotherMicrobatch, kFaultUpdatesMerged, kFaultRandomNumbersReused},
       .recipes = {"fp8_current:backward_override=dequantized", delayed, "nvfp4"},
       .run = &CheckInFlight});
  group.scenarios.push_back(
      {.name = "changed-knob-takes-effect",
       .invariant = "After a change of a knob the next forward follows the new configuration.",
       .criterion = "Outputs before and after two changes bit-equal to a network by hand.",
       .bug_classes = {13},
       .faults = {kFaultKnobChangeIgnored},
       .recipes = {"mxfp8", "fp8_current", "fp8_block", "nvfp4", "fp8_rowwise"},
       .run = &CheckKnobChange});
  group.scenarios.push_back(
      {.name = "changed-algorithm-takes-effect",
       .invariant = "A change of the amax algorithm alone holds from the next update on.",
       .criterion = "Outputs bit-equal to a network by hand whose histories change their rule.",
       .bug_classes = {16},
       .faults = {kFaultAlgorithmChangeIgnored},
       .recipes = {"fp8_delayed:amax_history_len=8"},
       .run = &CheckAlgorithmChange});
  group.scenarios.push_back(
      {.name = "backward-follows-its-forward",
       .invariant = "A recipe changed between forward and backward changes the next forward only.",
       .criterion = "Gradients bit-equal to a network by hand under forward's recipe.",
       .bug_classes = {44},
       .faults = {kFaultBackwardReadsLiveRecipe},
       .recipes = {"mxfp8", "fp8_current", "nvfp4"},
       .run = &CheckForwardsRecipe});
  group.scenarios.push_back(
      {.name = "recompute-equals-original",
       .invariant = "A forward done again in backward has the scales and random numbers of the "
                    "first.",
       .criterion = "Gradients of two microbatches in flight bit-equal to a network by hand that "
                    "kept everything; equal fingerprints of what both phases saved.",
       .bug_classes = {21},
       .faults = {kFaultRecomputationUsesCurrentScales, kFaultRecomputationDrawsAnew},
       .recipes = {delayed, "nvfp4", "mxfp8"},
       .run = &CheckRecomputation});
  group.scenarios.push_back(
      {.name = "recompute-follows-inner-recipe",
       .invariant = "A forward is done again under the recipe and the scales that it had, whatever "
                    "recipe is around it before and after.",
       .criterion = "Gradients of two microbatches between changes from bf16 and back to it "
                    "bit-equal to a network by hand that kept everything; equal fingerprints of "
                    "what both phases saved.",
       .bug_classes = {55},
       .faults = {kFaultRecomputesUnderOuterRecipe, kFaultStatesLeftToOuterRecipe},
       .recipes = {delayed, "fp8_current", "mxfp8", "nvfp4"},
       .run = &CheckInnerRecipe});
  group.scenarios.push_back(
      {.name = "gradients-flow-between-layers",
       .invariant =
           "A gradient that is asked for comes back through every layer after it: behind a "
           "first x that requires none, behind frozen weights, and behind a y that has the "
           "values of its codes.",
       .criterion = "Names of outputs by what is asked for; y, dx, dw and db of two layers "
                    "bit-equal to linear steps by hand.",
       .bug_classes = {56},
       .faults = {kFaultGradLostWithCodes, kFaultGradLostBehindInput, kFaultGradLostBehindFrozen},
       .recipes = {R"(custom:rules=[{"tensor_type":"output","quantizer":"fp8_current"},)"
                   R"({"quantizer":"fp8_current"}])",
                   "mxfp8", "fp8_current:backward_override=high_precision"},
       .run = &CheckGradientsFlow});
  group.scenarios.push_back(
      {.name = "users-tensors-survive-backward",
       .invariant = "Backward neither clears nor writes what the user gave, nor what was saved.",
       .criterion = "The user's tensors bit-equal after the step; equal fingerprints of saved "
                    "operands at save and at use.",
       .bug_classes = {3, 41},
       .faults = {kFaultInputCleared, kFaultSavedOperandOverwritten},
       .recipes = {"bf16", "mxfp8:backward_override=high_precision", "fp8_current"},
       .run = &CheckUsersTensors});
  group.scenarios.push_back({.name = "offload-equals-resident",
                             .invariant = "What went to host memory and came back is what it was.",
                             .criterion = "Gradients bit-equal to a network by hand.",
                             .faults = {kFaultOffloadDropsScales},
                             .recipes = {"fp8_current", "mxfp8", "nvfp4", "fp8_block"},
                             .run = &CheckOffload});
  group.scenarios.push_back(
      {.name = "checkpoint-equals-none",
       .invariant = "A session restored from a checkpoint goes on as the one that wrote it.",
       .criterion = "Outputs of the steps after bit-equal to a network by hand that never stopped.",
       .faults = {kFaultCheckpointDropsHistories, kFaultCheckpointRestartsRandomNumbers},
       .recipes = {delayed, "nvfp4", "mxfp8"},
       .run = &CheckCheckpoint});
  group.faults = {
      InCode(kFaultMasterIgnored, "Updates the rounded parameter and not its master."),
      InCode(kFaultStateRebuiltEveryForward,
             "Begins every forward with fresh histories and random numbers.", 46),
      InCode(kFaultBackwardUpdateSkipped, "Never updates the scales of gradients.", 46),
      InCode(kFaultUpdateRuleSwapped,
             "Updates by the fused rule where the unfused one is asked for, and the other way "
             "round.",
             19),
      InCode(kFaultInfiniteAmaxForgotten, "Forgets an infinite amax at once.", 20),
      InCode(kFaultEvaluationPollutesHistory, "Leaves the amaxes of evaluations in the histories.",
             17),
      InCode(kFaultScalesOfAnotherMicrobatch,
             "Dequantizes in backward with the scales of another microbatch in flight.", 4),
      InCode(kFaultUpdatesMerged, "Gives forwards in flight together one update.", 18),
      InCode(kFaultRandomNumbersReused, "Draws the same random numbers for every microbatch.", 22),
      InCode(kFaultKnobChangeIgnored, "Ignores a change within a recipe class.", 13),
      InCode(kFaultAlgorithmChangeIgnored, "Ignores a change of amax_compute_algo alone.", 16),
      InCode(kFaultBackwardReadsLiveRecipe, "Follows in backward the recipe of that moment.", 44),
      InCode(kFaultRecomputationUsesCurrentScales,
             "Recomputes a forward with the scales of that moment.", 21),
      InCode(kFaultRecomputationDrawsAnew, "Recomputes a forward with new random numbers.", 21),
      InCode(kFaultRecomputesUnderOuterRecipe,
             "Recomputes a forward under the recipe around its own.", 55),
      InCode(kFaultStatesLeftToOuterRecipe,
             "Keeps scales for a recomputation only if the recipe around its own has any.", 55),
      InCode(kFaultGradLostWithCodes,
             "Takes an x that comes with codes from the layer before for one that requires no "
             "gradient.",
             56),
      InCode(kFaultGradLostBehindInput,
             "Lets no layer's x require a gradient where the first x does not.", 56),
      InCode(kFaultGradLostBehindFrozen,
             "Lets the x of a layer with a frozen weight require no gradient.", 56),
      InCode(kFaultInputCleared, "Clears the input that was given.", 41),
      InCode(kFaultSavedOperandOverwritten,
             "Lays a later layer's buffer over what an earlier one saved.", 3),
      InCode(kFaultOffloadDropsScales, "Leaves scales out of what goes to host memory."),
      InCode(kFaultCheckpointDropsHistories, "Begins with fresh histories after a restore."),
      InCode(kFaultCheckpointRestartsRandomNumbers,
             "Draws the first random numbers again after a restore."),
  };
  return group;
}

}  // namespace quantgate
