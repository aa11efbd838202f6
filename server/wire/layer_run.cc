#include "server/wire/layer_run.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"

namespace quantgate {
namespace {

constexpr char kScale[] = ".scale";
constexpr char kAmaxHistory[] = ".amax_history";
constexpr char kDelayedState[] = "delayed_state";

/// The states of a request, by what they are of ("fc1.input"). One that has one part only is left
/// to the plan to refuse.
std::map<std::string, DelayedScalingState> ReadDelayedStates(
    const std::map<std::string, Tensor>& tensors) {
  std::map<std::string, DelayedScalingState> states;
  for (const auto& [name, tensor] : tensors) {
    absl::string_view of = name;
    if (absl::ConsumeSuffix(&of, kScale)) {
      states[std::string(of)].scale = tensor;
    } else if (absl::ConsumeSuffix(&of, kAmaxHistory)) {
      states[std::string(of)].amax_history = tensor;
    }
  }
  return states;
}

/// The request, its tensors outlined.
LayerRunRequest RequestOf(const LayerRun& run) {
  LayerRunRequest request;
  LayerRequest& step = request.step;
  step.layer = run.layer;
  // Without a word from the client, every gradient that has an operand.
  step.requires_grad = run.requires_grad.value_or(RequiresGrad{});
  step.calibrate = run.calibrate;
  step.seed = run.seed;
  step.value_bytes_max = run.tensor_bytes_max;
  step.x = OutlineOf(run.x);
  step.grad_output = OutlineOf(run.grad_output);
  const auto outline = [](const std::map<std::string, TensorReference>& references) {
    std::map<std::string, Tensor> tensors;
    for (const auto& [name, reference] : references) {
      tensors[name] = OutlineOf(reference);
    }
    return tensors;
  };
  step.parameters = outline(run.parameters);
  step.main_grads = outline(run.main_grads);
  step.delayed = ReadDelayedStates(outline(run.delayed_state));
  request.subjects = outline(run.subjects);
  request.error_budget = run.error_budget;
  request.variants = run.variants;
  request.reference = run.reference;
  request.requirement = run.requirement;
  return request;
}

/// What the plan names that is a field of RunSpec itself; all else is one of its step.
absl::Status AtSpecField(const absl::Status& status) {
  static constexpr const char* kSpecFields[] = {"variants", "reference", "requirement",
                                                "subjects", "seed",      "error_budget"};
  const std::optional<Refusal> refusal = RefusalOf(status);
  const bool is_of_spec = !refusal || std::any_of(std::begin(kSpecFields), std::end(kSpecFields),
                                                  [&](const char* field) {
                                                    return absl::StartsWith(refusal->field, field);
                                                  });
  return WithinField(is_of_spec ? "spec" : "spec.step", status);
}

}  // namespace

std::vector<TensorReference*> LayerRun::tensors() {
  std::vector<TensorReference*> all = {&x, &grad_output};
  for (auto* by_name : {&parameters, &main_grads, &subjects, &delayed_state}) {
    for (auto& [name, reference] : *by_name) all.push_back(&reference);
  }
  return all;
}

std::map<std::string, const TensorReference*> LayerRun::TensorsByName() const {
  std::map<std::string, const TensorReference*> all = {{"x", &x}, {"grad_output", &grad_output}};
  const auto add = [&](absl::string_view field,
                       const std::map<std::string, TensorReference>& references) {
    for (const auto& [name, reference] : references) {
      all.emplace(absl::StrCat(field, "[", name, "]"), &reference);
    }
  };
  add("parameters", parameters);
  add("main_grads", main_grads);
  add("subjects", subjects);
  add(kDelayedState, delayed_state);
  std::erase_if(all, [](const auto& one) { return !one.second->has_value(); });
  return all;
}

std::string LayerRun::Summary() const {
  return absl::StrCat(std::string(LayerKindName(layer.kind)), " x ", variants.size(),
                      variants.size() == 1 ? " variant" : " variants");
}

bool IsDelayedStateName(absl::string_view name) {
  if (!absl::ConsumeSuffix(&name, kScale) && !absl::ConsumeSuffix(&name, kAmaxHistory)) {
    return false;
  }
  const std::vector<absl::string_view> words = absl::StrSplit(name, '.');
  return std::any_of(words.begin(), words.end(), [](absl::string_view word) {
    return word == "input" || word == "weight" || word == "grad_output";
  });
}

absl::StatusOr<Plan> OutlineLayerRun(const LayerRun& run) {
  absl::StatusOr<Plan> plan = Plan::Create(RequestOf(run));
  if (!plan.ok()) return AtSpecField(plan.status());
  return plan;
}

}  // namespace quantgate
