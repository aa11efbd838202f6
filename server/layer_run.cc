#include "server/layer_run.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "server/errors.h"

namespace quantgate {
namespace {

constexpr TensorRole kStateRoles[] = {TensorRole::kInput, TensorRole::kWeight,
                                      TensorRole::kGradOutput};
constexpr char kScale[] = "scale";
constexpr char kAmaxHistory[] = "amax_history";

std::string StateName(TensorRole role, const char* part) {
  return absl::StrCat(std::string(TensorRoleName(role)), ".", part);
}

/// By role; a role that has one part only is left to the plan to refuse.
std::map<TensorRole, DelayedScalingState> DelayedStates(
    const std::map<std::string, Tensor>& tensors) {
  std::map<TensorRole, DelayedScalingState> states;
  for (const TensorRole role : kStateRoles) {
    const auto scale = tensors.find(StateName(role, kScale));
    const auto history = tensors.find(StateName(role, kAmaxHistory));
    if (scale != tensors.end()) states[role].scale = scale->second;
    if (history != tensors.end()) states[role].amax_history = history->second;
  }
  return states;
}

/// Without a word from the client, every gradient that has an operand.
RequiresGrad RequiresGradOf(const LayerRun& run) {
  return run.requires_grad.value_or(RequiresGrad{});
}

LayerRunRequest WithoutTensors(const LayerRun& run) {
  LayerRunRequest request;
  request.layer = run.layer;
  request.linear.requires_grad = RequiresGradOf(run);
  request.linear.calibrate = run.calibrate;
  request.linear.seed = run.seed;
  request.error_budget = run.error_budget;
  request.variants = run.variants;
  request.reference = run.reference;
  request.requirement = run.requirement;
  return request;
}

absl::Status AtSpecField(const absl::Status& status) {
  const std::string part = error::BrokenRuleOf(status).field;
  const bool is_tensor = !part.empty() && !absl::StartsWith(part, "variants") &&
                         !absl::StartsWith(part, "reference") &&
                         !absl::StartsWith(part, "requirement") &&
                         !absl::StartsWith(part, "subjects") && !absl::StartsWith(part, "seed");
  return error::AtField(status, is_tensor ? "spec.linear" : "spec");
}

std::string Quoted(const std::string& text) {
  const bool is_plain = std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           absl::StrContains("_-.,:=/+@", absl::string_view(reinterpret_cast<const char*>(&c), 1));
  });
  // Names of recipes and tensors hold no single quote.
  return is_plain ? text : absl::StrCat("'", text, "'");
}

void AddOption(std::string& command, const char* option, const std::string& value) {
  absl::StrAppend(&command, " ", option, " ", Quoted(value));
}

std::string TensorOptions(const LayerRun& run) {
  std::string text = absl::StrCat(" --layer ", std::string(LayerKindName(run.layer)));
  const std::pair<const char*, const TensorReference*> options[] = {
      {"--input", &run.x},
      {"--weight", &run.weight},
      {"--bias", &run.bias},
      {"--grad-output", &run.grad_output},
      {"--main-grad", &run.main_grad}};
  for (const auto& [option, reference] : options) {
    if (reference->has_value()) AddOption(text, option, ReferenceText(*reference));
  }
  for (const auto& [name, reference] : run.delayed_state) {
    AddOption(text, "--delayed-state", absl::StrCat(name, "=", ReferenceText(reference)));
  }
  if (run.calibrate) absl::StrAppend(&text, " --calibrate");
  if (run.error_budget) absl::StrAppend(&text, " --error-budget");
  if (run.seed != 0) AddOption(text, "--seed", absl::StrCat(run.seed));
  if (run.requires_grad.has_value()) {
    std::vector<std::string> names;
    if (run.requires_grad->x) names.push_back("x");
    if (run.requires_grad->weight) names.push_back("w");
    if (run.requires_grad->bias) names.push_back("b");
    AddOption(text, "--requires-grad", names.empty() ? "none" : absl::StrJoin(names, ","));
  }
  return text;
}

/// A variant as the three options of the command line.
struct VariantOptions {
  std::string recipe, mode, arithmetic;
  friend bool operator==(const VariantOptions&, const VariantOptions&) = default;
};

VariantOptions OptionsOf(const Variant& variant) {
  return {variant.recipe.WithBackwardOverride(BackwardOverride::kNone).ShortText(),
          std::string(BackwardOverrideName(variant.recipe.backward_override())),
          variant.arithmetic.ToString()};
}

void AddOnce(std::vector<std::string>& list, const std::string& value) {
  if (std::find(list.begin(), list.end(), value) == list.end()) list.push_back(value);
}

std::string RequireOption(const LayerRun& run) {
  return run.requirement == Requirement::kNone
             ? ""
             : absl::StrCat(" --require ", std::string(RequirementName(run.requirement)));
}

