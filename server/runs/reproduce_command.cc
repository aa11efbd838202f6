#include "server/runs/reproduce_command.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace quantgate {
namespace {

std::string Quoted(const std::string& text) {
  const bool is_plain = std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           absl::StrContains("_-.,:=/+@", absl::string_view(reinterpret_cast<const char*>(&c), 1));
  });
  if (is_plain) return text;
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

void AddOption(std::string& command, const char* option, const std::string& value) {
  absl::StrAppend(&command, " ", option, " ", Quoted(value));
}

/// Nine digits bring back every fp32 value.
std::string NumberText(float value) { return absl::StrFormat("%.9g", value); }

std::string NormText(const NormOptions& norm) {
  std::string text(NormKindName(norm.kind));
  if (norm.epsilon != NormOptions{}.epsilon) {
    absl::StrAppend(&text, ",eps=", NumberText(norm.epsilon));
  }
  if (norm.zero_centered_gamma) absl::StrAppend(&text, ",zero_centered");
  return text;
}

std::string ActivationText(const ActivationOptions& activation) {
  const ActivationOptions defaults;
  std::string text(ActivationKindName(activation.kind));
  if (activation.limit != defaults.limit) {
    absl::StrAppend(&text, ",limit=", NumberText(activation.limit));
  }
  if (activation.alpha != defaults.alpha) {
    absl::StrAppend(&text, ",alpha=", NumberText(activation.alpha));
  }
  if (activation.offset != defaults.offset) {
    absl::StrAppend(&text, ",offset=", NumberText(activation.offset));
  }
  if (activation.variant != defaults.variant) {
    absl::StrAppend(&text, ",variant=", std::string(ActivationVariantName(activation.variant)));
  }
  return text;
}

std::string OperationText(const OperationSpec& operation) {
  std::string text =
      absl::StrCat(operation.name, "=", std::string(OperationKindName(operation.kind)));
  switch (operation.kind) {
    case OperationKind::kNorm:
      return absl::StrCat(text, ",", NormText(operation.norm));
    case OperationKind::kActivation:
      return absl::StrCat(text, ",", ActivationText(operation.activation));
    case OperationKind::kAdd:
      return absl::StrCat(text, ",", operation.addend);
    case OperationKind::kScale:
      return absl::StrCat(text, ",", NumberText(operation.factor));
    case OperationKind::kQuantize:
      if (!operation.quantize_forward) absl::StrAppend(&text, ",forward=false");
      if (operation.quantize_backward) absl::StrAppend(&text, ",backward=true");
      return text;
    case OperationKind::kBasicLinear:
      if (operation.parallel_mode == ParallelMode::kNone) return text;
      return absl::StrCat(text, ",", std::string(ParallelModeName(operation.parallel_mode)));
    case OperationKind::kBias:
      break;
  }
  return text;
}

std::string LayerOptions(const LayerSpec& layer) {
  std::string text = absl::StrCat(" --layer ", std::string(LayerKindName(layer.kind)));
  if (layer.norm != NormOptions{}) AddOption(text, "--norm", NormText(layer.norm));
  const std::string activation = ActivationText(layer.activation);
  if (activation != ActivationText({})) AddOption(text, "--activation", activation);
  if (!layer.m_splits.empty()) AddOption(text, "--m-splits", absl::StrJoin(layer.m_splits, ","));
  for (const OperationSpec& operation : layer.operations) {
    AddOption(text, "--operation", OperationText(operation));
  }
  if (layer.return_norm_output) absl::StrAppend(&text, " --return-norm-output");
  if (!layer.fused) absl::StrAppend(&text, " --unfused");
  if (layer.parallel_mode != ParallelMode::kNone) {
    AddOption(text, "--parallel-mode", std::string(ParallelModeName(layer.parallel_mode)));
  }
  return text;
}

std::string GradientOptions(const RequiresGrad& requires_grad) {
  std::vector<std::string> names;
  if (requires_grad.x) names.push_back("x");
  if (requires_grad.weight) names.push_back("w");
  if (requires_grad.bias) names.push_back("b");
  if (requires_grad.norm) names.push_back("n");
  return names.empty() ? "none" : absl::StrJoin(names, ",");
}

/// Parameters that have an option of their own, in the order of the command's help.
constexpr std::pair<const char*, const char*> kNamedOptions[] = {
    {"weight", "--weight"}, {"bias", "--bias"}, {"gamma", "--gamma"}, {"beta", "--beta"}};

void AddParameters(const LayerRun& run, std::string& text) {
  for (const auto& [name, option] : kNamedOptions) {
    const auto found = run.parameters.find(name);
    if (found != run.parameters.end()) AddOption(text, option, ReferenceText(found->second));
  }
  for (const auto& [name, reference] : run.parameters) {
    const bool has_option =
        std::any_of(std::begin(kNamedOptions), std::end(kNamedOptions),
                    [&, &parameter = name](const auto& named) { return parameter == named.first; });
    if (!has_option) {
      AddOption(text, "--param", absl::StrCat(name, "=", ReferenceText(reference)));
    }
  }
}

