#include "server/sessions/trace_plan.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/layer/layer_program.h"
#include "kernels/quantize/quantized_outline.h"
#include "kernels/training/session_outline.h"
#include "server/errors.h"
#include "server/limits.h"
#include "server/sessions/session_steps.h"
#include "server/wire/convert_layer.h"
#include "server/wire/convert_tensor.h"
#include "server/wire/request_fields.h"

namespace quantgate {
namespace {

using ProtoStep = v1::SessionTrace::Step;

/// The entry of a map of the request: `tensors["x"]`.
std::string EntryOf(const std::string& map, const std::string& key) {
  return absl::StrCat(map, "[", Printable(key), "]");
}

/// The trace's variants; without any, the spec's own recipe.
std::vector<v1::Variant> VariantsOf(const v1::SessionTrace& trace) {
  std::vector<v1::Variant> variants(trace.variants().begin(), trace.variants().end());
  if (variants.empty()) {
    *variants.emplace_back().mutable_recipe() = trace.spec().recipe();
    variants[0].set_backward_override(trace.spec().backward_override());
  }
  for (v1::Variant& variant : variants) {
    if (variant.arithmetic().empty()) variant.set_arithmetic(trace.spec().arithmetic());
    if (!variant.has_parallel() && trace.spec().has_parallel()) {
      *variant.mutable_parallel() = trace.spec().parallel();
    }
  }
  return variants;
}

/// Whether it says more than that there is one rank; what it says may be wrong.
bool SaysRanks(v1::Parallel parallel) {
  if (parallel.tensor_parallel() == 1) parallel.clear_tensor_parallel();
  if (parallel.data_parallel() == 1) parallel.clear_data_parallel();
  if (parallel.expert_parallel() == 1) parallel.clear_expert_parallel();
  return parallel.ByteSizeLong() > 0;
}

/// The spec's layers on the ranks of `parallel`; null: on one.
void SetRanks(const v1::Parallel* parallel, v1::SessionSpec& spec) {
  spec.clear_parallel();
  const bool has_ranks = parallel != nullptr && SaysRanks(*parallel);
  if (has_ranks) *spec.mutable_parallel() = *parallel;
  if (has_ranks && parallel->tensor_parallel() > 1) return;
  for (v1::SessionLayer& layer : *spec.mutable_layers()) {
    layer.mutable_layer()->clear_parallel_mode();
    for (v1::Operation& operation : *layer.mutable_layer()->mutable_operations()) {
      operation.clear_parallel_mode();
    }
  }
}

bool IsOfLayer(const v1::SessionTrace& trace, const std::string& name) {
  return std::any_of(trace.spec().layers().begin(), trace.spec().layers().end(),
                     [&](const v1::SessionLayer& layer) {
                       return absl::StartsWith(name, absl::StrCat(layer.name(), "."));
                     });
}

/// Whether a forward gives this layer's norm output: "fc1.norm_out".
bool IsReturnedNormOutput(const v1::SessionTrace& trace, const std::string& name) {
  return std::any_of(trace.spec().layers().begin(), trace.spec().layers().end(),
                     [&](const v1::SessionLayer& layer) {
                       return layer.layer().return_norm_output() &&
                              name == absl::StrCat(layer.name(), ".norm_out");
                     });
}

/// Whether the step may give a tensor of this name; which layers and recipes do is known once the
/// step is done.
bool MayGive(const v1::SessionTrace& trace, const std::vector<std::string>& parameters,
             const ProtoStep& step, const std::string& name) {
  switch (step.step_case()) {
    case ProtoStep::kForward:
      return name == "y" || IsReturnedNormOutput(trace, name);
    case ProtoStep::kBackward:
      return name == "dx" || IsOfLayer(trace, name);
    case ProtoStep::kWgrad:
      return IsOfLayer(trace, name);
    case ProtoStep::kOptimize:
    case ProtoStep::kRestart:
      return std::find(parameters.begin(), parameters.end(), name) != parameters.end();
    default:
      return false;
  }
}

/// TracePlan::parameter_names.
std::vector<std::string> ParameterNames(const v1::SessionTrace& trace, const SessionSpec& spec) {
  std::vector<std::string> names;
  for (const SessionLayer& layer : spec.layers) {
    const bool is_stacked = layer.spec.traits().has_experts &&
                            trace.parameters().contains(absl::StrCat(layer.name, ".weight"));
    for (const LayerParameter& parameter : ParametersOf(layer.spec)) {
      std::string name = absl::StrCat(layer.name, ".", parameter.name);
      const bool is_of_stack = is_stacked && parameter.kind == ParameterKind::kWeight;
      if (is_of_stack || trace.parameters().contains(name)) names.push_back(std::move(name));
    }
  }
  return names;
}

/// Reads a request into a plan, field by field.
class TraceReader {
 public:
  TraceReader(CallContext& context, const v1::RunTraceRequest& request)
      : context_(context), request_(request), trace_(request.trace()) {}