std::string RunCommand(const std::string& tensors, const VariantOptions& variant) {
  std::string command = absl::StrCat("quantgate run", tensors);
  AddOption(command, "--recipe", variant.recipe);
  AddOption(command, "--backward-override", variant.mode);
  AddOption(command, "--arithmetic", variant.arithmetic);
  return command;
}

}  // namespace

std::vector<TensorReference*> LayerRun::tensors() {
  std::vector<TensorReference*> all = {&x, &weight, &bias, &grad_output, &main_grad};
  for (auto& [name, subject] : subjects) all.push_back(&subject);
  for (auto& [name, state] : delayed_state) all.push_back(&state);
  return all;
}

std::string LayerRun::Summary() const {
  return absl::StrCat(std::string(LayerKindName(layer)), " x ", variants.size(),
                      variants.size() == 1 ? " variant" : " variants");
}

bool IsDelayedStateName(const std::string& name) {
  for (const TensorRole role : kStateRoles) {
    if (name == StateName(role, kScale) || name == StateName(role, kAmaxHistory)) return true;
  }
  return false;
}

absl::Status CheckLayerRun(const LayerRun& run) {
  LayerRunRequest request = WithoutTensors(run);
  request.linear.x = TensorLoader::Outline(run.x);
  request.linear.weight = TensorLoader::Outline(run.weight);
  request.linear.bias = TensorLoader::Outline(run.bias);
  request.linear.grad_output = TensorLoader::Outline(run.grad_output);
  request.linear.main_grad = TensorLoader::Outline(run.main_grad);
  for (const auto& [name, subject] : run.subjects) {
    request.subjects[name] = TensorLoader::Outline(subject);
  }
  std::map<std::string, Tensor> state;
  for (const auto& [name, reference] : run.delayed_state) {
    state[name] = TensorLoader::Outline(reference);
  }
  request.linear.delayed = DelayedStates(state);
  const absl::Status status = Plan::Create(std::move(request)).status();
  return status.ok() ? status : AtSpecField(status);
}

absl::StatusOr<Plan> LoadLayerRun(const LayerRun& run, TensorLoader& loader, Device& device,
                                  const Cancellation* cancellation) {
  LayerRunRequest request = WithoutTensors(run);
  LinearRequest& linear = request.linear;
  const std::pair<const TensorReference*, Tensor*> tensors[] = {
      {&run.x, &linear.x},
      {&run.weight, &linear.weight},
      {&run.bias, &linear.bias},
      {&run.grad_output, &linear.grad_output},
      {&run.main_grad, &linear.main_grad}};
  for (const auto& [reference, tensor] : tensors) {
    if (cancellation != nullptr) QG_RETURN_IF_ERROR(cancellation->Check());
    QG_ASSIGN_OR_RETURN(*tensor, loader.Load(*reference, device, cancellation));
  }
  for (const auto& [name, subject] : run.subjects) {
    QG_ASSIGN_OR_RETURN(request.subjects[name], loader.Load(subject, device, cancellation));
  }
  std::map<std::string, Tensor> state;
  for (const auto& [name, reference] : run.delayed_state) {
    QG_ASSIGN_OR_RETURN(state[name], loader.LoadToHost(reference, device, cancellation));
  }
  linear.delayed = DelayedStates(state);
  return Plan::Create(std::move(request));
}

std::string ReproduceCommand(const LayerRun& run) {
  const std::string tensors = TensorOptions(run);
  std::vector<VariantOptions> variants;
  std::vector<std::string> recipes, modes, arithmetics;
  for (const Variant& variant : run.variants) {
    variants.push_back(OptionsOf(variant));
    AddOnce(recipes, variants.back().recipe);
    AddOnce(modes, variants.back().mode);
    AddOnce(arithmetics, variants.back().arithmetic);
  }
  if (variants.size() == 1) return RunCommand(tensors, variants[0]) + RequireOption(run);

  // The order in which `quantgate compare` forms the product.
  std::vector<VariantOptions> product;
  for (const auto& recipe : recipes) {
    for (const auto& mode : modes) {
      for (const auto& arithmetic : arithmetics) product.push_back({recipe, mode, arithmetic});
    }
  }
  if (product != variants) {
    std::vector<std::string> commands;
    for (const auto& variant : variants) commands.push_back(RunCommand(tensors, variant));
    return absl::StrJoin(commands, " && ");
  }
  std::string command = absl::StrCat("quantgate compare", tensors);
  for (const auto& recipe : recipes) AddOption(command, "--recipe", recipe);
  for (const auto& mode : modes) AddOption(command, "--backward-override", mode);
  for (const auto& arithmetic : arithmetics) AddOption(command, "--arithmetic", arithmetic);
  if (run.reference.has_value()) AddOption(command, "--reference", absl::StrCat(*run.reference));
  return command + RequireOption(run);
}

}  // namespace quantgate