std::string TensorOptions(const LayerRun& run) {
  std::string text = LayerOptions(run.layer);
  AddOption(text, "--input", ReferenceText(run.x));
  AddParameters(run, text);
  if (run.grad_output.has_value()) {
    AddOption(text, "--grad-output", ReferenceText(run.grad_output));
  }
  for (const auto& [weight, reference] : run.main_grads) {
    AddOption(text, "--main-grad",
              absl::StrCat(weight == "weight" ? "" : absl::StrCat(weight, "="),
                           ReferenceText(reference)));
  }
  for (const auto& [name, reference] : run.delayed_state) {
    AddOption(text, "--delayed-state", absl::StrCat(name, "=", ReferenceText(reference)));
  }
  if (run.calibrate) absl::StrAppend(&text, " --calibrate");
  if (run.error_budget) absl::StrAppend(&text, " --error-budget");
  if (run.seed != 0) AddOption(text, "--seed", absl::StrCat(run.seed));
  if (run.requires_grad.has_value()) {
    AddOption(text, "--requires-grad", GradientOptions(*run.requires_grad));
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

std::string ParallelOptions(const std::optional<ParallelSpec>& parallel) {
  if (!parallel.has_value()) return "";
  const bool divides_experts = parallel->expert_parallel > 1;
  std::string text = divides_experts ? absl::StrCat(" --ep ", parallel->expert_parallel)
                                     : absl::StrCat(" --tp ", parallel->tensor_parallel);
  if (parallel->data_parallel > 1) absl::StrAppend(&text, " --dp ", parallel->data_parallel);
  if (parallel->sequence_parallel) absl::StrAppend(&text, " --sequence-parallel");
  if (parallel->profile != ReductionProfile{}) {
    AddOption(text, "--reduction-profile", ReductionProfileName(parallel->profile));
  }
  if (parallel->backend != CollectiveBackend::kLocal) {
    AddOption(text, "--parallel-backend", std::string(CollectiveBackendName(parallel->backend)));
  }
  if (parallel->overlap.has_value()) AddOption(text, "--overlap", parallel->overlap->Text());
  for (const auto& [role, group] : parallel->amax_groups) {
    AddOption(text, "--amax-group",
              absl::StrCat(std::string(TensorRoleName(role)), "=", group.Text()));
  }
  return text;
}

/// The variants on one rank, each of which is followed by its twin on the ranks of --tp; none where
/// they are not in that order, or there are none on several ranks.
std::vector<Variant> VariantsBesideTwins(const std::vector<Variant>& variants) {
  std::vector<Variant> alone;
  if (variants.size() % 2 != 0) return {};
  for (size_t i = 0; i < variants.size(); i += 2) {
    Variant twin = variants[i];
    twin.parallel = variants[1].parallel;
    const bool is_pair = !variants[i].parallel.has_value() && twin.parallel.has_value() &&
                         twin.Label() == variants[i + 1].Label();
    if (!is_pair) return {};
    alone.push_back(variants[i]);
  }
  return alone;
}

std::string RunCommand(const std::string& tensors, const VariantOptions& variant) {
  std::string command = absl::StrCat("quantgate run", tensors);
  AddOption(command, "--recipe", variant.recipe);
  AddOption(command, "--backward-override", variant.mode);
  AddOption(command, "--arithmetic", variant.arithmetic);
  return command;
}

}  // namespace

std::string ReproduceCommand(const LayerRun& whole) {
  LayerRun run = whole;
  std::string tensors = TensorOptions(run);
  if (std::vector<Variant> alone = VariantsBesideTwins(run.variants); !alone.empty()) {
    absl::StrAppend(&tensors, ParallelOptions(run.variants[1].parallel));
    run.variants = std::move(alone);
  }
  std::vector<VariantOptions> variants;
  std::vector<std::string> recipes, modes, arithmetics;
  for (const Variant& variant : run.variants) {
    variants.push_back(OptionsOf(variant));
    AddOnce(recipes, variants.back().recipe);
    AddOnce(modes, variants.back().mode);
    AddOnce(arithmetics, variants.back().arithmetic);
  }
  if (variants.size() == 1) {
    return RunCommand(tensors + ParallelOptions(run.variants[0].parallel), variants[0]) +
           RequireOption(run);
  }

  // The order in which `quantgate compare` forms the product.
  std::vector<VariantOptions> product;
  for (const auto& recipe : recipes) {
    for (const auto& mode : modes) {
      for (const auto& arithmetic : arithmetics) product.push_back({recipe, mode, arithmetic});
    }
  }
  const bool has_other_twins =
      std::any_of(run.variants.begin(), run.variants.end(),
                  [](const Variant& variant) { return variant.parallel.has_value(); });
  if (product != variants || has_other_twins) {
    std::vector<std::string> commands;
    for (size_t i = 0; i < variants.size(); ++i) {
      commands.push_back(
          RunCommand(tensors + ParallelOptions(run.variants[i].parallel), variants[i]));
    }
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