  absl::StatusOr<TracePlan> Read();

 private:
  absl::Status CheckCounts() const;
  absl::Status CheckRequirement();
  absl::Status ReadTensors();
  absl::Status ReadTensor(const std::string& key, const std::string& field,
                          const v1::TensorSource& source);
  bool HasTensor(const std::string& key) const {
    return plan_.tensors.contains(key) || plan_.codes.contains(key);
  }
  /// The outlines of an operand: of its values, and of its codes where it is given as such.
  absl::Status OutlineOperand(const std::string& key, Tensor& values, QuantizedTensor& codes) const;
  absl::Status ReadParameters();
  absl::Status ReadSessions();
  absl::Status ReadSteps();
  absl::StatusOr<PlannedTraceStep> ReadStep(int index);
  absl::Status ReadSubjects(const std::string& field, const ProtoStep& proto,
                            PlannedTraceStep& step);
  /// The key of the tensor of a step: given by its name, or within the step.
  absl::StatusOr<std::string> TensorKey(const std::string& field, const std::string& within,
                                        const std::string& name, const v1::TensorSource* source);
  absl::Status UseName(const std::string& field, const std::string& name);
  absl::Status CheckNames() const;
  absl::Status ResolveTensors();
  absl::Status ChooseDevice();
  absl::Status CheckSteps();
  absl::Status CheckStepsOf(int variant, const std::map<std::string, Tensor>& parameters,
                            const std::map<std::string, QuantizedTensor>& codes);
  /// One variant's session between two steps. A restart may change all of it.
  struct VariantNow {
    SessionOutline outline;
    std::optional<v1::Parallel> parallel;  ///< The ranks that it is on.
    std::string label;                     ///< Variant::Label.
  };
  absl::Status CheckStep(const PlannedTraceStep& planned, int variant, VariantNow& now);
  int variant_count() const { return static_cast<int>(plan_.variants.size()); }

