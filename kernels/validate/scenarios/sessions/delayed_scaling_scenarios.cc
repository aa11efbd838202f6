// Delayed scaling: histories and scales over steps, beside a model of their own.
#include <array>
#include <bit>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/validate/scenarios/oracles/expected_copy.h"
#include "kernels/validate/scenarios/oracles/history_model.h"
#include "kernels/validate/scenarios/oracles/quantize_checks.h"
#include "kernels/validate/scenarios/scenario_groups.h"

namespace quantgate {
namespace {

constexpr float kE4m3Max = 448.0f;

bool IsFiniteAmax(float value) {
  return (std::bit_cast<uint32_t>(value) & 0x7F800000) != 0x7F800000;
}

/// One module's delayed-scaling state, updated by the engine and by the model side by side.
class ModuleHistory {
 public:
  ModuleHistory(ScenarioContext& context, std::string name, DelayedScalingOptions options)
      : context_(context), name_(std::move(name)), options_(options), model_(options, kE4m3Max) {}

  absl::Status Open() {
    QG_ASSIGN_OR_RETURN(state_, FreshDelayedScaling(options_.amax_history_len));
    return absl::OkStatus();
  }

  absl::Status Step(float amax) {
    QG_ASSIGN_OR_RETURN(const Tensor of_amax, Tensor::FromScalar(amax));
    QG_ASSIGN_OR_RETURN(const Tensor on_engine, context_.ToEngine(of_amax));
    QG_ASSIGN_OR_RETURN(state_, context_.engine().NoteCast(state_, on_engine));
    QG_ASSIGN_OR_RETURN(state_, context_.engine().UpdateScale(state_, options_, kE4m3Max));
    model_.NoteCast(amax);
    model_.Update();
    QG_ASSIGN_OR_RETURN(const Tensor scale, context_.ToHost(state_.scale));
    context_.ExpectSameFloat(name_ + " scale", *scale.as<float>(), model_.scale());
    QG_ASSIGN_OR_RETURN(const Tensor expected,
                        Tensor::FromBytes(DType::kF32, {options_.amax_history_len},
                                          std::as_bytes(std::span(model_.history()))));
    return context_.ExpectSameBits(name_ + " amax_history", state_.amax_history, expected);
  }

  const DelayedScalingState& state() const { return state_; }
  const HistoryModel& model() const { return model_; }

