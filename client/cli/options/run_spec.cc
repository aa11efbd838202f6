#include "client/cli/options/run_spec.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/options/layer_arguments.h"
#include "client/cli/options/quantized_metadata.h"
#include "client/tensor_name.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/files/tensor_file.h"
#include "server/report/number_text.h"

namespace quantgate {
namespace {

constexpr char kGroupedLinear[] = "grouped_linear";

/// A parameter of the layer and the option that gave it.
struct Parameter {
  const char* option;
  std::string name;
  std::string tensor;
};

constexpr char kRunPrefix[] = "run:";

bool HasAny(const std::vector<std::string>& values) {
  return !values.empty() && !values[0].empty();
}

bool HasRecipes(const LayerOptions& options) { return HasAny(options.recipes); }

/// The values of --weight, --bias or an unnamed --main-grad: of one tensor, or of the experts. One
/// weight for several experts is that of all of them.
absl::Status AddByPosition(const char* option, const std::string& name,
                           const std::vector<std::string>& tensors, const v1::Layer& layer,
                           std::vector<Parameter>& parameters) {
  const bool is_grouped = layer.kind() == kGroupedLinear;
  if (!is_grouped && tensors.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(option, ": ", tensors.size(), " given; only ",
                                                   kGroupedLinear, " takes one for each expert"));
  }
  const bool is_stack =
      is_grouped && tensors.size() == 1 && layer.m_splits_size() > 1 && name == "weight";
  for (size_t i = 0; i < tensors.size(); ++i) {
    parameters.push_back(
        {option, is_grouped && !is_stack ? absl::StrCat(name, ".", i) : name, tensors[i]});
  }
  return absl::OkStatus();
}

absl::Status CheckGivenOnce(const std::vector<Parameter>& parameters) {
  std::set<std::string> names;
  for (const Parameter& parameter : parameters) {
    if (names.insert(parameter.name).second) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(parameter.option, ": ", parameter.name, " is given twice"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Parameter>> ParametersOf(const LayerOptions& options,
                                                    const v1::Layer& layer) {
  std::vector<Parameter> parameters;
  QG_RETURN_IF_ERROR(AddByPosition("--weight", "weight", options.weights, layer, parameters));
  QG_RETURN_IF_ERROR(AddByPosition("--bias", "bias", options.biases, layer, parameters));
  const Parameter single[] = {{"--gamma", "gamma", options.gamma},
                              {"--beta", "beta", options.beta},
                              {"--fc1-weight", "fc1.weight", options.fc1_weight},
                              {"--fc1-bias", "fc1.bias", options.fc1_bias},
                              {"--fc2-weight", "fc2.weight", options.fc2_weight},
                              {"--fc2-bias", "fc2.bias", options.fc2_bias}};
  for (const Parameter& parameter : single) {
    if (!parameter.tensor.empty()) parameters.push_back(parameter);
  }
  for (const std::string& text : options.parameters) {
    const auto named = SplitNamedArgument(text);
    if (!named.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--param: \"", text, "\" is no NAME=TENSOR, as in fc1.weight=w.npy"));
    }
    parameters.push_back({"--param", named->name, named->tensor});
  }
  QG_RETURN_IF_ERROR(CheckGivenOnce(parameters));
  return parameters;
}

/// Checks that options for experts are given once for each expert. Experts of --param or of a spec
/// are checked by the server.
absl::Status CheckExperts(const LayerOptions& options, const v1::Layer& layer) {
  const auto experts = static_cast<size_t>(layer.m_splits_size());
  if (layer.kind() != kGroupedLinear || experts == 0 || !options.parameters.empty()) {
    return absl::OkStatus();
  }
  const std::pair<const char*, size_t> per_expert[] = {{"--weight", options.weights.size()},
                                                       {"--bias", options.biases.size()}};
  for (const auto& [option, count] : per_expert) {
    const bool is_stack = count == 1 && std::string(option) == "--weight";
    if (count == 0 || count == experts || is_stack) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--m-splits: \"", absl::StrJoin(layer.m_splits(), ","), "\" is of ", experts,
                     experts == 1 ? " expert" : " experts", ", and ", option, " is given ", count,
                     count == 1 ? " time" : " times", "; give it once for each expert"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Parameter>> MainGradsOf(const LayerOptions& options,
                                                   const v1::Layer& layer) {
  std::vector<Parameter> main_grads;
  std::vector<std::string> unnamed;
  for (const std::string& text : options.main_grads) {
    if (const auto named = SplitNamedArgument(text)) {
      main_grads.push_back({"--main-grad", named->name, named->tensor});
    } else {
      unnamed.push_back(text);
    }
  }
  QG_RETURN_IF_ERROR(AddByPosition("--main-grad", "weight", unnamed, layer, main_grads));
  QG_RETURN_IF_ERROR(CheckGivenOnce(main_grads));
  return main_grads;
}

absl::Status CheckLayerName(Connection& connection, const std::string& layer) {
  if (layer == "linear") return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(const v1::Capabilities capabilities, connection.GetCapabilities());
  const auto& known = capabilities.layers();
  if (std::find(known.begin(), known.end(), layer) != known.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--layer: \"", layer, "\" is none of ", absl::StrJoin(known, ", ")));
}

/// FILE.safetensors with tensors named input.scale, input.amax_history, ...; or NAME=TENSOR.
absl::Status SetDelayedState(const std::vector<std::string>& values, TensorSources& sources,
                             v1::LayerStep& step) {
  for (const std::string& value : values) {
    const size_t equals = value.find('=');
    if (equals != std::string::npos && value.find('.') < equals) {
      QG_ASSIGN_OR_RETURN((*step.mutable_delayed_state())[value.substr(0, equals)],
                          sources.Resolve("--delayed-state", value.substr(equals + 1)));
      continue;
    }
    QG_ASSIGN_OR_RETURN(const TensorFile file, ReadKnownTensors("--delayed-state", value));
    for (const NamedTensor& tensor : file.tensors) {
      // The other tensors that `run -o` wrote into the file are outputs of that run.
      if (!absl::EndsWith(tensor.name, ".scale") && !absl::EndsWith(tensor.name, ".amax_history")) {
        continue;
      }
      QG_ASSIGN_OR_RETURN((*step.mutable_delayed_state())[tensor.name],
                          sources.Place(absl::StrCat(value, ":", tensor.name), tensor.tensor));
    }
    if (step.delayed_state().empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--delayed-state: ", value, " holds no input.scale, input.amax_history, ..."));
    }
  }
  return absl::OkStatus();
}

absl::Status SetTensors(const LayerOptions& options, TensorSources& sources, v1::LayerStep& step) {
  if (!options.input.empty()) {
    QG_ASSIGN_OR_RETURN(*step.mutable_x(), ResolveOperand("--input", options.input, sources));
  }
  QG_ASSIGN_OR_RETURN(const std::vector<Parameter> parameters, ParametersOf(options, step.layer()));
  for (const Parameter& parameter : parameters) {
    QG_ASSIGN_OR_RETURN((*step.mutable_parameters())[parameter.name],
                        ResolveOperand(parameter.option, parameter.tensor, sources));
  }
  if (!options.grad_output.empty()) {
    QG_ASSIGN_OR_RETURN(*step.mutable_grad_output(),
                        ResolveOperand("--grad-output", options.grad_output, sources));
  }
  QG_ASSIGN_OR_RETURN(const std::vector<Parameter> main_grads, MainGradsOf(options, step.layer()));
  for (const Parameter& main_grad : main_grads) {
    QG_ASSIGN_OR_RETURN((*step.mutable_main_grads())[main_grad.name],
                        sources.Resolve(main_grad.option, main_grad.tensor));
  }
  return SetDelayedState(options.delayed_state, sources, step);
}

absl::StatusOr<v1::Requirement> RequirementOf(const std::string& text) {
  if (text == "bitwise") return v1::REQUIREMENT_BITWISE;
  if (text == "bound") return v1::REQUIREMENT_BOUND;
  return absl::InvalidArgumentError(
      absl::StrCat("--require: \"", text, "\" is none of bitwise, bound"));
}

absl::Status SetVariants(Connection& connection, const LayerOptions& options, v1::RunSpec& spec) {
  if (HasRecipes(options)) {
    v1::ListRecipesResponse listed;
    if (NamesAllRecipes(options)) {
      QG_ASSIGN_OR_RETURN(listed, connection.ListRecipes());
    }
    QG_ASSIGN_OR_RETURN(const std::vector<v1::Variant> variants, VariantsOf(options, &listed));
    spec.clear_variants();
    spec.mutable_variants()->Add(variants.begin(), variants.end());
  }
  QG_ASSIGN_OR_RETURN(const std::vector<v1::Variant> variants,
                      WithParallelTwins(options, {spec.variants().begin(), spec.variants().end()}));
  spec.clear_variants();
  spec.mutable_variants()->Add(variants.begin(), variants.end());
  if (options.wants_ranks() && variants.size() == 2 && !spec.has_reference()) {
    spec.set_reference(0);  // One rank.
  }
  if (!options.reference.empty()) {
    QG_ASSIGN_OR_RETURN(const int reference, FindVariant(options.reference, variants));
    spec.set_reference(reference);
  }
  if (options.require.empty()) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(const v1::Requirement requirement, RequirementOf(options.require));
  spec.set_requirement(requirement);
  return absl::OkStatus();
}

}  // namespace

absl::Status SetLayer(const LayerOptions& options, v1::Layer& layer) {
  if (!options.layer.empty()) layer.set_kind(options.layer);
  if (layer.kind().empty()) layer.set_kind("linear");
  if (!options.norm.empty()) {
    QG_ASSIGN_OR_RETURN(*layer.mutable_norm(), ParseNormArgument(options.norm));
  }
  if (!options.activation.empty()) {
    QG_ASSIGN_OR_RETURN(*layer.mutable_activation(), ParseActivationArgument(options.activation));
  }
  if (options.heads.has_value()) layer.mutable_attention()->set_heads(*options.heads);
  if (options.groups.has_value()) layer.mutable_attention()->set_groups(*options.groups);
  if (!options.mask.empty()) layer.mutable_attention()->set_mask(options.mask);
  if (options.rotary_base.has_value()) {
    layer.mutable_attention()->set_rotary_base(*options.rotary_base);
  }
  if (!options.m_splits.empty()) {
    QG_ASSIGN_OR_RETURN(const std::vector<int64_t> splits, ParseSplitsArgument(options.m_splits));
    layer.clear_m_splits();
    layer.mutable_m_splits()->Add(splits.begin(), splits.end());
  }
  if (!options.operations.empty()) layer.clear_operations();
  for (const std::string& text : options.operations) {
    QG_ASSIGN_OR_RETURN(*layer.add_operations(), ParseOperationArgument(text));
  }
  if (options.return_norm_output) layer.set_return_norm_output(true);
  if (options.unfused) layer.set_fused(false);
  if (!options.parallel_mode.empty()) layer.set_parallel_mode(options.parallel_mode);
  if (!options.layer_name.empty()) layer.set_name(options.layer_name);
  return absl::OkStatus();
}

bool NamesRun(const std::string& spec) { return absl::StartsWith(spec, kRunPrefix); }

absl::StatusOr<v1::RunReport> FetchRun(Connection& connection, const std::string& spec) {
  v1::GetRunRequest request;
  request.set_run_id(spec.substr(std::size(kRunPrefix) - 1));
  QG_ASSIGN_OR_RETURN(v1::Run run, connection.GetRun(request));
  if (!run.has_report()) {
    return absl::FailedPreconditionError(
        absl::StrCat("--spec is ", spec, ": the run has no report: ",
                     run.status_message().empty() ? "it has not ended yet" : run.status_message()));
  }
  v1::RunReport& report = *run.mutable_report();
  if (report.has_trace()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--spec is ", spec, ": the run is a ", run.summary(), "; quantgate session run plays one"));
  }
  if (!report.has_request()) {
    return absl::FailedPreconditionError(
        absl::StrCat("--spec is ", spec, ": its server, version ", report.environment().version(),
                     ", kept no requests; this repeats it: ", report.reproduce()));
  }
  v1::FindMissingRequest sought;
  for (const v1::InputTensor& input : report.inputs()) {
    if (input.has_digest()) *sought.add_digests() = input.digest();
  }
  QG_ASSIGN_OR_RETURN(const v1::FindMissingResponse found, connection.FindMissing(sought));
  for (const v1::InputTensor& input : report.inputs()) {
    for (const v1::Digest& missing : found.missing()) {
      if (DigestText(input.digest()) != DigestText(missing)) continue;
      return absl::NotFoundError(absl::StrCat("--spec is ", spec, ": the server no longer has ",
                                              input.name(), ", digest:", DigestText(missing)));
    }
  }
  return std::move(report);
}

absl::Status CheckSameInputs(const v1::RunReport& first, const v1::RunReport& again) {
  for (const v1::InputTensor& was : first.inputs()) {
    for (const v1::InputTensor& is : again.inputs()) {
      const bool is_same_place = is.name() == was.name() && is.source() == was.source() &&
                                 DigestText(is.digest()) == DigestText(was.digest());
      if (!is_same_place ||
          FingerprintText(is.fingerprint()) == FingerprintText(was.fingerprint())) {
        continue;
      }
      return absl::DataLossError(absl::StrCat(
          "--spec: ", is.name(), " had fingerprint ", FingerprintText(was.fingerprint()),
          " in run ", first.run_id(), " and has ", FingerprintText(is.fingerprint()), " now"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLayerOptions(const LayerOptions& options, v1::RunSpec spec) {
  QG_RETURN_IF_ERROR(SetLayer(options, *spec.mutable_step()->mutable_layer()));
  QG_RETURN_IF_ERROR(CheckExperts(options, spec.step().layer()));
  QG_RETURN_IF_ERROR(ParametersOf(options, spec.step().layer()).status());
  QG_RETURN_IF_ERROR(MainGradsOf(options, spec.step().layer()).status());
  if (!options.requires_grad.empty()) {
    QG_RETURN_IF_ERROR(ParseRequiresGradArgument(options.requires_grad).status());
  }
  if (options.input.empty() && !spec.step().has_x()) {
    return absl::InvalidArgumentError("--input: absent; x of the layer is required");
  }
  if (HasRecipes(options)) spec.clear_variants();  // Replaced.
  QG_RETURN_IF_ERROR(
      WithParallelTwins(options, {spec.variants().begin(), spec.variants().end()}).status());
  if (!HasRecipes(options)) {
    if (HasAny(options.backward_overrides) || HasAny(options.arithmetics)) {
      return absl::InvalidArgumentError(
          "--recipe: absent; --backward-override and --arithmetic go with it");
    }
    if (spec.variants_size() > 0) return absl::OkStatus();
    return absl::InvalidArgumentError("--recipe: absent; one is required");
  }
  return VariantsOf(options).status();
}

absl::StatusOr<v1::RunSpec> BuildRunSpec(Connection& connection, const LayerOptions& options,
                                         v1::RunSpec spec, TensorSources& sources) {
  QG_RETURN_IF_ERROR(SetVariants(connection, options, spec));
  v1::LayerStep& step = *spec.mutable_step();
  QG_RETURN_IF_ERROR(SetLayer(options, *step.mutable_layer()));
  QG_RETURN_IF_ERROR(CheckLayerName(connection, step.layer().kind()));
  if (options.seed.has_value()) spec.set_seed(*options.seed);
  if (options.error_budget) spec.set_error_budget(true);
  if (options.calibrate) step.set_calibrate(true);
  if (!options.requires_grad.empty()) {
    QG_ASSIGN_OR_RETURN(*step.mutable_requires_grad(),
                        ParseRequiresGradArgument(options.requires_grad));
  }
  QG_RETURN_IF_ERROR(SetTensors(options, sources, step));
  if (!options.requires_grad.empty() && options.requires_grad != "none" &&
      !step.has_grad_output()) {
    return Refuse("--requires-grad", options.requires_grad,
                  "without --grad-output no gradient is computed");
  }
  return spec;
}

}  // namespace quantgate
