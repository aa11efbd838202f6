#include "server/wire/convert_layer.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "server/wire/convert_recipe.h"
#include "server/wire/convert_tensor.h"
#include "server/wire/request_fields.h"

namespace quantgate {

absl::StatusOr<OverlapSpec> OverlapFromProto(const v1::Overlap& proto, const std::string& field) {
  OverlapSpec overlap;
  const std::tuple<OverlapSide, GemmRole, const std::string&> methods[] = {
      {OverlapSide::kColumn, GemmRole::kFprop, proto.column_fprop()},
      {OverlapSide::kColumn, GemmRole::kDgrad, proto.column_dgrad()},
      {OverlapSide::kColumn, GemmRole::kWgrad, proto.column_wgrad()},
      {OverlapSide::kRow, GemmRole::kFprop, proto.row_fprop()},
      {OverlapSide::kRow, GemmRole::kDgrad, proto.row_dgrad()},
      {OverlapSide::kRow, GemmRole::kWgrad, proto.row_wgrad()}};
  for (const auto& [side, role, name] : methods) {
    if (name.empty()) continue;
    QG_ASSIGN_OR_RETURN(
        (overlap.methods[{side, role}]),
        ParsedName(ParseOverlapMethod, name, absl::StrCat(field, ".", OverlapKey(side, role)),
                   OverlapMethod::kNone));
  }
  overlap.aggregate = proto.aggregate();
  if (proto.pieces() != 0) overlap.pieces = proto.pieces();
  if (proto.splits() != 0) overlap.splits = proto.splits();
  return overlap;
}

absl::StatusOr<AmaxGroups> AmaxGroupsFromProto(
    const google::protobuf::Map<std::string, std::string>& proto, const std::string& field) {
  AmaxGroups groups;
  for (const auto& [name, text] : InOrder(proto)) {
    const absl::StatusOr<TensorRole> role = ParseTensorRole(name);
    if (!role.ok()) {
      return Refuse(field, Printable(name),
                    "amaxes are reduced by role: input, weight or grad_output");
    }
    QG_ASSIGN_OR_RETURN(
        groups[*role],
        ParsedName(ParseAmaxGroup, *text, absl::StrCat(field, "[", name, "]"), AmaxGroup()));
  }
  return groups;
}

absl::StatusOr<ParallelSpec> ParallelFromProto(const v1::Parallel& proto,
                                               const std::string& field) {
  ParallelSpec parallel;
  QG_ASSIGN_OR_RETURN(parallel.amax_groups,
                      AmaxGroupsFromProto(proto.amax_groups(), field + ".amax_groups"));
  parallel.amax_groups = WithGroupsOfCall(std::move(parallel.amax_groups), {});
  parallel.tensor_parallel = proto.tensor_parallel();
  parallel.sequence_parallel = proto.sequence_parallel();
  QG_ASSIGN_OR_RETURN(parallel.profile, ParsedName(ParseReductionProfile, proto.reduction_profile(),
                                                   field + ".reduction_profile", parallel.profile));
  QG_ASSIGN_OR_RETURN(parallel.backend, ParsedName(ParseCollectiveBackend, proto.backend(),
                                                   field + ".backend", parallel.backend));
  if (proto.has_overlap()) {
    QG_ASSIGN_OR_RETURN(parallel.overlap, OverlapFromProto(proto.overlap(), field + ".overlap"));
  }
  if (proto.data_parallel() != 0) parallel.data_parallel = proto.data_parallel();
  parallel.fully_sharded = proto.fully_sharded();
  parallel.distributed_optimizer = proto.distributed_optimizer();
  if (proto.has_reshard_after_forward()) {
    parallel.reshard_after_forward = proto.reshard_after_forward();
  }
  if (proto.expert_parallel() == 0) return parallel;
  parallel.expert_parallel = proto.expert_parallel();
  if (proto.tensor_parallel() == 0) parallel.tensor_parallel = 1;
  return parallel;
}

absl::StatusOr<Variant> VariantFromProto(const v1::Variant& proto, const std::string& field) {
  QG_ASSIGN_OR_RETURN(Recipe recipe, RecipeFromProto(proto.recipe(), field + ".recipe"));
  if (!proto.backward_override().empty()) {
    const auto mode = ParseBackwardOverride(proto.backward_override());
    if (!mode.ok()) {
      return Refuse(field + ".backward_override", Printable(proto.backward_override()),
                    "known overrides are none, high_precision, dequantized (also "
                    "default, unquant, dequant)");
    }
    recipe = recipe.WithBackwardOverride(*mode);
  }
  Arithmetic arithmetic;
  if (!proto.arithmetic().empty()) {
    QG_ASSIGN_OR_RETURN(arithmetic, ParsedName(Arithmetic::Parse, proto.arithmetic(),
                                               field + ".arithmetic", Arithmetic()));
  }
  Variant variant{std::move(recipe), arithmetic};
  if (proto.has_parallel()) {
    QG_ASSIGN_OR_RETURN(variant.parallel, ParallelFromProto(proto.parallel(), field + ".parallel"));
  }
  return variant;
}

namespace {

/// Names in requests become field names, file entries and words of a command line.
constexpr size_t kParameterNameLengthMax = 80;

absl::Status CheckParameterName(const std::string& name, const std::string& field) {
  const bool is_good = !name.empty() && name.size() <= kParameterNameLengthMax &&
                       std::all_of(name.begin(), name.end(), [](unsigned char c) {
                         return absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '.';
                       });
  if (is_good) return absl::OkStatus();
  return Refuse(field, "given",
                absl::StrCat("a name is 1 to ", kParameterNameLengthMax,
                             " of letters, digits, '.', '-' and '_'"));
}

/// Refuses a field that the layer's kind does not have, since it would be ignored.
absl::Status CheckTaken(bool is_given, bool is_taken, const std::string& field,
                        const std::string& kind, std::string_view owners) {
  if (!is_given || is_taken) return absl::OkStatus();
  return Refuse(field, "given",
                absl::StrCat(Printable(kind), " has none; it is of ", std::string(owners)));
}

/// The kinds of layers that have such an operation: "layernorm_linear, layernorm_mlp".
std::string KindsWith(OperationKind operation) {
  std::string kinds;
  for (const LayerTraits& traits : AllLayerKinds()) {
    if (!traits.has(operation)) continue;
    absl::StrAppend(&kinds, kinds.empty() ? "" : ", ", std::string(traits.name));
  }
  return kinds;
}

absl::StatusOr<NormOptions> NormFromProto(const v1::Norm& proto, const std::string& field) {
  NormOptions norm;
  QG_ASSIGN_OR_RETURN(norm.kind,
                      ParsedName(ParseNormKind, proto.kind(), field + ".kind", norm.kind));
  norm.zero_centered_gamma = proto.zero_centered_gamma();
  if (proto.has_epsilon()) norm.epsilon = proto.epsilon();
  return norm;
}

absl::StatusOr<ActivationOptions> ActivationFromProto(const v1::Activation& proto,
                                                      const std::string& field) {
  ActivationOptions activation;
  QG_ASSIGN_OR_RETURN(activation.kind, ParsedName(ParseActivationKind, proto.kind(),
                                                  field + ".kind", activation.kind));
  QG_ASSIGN_OR_RETURN(activation.variant, ParsedName(ParseActivationVariant, proto.variant(),
                                                     field + ".variant", activation.variant));
  const bool is_clamped = activation.kind == ActivationKind::kClampedSwiglu;
  const std::pair<const char*, bool> numbers[] = {{".limit", proto.has_limit()},
                                                  {".alpha", proto.has_alpha()},
                                                  {".offset", proto.has_offset()}};
  for (const auto& [name, is_given] : numbers) {
    QG_RETURN_IF_ERROR(CheckTaken(is_given, is_clamped, field + name,
                                  std::string(ActivationKindName(activation.kind)),
                                  "clamped_swiglu"));
  }
  if (proto.has_limit()) activation.limit = proto.limit();
  if (proto.has_alpha()) activation.alpha = proto.alpha();
  if (proto.has_offset()) activation.offset = proto.offset();
  return activation;
}

absl::StatusOr<AttentionOptions> AttentionFromProto(const v1::Attention& proto,
                                                    const std::string& field) {
  AttentionOptions attention;
  attention.heads = proto.heads();
  attention.groups = proto.groups();
  QG_ASSIGN_OR_RETURN(attention.mask, ParsedName(ParseAttentionMask, proto.mask(), field + ".mask",
                                                 attention.mask));
  if (proto.has_rotary_base()) attention.rotary_base = proto.rotary_base();
  return attention;
}

absl::Status CheckOperationFields(const v1::Operation& proto, OperationKind kind,
                                  const std::string& field) {
  using K = OperationKind;
  const auto check = [&](bool is_given, K owner, const char* name) {
    return CheckTaken(is_given, kind == owner, absl::StrCat(field, ".", name), proto.kind(),
                      OperationKindName(owner));
  };
  QG_RETURN_IF_ERROR(check(proto.has_norm(), K::kNorm, "norm"));
  QG_RETURN_IF_ERROR(check(proto.has_activation(), K::kActivation, "activation"));
  QG_RETURN_IF_ERROR(check(proto.has_factor(), K::kScale, "factor"));
  QG_RETURN_IF_ERROR(check(!proto.addend().empty(), K::kAdd, "addend"));
  QG_RETURN_IF_ERROR(check(proto.has_quantize_forward(), K::kQuantize, "quantize_forward"));
  return check(proto.quantize_backward(), K::kQuantize, "quantize_backward");
}

absl::StatusOr<OperationSpec> OperationFromProto(const v1::Operation& proto,
                                                 const std::string& field) {
  OperationSpec operation;
  QG_ASSIGN_OR_RETURN(operation.kind, ParsedName(ParseOperationKind, proto.kind(), field + ".kind",
                                                 operation.kind));
  if (proto.kind().empty()) {
    return RefuseAbsent(field + ".kind", "an operation has a kind, such as basic_linear");
  }
  QG_RETURN_IF_ERROR(CheckOperationFields(proto, operation.kind, field));
  QG_RETURN_IF_ERROR(CheckToken(proto.name(), field + ".name"));
  operation.name = proto.name();
  QG_ASSIGN_OR_RETURN(operation.norm, NormFromProto(proto.norm(), field + ".norm"));
  QG_ASSIGN_OR_RETURN(operation.activation,
                      ActivationFromProto(proto.activation(), field + ".activation"));
  if (proto.has_factor()) operation.factor = proto.factor();
  operation.addend = proto.addend();
  if (proto.has_quantize_forward()) operation.quantize_forward = proto.quantize_forward();
  operation.quantize_backward = proto.quantize_backward();
  QG_ASSIGN_OR_RETURN(operation.parallel_mode,
                      ParsedName(ParseParallelMode, proto.parallel_mode(), field + ".parallel_mode",
                                 operation.parallel_mode));
  return operation;
}

}  // namespace

absl::StatusOr<LayerSpec> LayerFromProto(const v1::Layer& proto, const std::string& field) {
  LayerSpec layer;
  if (proto.kind().empty()) {
    return RefuseAbsent(field + ".kind", "a layer has a kind, such as linear");
  }
  QG_ASSIGN_OR_RETURN(layer.kind,
                      ParsedName(ParseLayerKind, proto.kind(), field + ".kind", layer.kind));
  for (const auto& [operation, name, is_given] :
       {std::tuple(OperationKind::kNorm, ".norm", proto.has_norm()),
        std::tuple(OperationKind::kActivation, ".activation", proto.has_activation()),
        std::tuple(OperationKind::kAttention, ".attention", proto.has_attention())}) {
    QG_RETURN_IF_ERROR(CheckTaken(is_given, layer.traits().has(operation), field + name,
                                  proto.kind(), KindsWith(operation)));
  }
  QG_ASSIGN_OR_RETURN(layer.norm, NormFromProto(proto.norm(), field + ".norm"));
  QG_ASSIGN_OR_RETURN(layer.activation,
                      ActivationFromProto(proto.activation(), field + ".activation"));
  QG_ASSIGN_OR_RETURN(layer.attention, AttentionFromProto(proto.attention(), field + ".attention"));
  layer.return_norm_output = proto.return_norm_output();
  // The numbers are checked before anything is converted. The layer itself has the other rules.
  if (proto.m_splits_size() > kExpertsMax) {
    return Refuse(field + ".m_splits", absl::StrCat(proto.m_splits_size(), " given"),
                  absl::StrCat("a layer has at most ", kExpertsMax, " experts"));
  }
  layer.m_splits.assign(proto.m_splits().begin(), proto.m_splits().end());
  if (proto.operations_size() > kOperationsMax) {
    return Refuse(field + ".operations", absl::StrCat(proto.operations_size(), " given"),
                  absl::StrCat("a chain has at most ", kOperationsMax));
  }
  for (int i = 0; i < proto.operations_size(); ++i) {
    QG_ASSIGN_OR_RETURN(
        OperationSpec operation,
        OperationFromProto(proto.operations(i), absl::StrCat(field, ".operations[", i, "]")));
    layer.operations.push_back(std::move(operation));
  }
  if (proto.has_fused()) layer.fused = proto.fused();
  QG_RETURN_IF_ERROR(CheckName(proto.name(), field + ".name"));
  layer.name = proto.name();
  QG_ASSIGN_OR_RETURN(layer.parallel_mode,
                      ParsedName(ParseParallelMode, proto.parallel_mode(), field + ".parallel_mode",
                                 layer.parallel_mode));
  return layer;
}

namespace {

/// The most named tensors of a step: more than any layer has.
constexpr int kNamedTensorsMax = 4 * kExpertsMax;

using ProtoTensors = google::protobuf::Map<std::string, v1::TensorSource>;

}  // namespace

absl::StatusOr<std::map<std::string, TensorReference>> NamedTensorsFromProto(
    const ProtoTensors& proto, const std::string& field, int64_t tensor_bytes_max,
    std::map<std::string, QuantizedReference>* quantized) {
  if (proto.size() > kNamedTensorsMax) {
    return Refuse(field, absl::StrCat(proto.size(), " tensors"),
                  absl::StrCat("a step takes at most ", kNamedTensorsMax));
  }
  std::map<std::string, TensorReference> references;
  for (const auto& [name, source] : InOrder(proto)) {
    const std::string tensor_field = absl::StrCat(field, "[", Printable(name), "]");
    QG_RETURN_IF_ERROR(CheckParameterName(name, tensor_field));
    if (source->has_quantized() && quantized != nullptr) {
      QG_ASSIGN_OR_RETURN((*quantized)[name], QuantizedReferenceFromProto(
                                                  source->quantized(), tensor_field + ".quantized",
                                                  true, tensor_bytes_max));
      continue;
    }
    QG_ASSIGN_OR_RETURN(TensorReference reference,
                        TensorReferenceFromProto(*source, tensor_field, tensor_bytes_max));
    QG_RETURN_IF_ERROR(RequireTensor(reference));
    references.emplace(name, std::move(reference));
  }
  return references;
}

namespace {

/// The part that a tensor of delayed_state belongs to: "fc1.input" for "fc1.input.scale" and
/// "fc1.input.amax_history". Nothing for other names.
std::optional<std::string> DelayedStateOf(absl::string_view name) {
  if (!absl::ConsumeSuffix(&name, ".scale") && !absl::ConsumeSuffix(&name, ".amax_history")) {
    return std::nullopt;
  }
  const std::vector<absl::string_view> words = absl::StrSplit(name, '.');
  const bool has_role = std::any_of(words.begin(), words.end(), [](absl::string_view word) {
    absl::ConsumeSuffix(&word, "_columnwise");
    return word == "input" || word == "weight" || word == "grad_output";
  });
  return has_role ? std::optional<std::string>(name) : std::nullopt;
}

/// Adds the tensors of one map of the request. `place` makes the place of each in the run, which
/// has no value yet.
absl::Status AddNamedTensors(const ProtoTensors& proto, const std::string& path,
                             const std::string& field, int64_t tensor_bytes_max, LayerRun& run,
                             absl::FunctionRef<void(const std::string& name)> place,
                             std::map<std::string, QuantizedReference>* quantized = nullptr) {
  QG_ASSIGN_OR_RETURN(auto references,
                      NamedTensorsFromProto(proto, path + field, tensor_bytes_max, quantized));
  for (auto& [name, reference] : references) {
    place(name);
    run.tensors.emplace(absl::StrCat(field, "[", name, "]"), std::move(reference));
  }
  return absl::OkStatus();
}

/// Adds x or grad_output, which may be given as codes.
absl::Status AddOperand(const v1::TensorSource& proto, const char* name, int64_t tensor_bytes_max,
                        LayerRun& run) {
  const std::string field = absl::StrCat("spec.step.", name);
  if (proto.has_quantized()) {
    QG_ASSIGN_OR_RETURN(run.quantized[name],
                        QuantizedReferenceFromProto(proto.quantized(), field + ".quantized", true,
                                                    tensor_bytes_max));
    return absl::OkStatus();
  }
  QG_ASSIGN_OR_RETURN(run.tensors[name], TensorReferenceFromProto(proto, field, tensor_bytes_max));
  return absl::OkStatus();
}

absl::Status StepFromProto(const v1::LayerStep& proto, int64_t tensor_bytes_max, LayerRun& run) {
  LayerRequest& step = run.request.step;
  QG_ASSIGN_OR_RETURN(step.layer, LayerFromProto(proto.layer(), "spec.step.layer"));
  QG_RETURN_IF_ERROR(AddOperand(proto.x(), "x", tensor_bytes_max, run));
  if (!run.quantized.contains("x")) {
    QG_RETURN_IF_ERROR(RequireTensor(run.tensors["x"]));
  }
  QG_RETURN_IF_ERROR(AddOperand(proto.grad_output(), "grad_output", tensor_bytes_max, run));
  if (!run.tensors["grad_output"].has_value()) run.tensors.erase("grad_output");
  const auto add = [&](const ProtoTensors& tensors, const char* field,
                       absl::FunctionRef<void(const std::string&)> place) {
    return AddNamedTensors(tensors, "spec.step.", field, tensor_bytes_max, run, place);
  };
  std::map<std::string, QuantizedReference> quantized;
  QG_RETURN_IF_ERROR(AddNamedTensors(
      proto.parameters(), "spec.step.", "parameters", tensor_bytes_max, run,
      [&](const std::string& name) { step.parameters[name]; }, &quantized));
  for (auto& [name, reference] : quantized) {
    step.parameters[name];
    run.quantized.emplace(NameOfCodes(name), std::move(reference));
  }
  QG_RETURN_IF_ERROR(add(proto.main_grads(), "main_grads",
                         [&](const std::string& name) { step.main_grads[name]; }));
  for (const auto& [name, source] : InOrder(proto.delayed_state())) {
    if (DelayedStateOf(name).has_value()) continue;
    return Refuse(absl::StrCat("spec.step.delayed_state[", Printable(name), "]"), "given",
                  "names are input, weight or grad_output, with the prefix or index "
                  "of their weight, and .scale or .amax_history");
  }
  QG_RETURN_IF_ERROR(add(proto.delayed_state(), "delayed_state",
                         [&](const std::string& name) { step.delayed[*DelayedStateOf(name)]; }));
  step.calibrate = proto.calibrate();
  // Where the client does not name any, every gradient that has an operand is wanted.
  if (proto.has_requires_grad()) {
    const v1::RequiresGrad& grad = proto.requires_grad();
    step.requires_grad = RequiresGrad{grad.x(), grad.weight(), grad.bias(), grad.norm()};
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LayerRun> LayerRunFromProto(const v1::RunSpec& proto, int64_t tensor_bytes_max) {
  LayerRun run;
  LayerRunRequest& asked = run.request;
  if (!proto.has_step()) {
    return RefuseAbsent("spec.step", "a run has a step: its layer and tensors");
  }
  // The number of variants is checked before any is converted. Plan::Create refuses a run without
  // one.
  if (proto.variants_size() > kVariantsMax) {
    return Refuse("spec.variants", absl::StrCat(proto.variants_size(), " variants"),
                  absl::StrCat("a run has at most ", kVariantsMax));
  }
  QG_RETURN_IF_ERROR(StepFromProto(proto.step(), tensor_bytes_max, run));
  for (int i = 0; i < proto.variants_size(); ++i) {
    QG_ASSIGN_OR_RETURN(Variant variant, VariantFromProto(proto.variants(i),
                                                          absl::StrCat("spec.variants[", i, "]")));
    asked.variants.push_back(std::move(variant));
  }
  asked.step.seed = proto.seed();
  asked.step.value_bytes_max = tensor_bytes_max;
  if (proto.has_reference()) asked.reference = proto.reference();
  switch (proto.requirement()) {
    case v1::REQUIREMENT_UNSPECIFIED:
      asked.requirement = Requirement::kNone;
      break;
    case v1::REQUIREMENT_BITWISE:
      asked.requirement = Requirement::kBitwise;
      break;
    case v1::REQUIREMENT_BOUND:
      asked.requirement = Requirement::kBound;
      break;
    default:
      return Refuse("spec.requirement", absl::StrCat(proto.requirement()),
                    "known requirements are REQUIREMENT_UNSPECIFIED, "
                    "REQUIREMENT_BITWISE and REQUIREMENT_BOUND");
  }
  run.keep_outputs = proto.keep_outputs();
  asked.error_budget = proto.error_budget();
  // The number of subjects is checked before any is looked up. Plan::Create checks their names.
  if (proto.subjects_size() > kSubjectsMax) {
    return Refuse("spec.subjects", absl::StrCat(proto.subjects_size(), " tensors"),
                  absl::StrCat("a run takes at most ", kSubjectsMax));
  }
  QG_RETURN_IF_ERROR(AddNamedTensors(proto.subjects(), "spec.", "subjects", tensor_bytes_max, run,
                                     [&](const std::string& name) { asked.subjects[name]; }));
  return run;
}

}  // namespace quantgate
