#include "server/layer_run.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/base/status_macros.h"
#include "server/errors.h"

namespace quantgate {
namespace {

constexpr char kScale[] = ".scale";
constexpr char kAmaxHistory[] = ".amax_history";

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

/// The request with each tensor as `tensor_of` gives it; states of delayed scaling by `state_of`.
template <typename TensorOf, typename StateOf>
absl::StatusOr<LayerRunRequest> RequestOf(const LayerRun& run, TensorOf tensor_of,
                                          StateOf state_of) {
  LayerRunRequest request;
  LayerRequest& step = request.step;
  step.layer = run.layer;
  // Without a word from the client, every gradient that has an operand.
  step.requires_grad = run.requires_grad.value_or(RequiresGrad{});
  step.calibrate = run.calibrate;
  step.seed = run.seed;
  QG_ASSIGN_OR_RETURN(step.x, tensor_of(run.x));
  QG_ASSIGN_OR_RETURN(step.grad_output, tensor_of(run.grad_output));
  for (const auto& [name, reference] : run.parameters) {
    QG_ASSIGN_OR_RETURN(step.parameters[name], tensor_of(reference));
  }
  for (const auto& [weight, reference] : run.main_grads) {
    QG_ASSIGN_OR_RETURN(step.main_grads[weight], tensor_of(reference));
  }
  std::map<std::string, Tensor> state;
  for (const auto& [name, reference] : run.delayed_state) {
    QG_ASSIGN_OR_RETURN(state[name], state_of(reference));
  }
  step.delayed = ReadDelayedStates(state);
  for (const auto& [name, subject] : run.subjects) {
    QG_ASSIGN_OR_RETURN(request.subjects[name], tensor_of(subject));
  }
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
  const std::string part = error::BrokenRuleOf(status).field;
  const bool is_of_spec =
      part.empty() || std::any_of(std::begin(kSpecFields), std::end(kSpecFields),
                                  [&](const char* field) { return absl::StartsWith(part, field); });
  return error::AtField(status, is_of_spec ? "spec" : "spec.step");
}

}  // namespace

std::vector<TensorReference*> LayerRun::tensors() {
  std::vector<TensorReference*> all = {&x, &grad_output};
  for (auto* by_name : {&parameters, &main_grads, &subjects, &delayed_state}) {
    for (auto& [name, reference] : *by_name) all.push_back(&reference);
  }
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

absl::Status CheckLayerRun(const LayerRun& run) {
  const auto outline = [](const TensorReference& reference) -> absl::StatusOr<Tensor> {
    return TensorLoader::Outline(reference);
  };
  QG_ASSIGN_OR_RETURN(LayerRunRequest request, RequestOf(run, outline, outline));
  const absl::Status status = Plan::Create(std::move(request)).status();
  return status.ok() ? status : AtSpecField(status);
}

absl::StatusOr<Plan> LoadLayerRun(const LayerRun& run, TensorLoader& loader, Device& device,
                                  const Cancellation* cancellation) {
  const auto load = [&](const TensorReference& reference) -> absl::StatusOr<Tensor> {
    if (cancellation != nullptr) QG_RETURN_IF_ERROR(cancellation->Check());
    return loader.Load(reference, device, cancellation);
  };
  const auto load_to_host = [&](const TensorReference& reference) {
    return loader.LoadToHost(reference, device, cancellation);
  };
  QG_ASSIGN_OR_RETURN(LayerRunRequest request, RequestOf(run, load, load_to_host));
  return Plan::Create(std::move(request));
}

}  // namespace quantgate