 private:
  ScenarioContext& context_;
  const std::string name_;
  const DelayedScalingOptions options_;
  HistoryModel model_;
  DelayedScalingState state_;
};

absl::Status CheckOwnAlgorithm(ScenarioContext& context) {
  DelayedScalingOptions options = context.recipe().delayed_scaling();
  options.algorithm = AmaxAlgorithm::kMax;
  ModuleHistory of_max(context, "module under max", options);
  options.algorithm = AmaxAlgorithm::kMostRecent;
  ModuleHistory of_recent(context, "module under most_recent", options);
  QG_RETURN_IF_ERROR(of_max.Open());
  QG_RETURN_IF_ERROR(of_recent.Open());
  int64_t step = 0;
  for (const float amax : {4.0f, 100.0f, 1.0f, 2.0f, 0.5f, 8.0f, 3.0f, 0.25f, 7.0f, 1.0f}) {
    context.SetStep(step++);
    QG_RETURN_IF_ERROR(of_max.Step(amax));
    QG_RETURN_IF_ERROR(of_recent.Step(amax));
  }
  return absl::OkStatus();
}

absl::Status CheckUpdatePaths(ScenarioContext& context) {
  DelayedScalingOptions options = context.recipe().delayed_scaling();
  options.update = ScaleUpdate::kFused;
  ModuleHistory fused(context, "fused", options);
  options.update = ScaleUpdate::kUnfused;
  ModuleHistory unfused(context, "unfused", options);
  QG_RETURN_IF_ERROR(fused.Open());
  QG_RETURN_IF_ERROR(unfused.Open());
  int64_t step = 0;
  for (const float amax : {3.0f, 0.0f, 5.0f, 0.0f, 0.0f, 7.0f, 0.5f, 0.0f, 0.0f, 0.0f}) {
    context.SetStep(step++);
    QG_RETURN_IF_ERROR(fused.Step(amax));
    QG_RETURN_IF_ERROR(unfused.Step(amax));
  }
  context.Expect(fused.model().history() != unfused.model().history(),
                 "histories after steps that saw nothing", "equal", "different");
  return absl::OkStatus();
}

// An infinite amax stays in the history for L updates, and as long the scale does not change.
absl::Status CheckInfinity(ScenarioContext& context) {
  const DelayedScalingOptions& options = context.recipe().delayed_scaling();
  const float infinity = std::bit_cast<float>(0x7F800000u);
  ModuleHistory module(context, "x", options);
  QG_RETURN_IF_ERROR(module.Open());
  const Quantizer& quantizer = context.recipe().QuantizerFor(TensorRole::kInput);
  QG_ASSIGN_OR_RETURN(const Tensor source,
                      context.Generate(Distribution::kNormal, 77, DType::kBF16, {32, 64}, 40.0f));
  QG_RETURN_IF_ERROR(module.Step(2.0f));
  QG_RETURN_IF_ERROR(module.Step(infinity));
  const float frozen = module.model().scale();
  for (int64_t step = 1; step <= options.amax_history_len; ++step) {
    context.SetStep(step);
    QG_ASSIGN_OR_RETURN(const Tensor scale, context.ToHost(module.state().scale));
    context.ExpectSameFloat("frozen scale", *scale.as<float>(), frozen);
    // A tensor too large for the frozen scale saturates, and the summary counts how many elements
    // do.
    QG_ASSIGN_OR_RETURN(
        const QuantizedTensor quantized,
        QuantizeOn(context, source, quantizer, {true, false}, {.scale = module.state().scale}));
    QG_ASSIGN_OR_RETURN(const auto summaries, context.engine().Summarize({&quantized, 1}));
    int64_t saturated = 0;
    for (int64_t i = 0; i < source.element_count(); ++i) {
      // 464 is half way between 448, the largest value, and 480, which would be the next.
      const float scaled = ValueAt(source, i) * frozen;
      saturated += scaled > 464.0f || scaled < -464.0f;
    }
    context.ExpectEqual("saturated elements", summaries[0].counts.saturated, saturated);
    context.Expect(saturated > 0, "saturated elements", "none", "some");
    QG_RETURN_IF_ERROR(module.Step(20.0f));
  }
  QG_ASSIGN_OR_RETURN(const Tensor scale, context.ToHost(module.state().scale));
  context.ExpectSameFloat("scale after the infinity has left", *scale.as<float>(),
                          kE4m3Max / 20.0f);
  return absl::OkStatus();
}

/// Applies the algorithm of the first module that updated to all modules, as if they shared a
/// buffer whose key leaves the algorithm out.
EngineAlterations OneAlgorithmForAll() {
  auto first = std::make_shared<std::optional<AmaxAlgorithm>>();
  return {.update_scale = [first](Engine& engine, const DelayedScalingState& state,
                                  DelayedScalingOptions options, float max_finite) {
    if (!first->has_value()) *first = options.algorithm;
    options.algorithm = **first;
    return engine.UpdateScale(state, options, max_finite);
  }};
}

EngineAlterations AlwaysBy(ScaleUpdate update) {
  return {.update_scale = [update](Engine& engine, const DelayedScalingState& state,
                                   DelayedScalingOptions options, float max_finite) {
    options.update = update;
    return engine.UpdateScale(state, options, max_finite);
  }};
}
EngineAlterations AlwaysFused() { return AlwaysBy(ScaleUpdate::kFused); }
EngineAlterations AlwaysUnfused() { return AlwaysBy(ScaleUpdate::kUnfused); }

EngineAlterations InfinityNotNoted() {
  return {.note_cast = [](Engine& engine, const DelayedScalingState& state,
                          const Tensor& amax) -> absl::StatusOr<DelayedScalingState> {
    QG_ASSIGN_OR_RETURN(const Tensor on_host, engine.ToHost(amax, nullptr));
    if (!IsFiniteAmax(*on_host.as<float>())) return state;
    return engine.NoteCast(state, amax);
  }};
}

EngineAlterations InfinityGivesScaleOne() {
  return {.update_scale = [](Engine& engine, const DelayedScalingState& state,
                             DelayedScalingOptions options,
                             float max_finite) -> absl::StatusOr<DelayedScalingState> {
    QG_ASSIGN_OR_RETURN(const Tensor before, engine.ToHost(state.amax_history, nullptr));
    QG_ASSIGN_OR_RETURN(DelayedScalingState updated,
                        engine.UpdateScale(state, options, max_finite));
    if (IsFiniteAmax(before.as<float>()[0])) return updated;
    QG_ASSIGN_OR_RETURN(const Tensor one, Tensor::FromScalar(1.0f));
    QG_ASSIGN_OR_RETURN(updated.scale, engine.ToDevice(one, nullptr));
    return updated;
  }};
}

}  // namespace

ScenarioGroup DelayedScalingScenarios() {
  ScenarioGroup group;
  group.scenarios.push_back(
      {.name = "histories-follow-their-own-algorithm",
       .invariant = "Modules whose recipes differ in the amax algorithm alone keep their own.",
       .criterion = "Scales and histories bit-equal to a model of each, ten interleaved steps.",
       .bug_classes = {16},
       .faults = {"delayed-state-keyed-without-algorithm"},
       .recipes = {"fp8_delayed:amax_history_len=4", "fp8_delayed:amax_history_len=2"},
       .run = &CheckOwnAlgorithm});
  group.scenarios.push_back(
      {.name = "update-paths-differ-as-specified",
       .invariant = "After a step that saw nothing the fused update changes nothing, the unfused "
                    "one rolls its history.",
       .criterion = "Scales and histories bit-equal to a model of each path, and different.",
       .bug_classes = {19},
       .faults = {"update-always-fused", "update-always-unfused"},
       .recipes = {"fp8_delayed:amax_history_len=4",
                   "fp8_delayed:amax_history_len=3,amax_compute_algo=most_recent"},
       .run = &CheckUpdatePaths});
  group.scenarios.push_back(
      {.name = "infinity-freezes-scale-while-in-history",
       .invariant = "An infinite amax keeps the scale for as many updates as the history is long.",
       .criterion = "The scale stands still for L steps and is 448 / amax after; saturated "
                    "elements counted by hand.",
       .bug_classes = {20},
       .faults = {"infinite-amax-not-noted", "infinite-amax-gives-scale-one"},
       .recipes = {"fp8_delayed:amax_history_len=4"},
       .run = &CheckInfinity});
  group.faults = {
      {"delayed-state-keyed-without-algorithm",
       "Updates every module by the algorithm of the first.", 16, &OneAlgorithmForAll},
      {"update-always-fused", "Does not roll the history of a step that saw nothing.", 19,
       &AlwaysFused},
      {"update-always-unfused", "Rolls the history of a step that saw nothing.", 19,
       &AlwaysUnfused},
      {"infinite-amax-not-noted", "Leaves infinite amaxes out of the history.", 20,
       &InfinityNotNoted},
      {"infinite-amax-gives-scale-one", "Sets the scale to 1 after an infinite amax.", 20,
       &InfinityGivesScaleOne},
  };
  return group;
}

}  // namespace quantgate