  CallContext& context_;
  const v1::RunTraceRequest& request_;
  const v1::SessionTrace& trace_;
  TracePlan plan_;
  std::set<std::string> used_;  ///< Names of tensors that the trace has.
};

absl::Status TraceReader::CheckCounts() const {
  if (trace_.steps().empty()) return RefuseAbsent("trace.steps", "a trace has at least one");
  if (trace_.variants_size() > kVariantsMax) {
    return Refuse("trace.variants", absl::StrCat(trace_.variants_size(), " given"),
                  absl::StrCat("a trace has at most ", kVariantsMax));
  }
  const int64_t steps = trace_.steps_size();
  const int64_t rounds = std::max(trace_.rounds(), 1);
  const int64_t variants = std::max(trace_.variants_size(), 1);
  if (trace_.rounds() < 0 || rounds > kTraceStepsMax / (steps * variants)) {
    return Refuse("trace.rounds", absl::StrCat(trace_.rounds()),
                  absl::StrCat("of ", steps, " steps of ", variants, " variants; from 0 to ",
                               kTraceStepsMax, " steps of all variants (trace_steps_max)"));
  }
  const bool has_recipe = trace_.spec().has_recipe() || !trace_.spec().backward_override().empty();
  if (!trace_.variants().empty() && has_recipe) {
    return Refuse("trace.spec.recipe", "given",
                  "beside variants, each of which names its own recipe");
  }
  if (trace_.variants().empty() && !trace_.spec().has_recipe()) {
    return RefuseAbsent("trace.variants", "and there is no spec.recipe either");
  }
  if (trace_.reference() < 0 || trace_.reference() >= variants) {
    return Refuse("trace.reference", absl::StrCat(trace_.reference()),
                  absl::StrCat("there are ", variants, " variants"));
  }
  return absl::OkStatus();
}

absl::Status TraceReader::CheckRequirement() {
  if (request_.requirement() == v1::REQUIREMENT_UNSPECIFIED) return absl::OkStatus();
  if (request_.requirement() != v1::REQUIREMENT_BITWISE) {
    return Refuse("requirement", absl::StrCat(static_cast<int>(request_.requirement())),
                  "variants are required to be bitwise equal, or nothing is: no bound is derived "
                  "for the difference of two recipes");
  }
  if (variant_count() < 2) {
    return Refuse("requirement", "bitwise", "there is one variant, and nothing to compare it with");
  }
  plan_.requirement = Requirement::kBitwise;
  return absl::OkStatus();
}

absl::Status TraceReader::ReadTensors() {
  for (const auto& [name, source] : InOrder(request_.tensors())) {
    QG_RETURN_IF_ERROR(ReadTensor(name, EntryOf("tensors", name), *source));
  }
  return absl::OkStatus();
}

absl::Status TraceReader::ReadTensor(const std::string& key, const std::string& field,
                                     const v1::TensorSource& source) {
  if (source.has_quantized()) {
    QG_ASSIGN_OR_RETURN(QuantizedReference codes,
                        QuantizedReferenceFromProto(source.quantized(), field + ".quantized", true,
                                                    context_.tensor_bytes_max));
    plan_.codes[key] = std::move(codes);
    return absl::OkStatus();
  }
  QG_ASSIGN_OR_RETURN(TensorReference reference,
                      TensorReferenceFromProto(source, field, context_.tensor_bytes_max));
  QG_RETURN_IF_ERROR(RequireTensor(reference));
  plan_.tensors[key] = std::move(reference);
  return absl::OkStatus();
}

absl::Status TraceReader::OutlineOperand(const std::string& key, Tensor& values,
                                         QuantizedTensor& codes) const {
  const auto quantized = plan_.codes.find(key);
  if (quantized == plan_.codes.end()) {
    values = OutlineOf(plan_.tensors.at(key));
    return absl::OkStatus();
  }
  QG_ASSIGN_OR_RETURN(const QuantizedPlan plan, OutlineOf(quantized->second));
  QG_RETURN_IF_ERROR(WithinField(quantized->second.field, plan.CheckValues()));
  codes = plan.outline();
  QG_ASSIGN_OR_RETURN(values, OutlineTensor(codes.source_dtype, codes.shape));
  return absl::OkStatus();
}

absl::Status TraceReader::UseName(const std::string& field, const std::string& name) {
  if (!HasTensor(name)) {
    return Refuse(field, Printable(name), "no tensor of that name is among `tensors`");
  }
  used_.insert(name);
  return absl::OkStatus();
}

absl::Status TraceReader::CheckNames() const {
  for (const auto& [name, source] : InOrder(request_.tensors())) {
    if (used_.contains(name)) continue;
    return Refuse(EntryOf("tensors", name), "given", "the trace names no such tensor");
  }
  return absl::OkStatus();
}

absl::Status TraceReader::ReadParameters() {
  for (const auto& [parameter, name] : InOrder(trace_.parameters())) {
    QG_RETURN_IF_ERROR(UseName(EntryOf("trace.parameters", parameter), *name));
    plan_.parameters[parameter] = *name;
  }
  return absl::OkStatus();
}

absl::Status TraceReader::ReadSessions() {
  for (int i = 0; i < variant_count(); ++i) {
    const v1::Variant& variant = plan_.variants[i];
    QG_ASSIGN_OR_RETURN(
        TraceSession session,
        TraceSessionOf(plan_, i, variant.has_parallel() ? &variant.parallel() : nullptr));
    plan_.sessions.push_back(std::move(session));
  }
  plan_.parameter_names = ParameterNames(trace_, plan_.sessions[0].spec);
  return absl::OkStatus();
}

absl::StatusOr<std::string> TraceReader::TensorKey(const std::string& field,
                                                   const std::string& within,
                                                   const std::string& name,
                                                   const v1::TensorSource* source) {
  if (name.empty() == (source == nullptr)) {
    return Refuse(absl::StrCat(field, ".", within), name.empty() ? "absent" : "given twice",
                  absl::StrCat("the step takes one, named beside it or within it"));
  }
  if (source == nullptr) {
    QG_RETURN_IF_ERROR(UseName(absl::StrCat(field, ".", within), name));
    return name;
  }
  const std::string key = absl::StrCat(field, ".", within);
  if (HasTensor(key)) {
    return Refuse(EntryOf("tensors", key), "given", "a field's path is no name");
  }
  QG_RETURN_IF_ERROR(ReadTensor(key, key, *source));
  return key;
}

absl::Status TraceReader::ReadSubjects(const std::string& field, const ProtoStep& proto,
                                       PlannedTraceStep& step) {
  for (const auto& [output, source] : InOrder(proto.subjects())) {
    const std::string& name = *source;
    const std::string at = EntryOf(field + ".subjects", output);
    QG_RETURN_IF_ERROR(UseName(at, name));
    if (!MayGive(trace_, plan_.parameter_names, proto, output)) {
      return Refuse(at, Printable(name),
                    absl::StrCat("a step of kind ", step.kind, " gives no such tensor"));
    }
    if (plan_.codes.contains(name)) {
      return Refuse(at, Printable(name), "a subject is a tensor of values, and these are codes");
    }
    step.subjects[output] = name;
  }
  if (step.subjects.empty()) {
    if (proto.subjects_requirement() == v1::REQUIREMENT_UNSPECIFIED && proto.subjects_of() == 0) {
      return absl::OkStatus();
    }
    return RefuseAbsent(absl::StrCat(field, ".subjects"),
                        "subjects_of and subjects_requirement are about them");
  }
  if (plan_.rounds > 1) {
    return Refuse(absl::StrCat(field, ".subjects"), "given",
                  absl::StrCat("the trace has ", plan_.rounds,
                               " rounds, of which a subject could be of one only"));
  }
  if (proto.subjects_of() < 0 || proto.subjects_of() >= variant_count()) {
    return Refuse(absl::StrCat(field, ".subjects_of"), absl::StrCat(proto.subjects_of()),
                  absl::StrCat("there are ", variant_count(), " variants"));
  }
  step.subjects_of = proto.subjects_of();
  switch (proto.subjects_requirement()) {
    case v1::REQUIREMENT_UNSPECIFIED:
      return absl::OkStatus();
    case v1::REQUIREMENT_BITWISE:
      step.subjects_requirement = Requirement::kBitwise;
      return absl::OkStatus();
    case v1::REQUIREMENT_BOUND:
      step.subjects_requirement = Requirement::kBound;
      return absl::OkStatus();
    default:
      return Refuse(absl::StrCat(field, ".subjects_requirement"),
                    absl::StrCat(static_cast<int>(proto.subjects_requirement())),
                    "must be a Requirement");
  }
}

absl::StatusOr<PlannedTraceStep> TraceReader::ReadStep(int index) {
  const ProtoStep& proto = trace_.steps(index);
  const std::string at = absl::StrCat("trace.steps[", index, "]");
  const auto* const kind = ProtoStep::GetReflection()->GetOneofFieldDescriptor(
      proto, ProtoStep::descriptor()->FindOneofByName("step"));
  if (kind == nullptr) {
    return RefuseAbsent(
        at, "forward, backward, wgrad, optimize, change_recipe, offload, reload or restart");
  }
  PlannedTraceStep step;
  step.kind = kind->name();
  step.field = absl::StrCat(at, ".", step.kind);
  if (!proto.has_forward() && !proto.x().empty()) {
    return Refuse(absl::StrCat(at, ".x"), Printable(proto.x()), "is of a forward only");
  }
  if (!proto.has_backward() && !proto.grad_output().empty()) {
    return Refuse(absl::StrCat(at, ".grad_output"), Printable(proto.grad_output()),
                  "is of a backward only");
  }
  QG_RETURN_IF_ERROR(ReadSubjects(at, proto, step));
  if (proto.has_restart()) {
    PlannedTraceStep::Restart& restart = step.restart.emplace();
    for (const int32_t variant : proto.restart().variants()) {
      if (variant < 0 || variant >= variant_count()) {
        return Refuse(absl::StrCat(step.field, ".variants"), absl::StrCat(variant),
                      absl::StrCat("there are ", variant_count(), " variants"));
      }
      restart.variants.push_back(variant);
    }
    if (proto.restart().has_parallel()) restart.parallel = proto.restart().parallel();
    return step;
  }
  if (proto.has_forward()) {
    step.microbatch = proto.forward().microbatch();
    QG_ASSIGN_OR_RETURN(step.tensor,
                        TensorKey(step.field, "x", proto.x(),
                                  proto.forward().has_x() ? &proto.forward().x() : nullptr));
  }
  if (proto.has_backward()) {
    step.microbatch = proto.backward().microbatch();
    QG_ASSIGN_OR_RETURN(
        step.tensor,
        TensorKey(step.field, "grad_output", proto.grad_output(),
                  proto.backward().has_grad_output() ? &proto.backward().grad_output() : nullptr));
  }
  if (proto.has_offload()) step.microbatch = proto.offload().microbatch();
  if (proto.has_reload()) step.microbatch = proto.reload().microbatch();
  using Request = v1::SessionStepRequest;
  Request request;
  Request::GetReflection()
      ->MutableMessage(&request, Request::descriptor()->FindFieldByName(kind->name()))
      ->CopyFrom(ProtoStep::GetReflection()->GetMessage(proto, kind));
  if (request.has_forward()) request.mutable_forward()->clear_x();
  if (request.has_backward()) request.mutable_backward()->clear_grad_output();
  absl::StatusOr<SessionStep> read = SessionStepWithoutTensor(request, context_.tensor_bytes_max);
  if (!read.ok()) return WithinField(at, read.status());
  step.step = *std::move(read);
  return step;
}

absl::Status TraceReader::ReadSteps() {
  for (int i = 0; i < trace_.steps_size(); ++i) {
    QG_ASSIGN_OR_RETURN(plan_.steps.emplace_back(), ReadStep(i));
  }
  return absl::OkStatus();
}

absl::Status TraceReader::ResolveTensors() {
  std::vector<TensorReference*> all;
  for (auto& [name, reference] : plan_.tensors) all.push_back(&reference);
  for (auto& [name, codes] : plan_.codes) {
    for (auto& [slot, reference] : codes.parts) all.push_back(&reference);
  }
  QG_RETURN_IF_ERROR(context_.loader.Resolve(all));
  // They stay in memory for as long as the trace plays.
  int64_t bytes = 0;
  for (const auto& [name, reference] : plan_.tensors) {
    bytes += static_cast<int64_t>(OutlineOf(reference).byte_size());
  }
  for (const auto& [name, codes] : plan_.codes) {
    QG_ASSIGN_OR_RETURN(const int64_t loaded, LoadedBytesOf(codes));
    bytes += loaded;
  }
  const int64_t bytes_max = context_.sessions.limits().bytes_max;
  if (bytes > bytes_max) return error::LimitExceeded("tensors", bytes, bytes_max);
  return absl::OkStatus();
}

absl::Status TraceReader::ChooseDevice() {
  std::vector<Arithmetic> arithmetics;
  for (const TraceSession& session : plan_.sessions) arithmetics.push_back(session.spec.arithmetic);
  absl::StatusOr<Device*> device = LeastLoadedWith(context_.devices, arithmetics);
  if (!device.ok()) return WithinField("trace.variants", device.status());
  plan_.device = *device;
  return absl::OkStatus();
}

absl::Status TraceReader::CheckStep(const PlannedTraceStep& planned, int variant, VariantNow& now) {
  SessionOutline& outline = now.outline;
  if (planned.restart.has_value()) {
    if (!planned.restart->IsOf(variant)) return absl::OkStatus();
    if (planned.restart->parallel.has_value()) now.parallel = planned.restart->parallel;
    absl::StatusOr<TraceSession> session =
        TraceSessionOf(plan_, variant, now.parallel.has_value() ? &*now.parallel : nullptr);
    if (!session.ok()) {
      const std::optional<Refusal> refusal = RefusalOf(session.status());
      const size_t at = refusal.has_value() ? refusal->field.find("parallel") : std::string::npos;
      return at == std::string::npos
                 ? session.status()
                 : AsField(absl::StrCat(planned.field, ".", refusal->field.substr(at)),
                           session.status());
    }
    SessionSpec& spec = session->spec;
    spec.recipe = outline.recipe();
    std::string label = LabelOf(spec);
    QG_RETURN_IF_ERROR(WithinField(planned.field, outline.Restart(std::move(spec))));
    now.label = std::move(label);
    return absl::OkStatus();
  }
  SessionStep step = planned.step;
  if (!planned.tensor.empty()) {
    QG_RETURN_IF_ERROR(OutlineOperand(planned.tensor, step.forward.x, step.forward.x_codes));
  }
  return WithinField(planned.field, TakeStepOf(outline, step));
}

absl::Status TraceReader::CheckStepsOf(int variant, const std::map<std::string, Tensor>& parameters,
                                       const std::map<std::string, QuantizedTensor>& codes) {
  const TraceSession& session = plan_.sessions[variant];
  absl::StatusOr<SessionOutline> outline =
      SessionOutline::Open(*plan_.device->engine, session.spec, parameters, codes);
  if (!outline.ok()) {
    return Prefixed(absl::StrCat(session.label, ": "),
                    AtTraceField(plan_, variant, outline.status()));
  }
  VariantNow now{*std::move(outline), {}, session.label};
  if (plan_.variants[variant].has_parallel()) now.parallel = plan_.variants[variant].parallel();
  // What a step finds in the third round is what it finds in the second: a round leaves each
  // microbatch, gradient, recipe and the ranks as its last step about them does.
  const int rounds = std::min(plan_.rounds, 2);
  int64_t number = 0;
  for (int round = 0; round < rounds; ++round) {
    for (const PlannedTraceStep& step : plan_.steps) {
      const absl::Status status = CheckStep(step, variant, now);
      QG_RETURN_IF_ERROR(AtTraceStep(now.label, ++number, step, status));
    }
  }
  return absl::OkStatus();
}

absl::Status TraceReader::CheckSteps() {
  std::map<std::string, Tensor> parameters;
  std::map<std::string, QuantizedTensor> codes;
  for (const auto& [parameter, name] : plan_.parameters) {
    if (plan_.codes.contains(name)) {
      Tensor values;
      QG_RETURN_IF_ERROR(OutlineOperand(name, values, codes[parameter]));
    } else {
      parameters[parameter] = OutlineOf(plan_.tensors.at(name));
    }
  }
  for (int i = 0; i < variant_count(); ++i) {
    QG_RETURN_IF_ERROR(CheckStepsOf(i, parameters, codes));
  }
  return absl::OkStatus();
}

absl::StatusOr<TracePlan> TraceReader::Read() {
  QG_RETURN_IF_ERROR(CheckCounts());
  plan_.spec = trace_.spec();
  plan_.variants = VariantsOf(trace_);
  plan_.rounds = std::max(trace_.rounds(), 1);
  plan_.reference = trace_.reference();
  plan_.keep_outputs = request_.keep_outputs();
  QG_RETURN_IF_ERROR(CheckRequirement());
  QG_RETURN_IF_ERROR(ReadTensors());
  QG_RETURN_IF_ERROR(ReadParameters());
  QG_RETURN_IF_ERROR(ReadSessions());
  QG_RETURN_IF_ERROR(ReadSteps());
  QG_RETURN_IF_ERROR(CheckNames());
  QG_RETURN_IF_ERROR(ResolveTensors());
  QG_RETURN_IF_ERROR(ChooseDevice());
  QG_RETURN_IF_ERROR(CheckSteps());
  const int sessions_max = context_.sessions.limits().sessions_max;
  if (variant_count() > sessions_max) {
    return error::TraceNeverFits(variant_count(), sessions_max);
  }
  QG_ASSIGN_OR_RETURN(plan_.places, context_.sessions.ReserveAll(variant_count()));
  return std::move(plan_);
}

}  // namespace

absl::StatusOr<TracePlan> CheckTrace(CallContext& context, const v1::RunTraceRequest& request) {
  return TraceReader(context, request).Read();
}

absl::StatusOr<TraceSession> TraceSessionOf(const TracePlan& plan, int index,
                                            const v1::Parallel* parallel) {
  const v1::Variant& variant = plan.variants[index];
  v1::SessionSpec proto = plan.spec;
  *proto.mutable_recipe() = variant.recipe();
  proto.set_backward_override(variant.backward_override());
  proto.set_arithmetic(variant.arithmetic());
  SetRanks(parallel, proto);
  absl::StatusOr<SessionSpec> spec = SessionSpecFromProto(proto, "spec");
  if (!spec.ok()) {
    const std::optional<Refusal> refusal = RefusalOf(spec.status());
    if (!refusal.has_value()) return spec.status();
    const std::string field = refusal->field.substr(refusal->field.find('.') + 1);
    return AtTraceField(plan, index, AsField(field, spec.status()));
  }
  std::string label = LabelOf(*spec);
  return TraceSession{std::move(proto), *std::move(spec), std::move(label)};
}

std::string LabelOf(const SessionSpec& spec) {
  return Variant{spec.recipe, spec.arithmetic, spec.parallel}.Label();
}

absl::Status AtTraceStep(const std::string& label, int64_t number, const PlannedTraceStep& step,
                         const absl::Status& status) {
  return Prefixed(absl::StrCat(label, ", step ", number, " (", step.kind, "): "), status);
}

absl::Status AtTraceField(const TracePlan& plan, int index, const absl::Status& status) {
  const std::optional<Refusal> refusal = RefusalOf(status);
  if (!refusal.has_value()) return status;
  if (absl::StartsWith(refusal->field, "parameters")) return WithinField("trace", status);
  static constexpr const char* kOfVariant[] = {"recipe", "backward_override", "arithmetic",
                                               "parallel"};
  const bool is_of_variant =
      std::any_of(std::begin(kOfVariant), std::end(kOfVariant),
                  [&](const char* name) { return absl::StartsWith(refusal->field, name); });
  // Without variants the spec has the only one's fields.
  const bool has_variants = !plan.spec.has_recipe();
  return WithinField(
      is_of_variant && has_variants ? absl::StrCat("trace.variants[", index, "]") : "trace.spec",
      status);
}

}  // namespace quantgate
