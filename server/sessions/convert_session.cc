#include "server/sessions/convert_session.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "server/limits.h"
#include "server/wire/convert_layer.h"
#include "server/wire/convert_recipe.h"
#include "server/wire/convert_tensor.h"
#include "server/wire/request_fields.h"

namespace quantgate {
namespace {

OptimizerSpec OptimizerFromProto(const v1::SessionSpec& proto) {
  OptimizerSpec optimizer;
  if (proto.has_adam()) {
    const v1::Adam& adam = proto.adam();
    optimizer.kind = OptimizerSpec::Kind::kAdam;
    optimizer.adam.learning_rate = adam.learning_rate();
    if (adam.has_beta1()) optimizer.adam.beta1 = adam.beta1();
    if (adam.has_beta2()) optimizer.adam.beta2 = adam.beta2();
    if (adam.has_epsilon()) optimizer.adam.epsilon = adam.epsilon();
    optimizer.adam.weight_decay = adam.weight_decay();
    if (adam.has_decoupled_decay()) optimizer.adam.decoupled_decay = adam.decoupled_decay();
  }
  if (proto.has_sgd()) {
    const v1::Sgd& sgd = proto.sgd();
    optimizer.kind = OptimizerSpec::Kind::kSgd;
    optimizer.sgd = {sgd.learning_rate(), sgd.momentum(), sgd.weight_decay(), sgd.nesterov()};
  }
  return optimizer;
}

v1::Variant VariantOf(const v1::Recipe& recipe, const std::string& backward_override,
                      const std::string& arithmetic) {
  v1::Variant variant;
  *variant.mutable_recipe() = recipe;
  variant.set_backward_override(backward_override);
  variant.set_arithmetic(arithmetic);
  return variant;
}

absl::StatusOr<Microbatch> MicrobatchFromName(const std::string& name) {
  if (name.empty() || name == "unset") return Microbatch::kUnset;
  if (name == "first") return Microbatch::kFirst;
  if (name == "later") return Microbatch::kLater;
  return Refuse("forward.is_first", Printable(name), "must be unset (or empty), first or later");
}

std::string MicrobatchName(const std::string& given) { return given.empty() ? "0" : given; }

/// x or grad_output, which may be given as codes.
absl::Status StepOperandFromProto(const v1::TensorSource& proto, const std::string& field,
                                  int64_t tensor_bytes_max, SessionStep& step) {
  if (proto.has_quantized()) {
    QG_ASSIGN_OR_RETURN(step.quantized,
                        QuantizedReferenceFromProto(proto.quantized(), field + ".quantized", true,
                                                    tensor_bytes_max));
    return absl::OkStatus();
  }
  QG_ASSIGN_OR_RETURN(step.tensor, TensorReferenceFromProto(proto, field, tensor_bytes_max));
  return RequireTensor(step.tensor);
}

absl::Status ForwardFromProto(const v1::SessionStepRequest::Forward& proto,
                              int64_t tensor_bytes_max, SessionStep& step) {
  step.kind = proto.evaluate()    ? SessionStep::Kind::kEvaluate
              : proto.recompute() ? SessionStep::Kind::kRecompute
                                  : SessionStep::Kind::kTrain;
  ForwardStep& forward = step.forward;
  forward.microbatch = step.microbatch = MicrobatchName(proto.microbatch());
  forward.train = !proto.evaluate();
  forward.value_bytes_max = tensor_bytes_max;
  QG_ASSIGN_OR_RETURN(forward.is_first, MicrobatchFromName(proto.is_first()));
  forward.recompute = proto.recompute();
  forward.calibrate = proto.calibrate();
  forward.defer_wgrad = proto.defer_wgrad();
  QG_ASSIGN_OR_RETURN(forward.amax_groups,
                      AmaxGroupsFromProto(proto.amax_groups(), "forward.amax_groups"));
  if (proto.has_overlap()) {
    QG_ASSIGN_OR_RETURN(forward.overlap, OverlapFromProto(proto.overlap(), "forward.overlap"));
  }
  if (proto.has_requires_grad()) {
    const v1::RequiresGrad& grad = proto.requires_grad();
    forward.requires_grad = {grad.x(), grad.weight(), grad.bias(), grad.norm()};
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> NotesOfRecipe(const v1::SessionSpec& spec,
                                                       const Recipe& recipe) {
  std::vector<LayerSpec> layers;
  std::vector<const LayerSpec*> pointers;
  layers.reserve(static_cast<size_t>(spec.layers_size()));
  for (const v1::SessionLayer& layer : spec.layers()) {
    QG_ASSIGN_OR_RETURN(layers.emplace_back(), LayerFromProto(layer.layer(), "layer"));
    layers.back().name = layer.name();
    pointers.push_back(&layers.back());
  }
  return NotesOfRules(pointers, recipe, "session");
}

absl::StatusOr<SessionSpec> SessionSpecFromProto(const v1::SessionSpec& proto,
                                                 const std::string& field) {
  QG_ASSIGN_OR_RETURN(
      Variant variant,
      VariantFromProto(VariantOf(proto.recipe(), proto.backward_override(), proto.arithmetic()),
                       field));
  SessionSpec spec{.layers = {}, .recipe = std::move(variant.recipe)};
  spec.arithmetic = variant.arithmetic;
  // The number of layers is checked before any is converted. A session without layers is refused by
  // the session itself.
  if (proto.layers_size() > kSessionLayersMax) {
    return Refuse(field + ".layers", absl::StrCat(proto.layers_size(), " given"),
                  absl::StrCat("a session has at most ", kSessionLayersMax));
  }
  for (int i = 0; i < proto.layers_size(); ++i) {
    const std::string layer_field = absl::StrCat(field, ".layers[", i, "]");
    QG_ASSIGN_OR_RETURN(LayerSpec layer,
                        LayerFromProto(proto.layers(i).layer(), layer_field + ".layer"));
    const std::string& name = proto.layers(i).name();
    if (!layer.name.empty() && layer.name != name) {
      return Refuse(layer_field + ".layer.name", Printable(layer.name),
                    "a layer of a session has the name that stands beside it: " + Printable(name));
    }
    spec.layers.push_back({name, std::move(layer)});
  }
  QG_ASSIGN_OR_RETURN(spec.weights, ParsedName(ParseWeightStorage, proto.weights(),
                                               field + ".weights", WeightStorage::kHighPrecision));
  QG_ASSIGN_OR_RETURN(
      spec.masters, ParsedName(ParseMasters, proto.masters(), field + ".masters", Masters::kNone));
  QG_ASSIGN_OR_RETURN(spec.requantization,
                      ParsedName(ParseRequantization, proto.requantization(),
                                 field + ".requantization", Requantization::kFromF32));
  spec.built_without_grad = proto.built_without_grad();
  spec.optimizer = OptimizerFromProto(proto);
  spec.main_grads = proto.main_grads();
  if (proto.has_parallel()) {
    QG_ASSIGN_OR_RETURN(spec.parallel, ParallelFromProto(proto.parallel(), field + ".parallel"));
    if (proto.parallel().tensor_parallel() == 0) spec.parallel->tensor_parallel = 1;
  }
  spec.seed = proto.seed();
  return spec;
}

absl::StatusOr<absl::Duration> LeaseFromProto(int32_t seconds, const SessionLimits& limits) {
  if (seconds == 0) return limits.lease_default;
  const absl::Duration lease = absl::Seconds(seconds);
  if (seconds > 0 && lease <= limits.lease_max) return lease;
  return Refuse(
      "lease_seconds", absl::StrCat(seconds),
      absl::StrCat("from 1 to ", absl::ToInt64Seconds(limits.lease_max), "; 0: the default"));
}

v1::Session SessionRecordToProto(const SessionRecord& record, absl::Time now) {
  v1::Session proto;
  proto.set_session_id(record.id);
  proto.set_step(record.step);
  proto.set_bytes(record.bytes);
  for (const std::string& name : record.microbatches) proto.add_microbatches(name);
  proto.set_lease_seconds(static_cast<int32_t>(absl::ToInt64Seconds(record.lease)));
  if (record.phase == SessionPhase::kOpen) {
    const absl::Duration left = std::max(record.lease_end - now, absl::ZeroDuration());
    proto.set_lease_left_seconds(static_cast<int32_t>(absl::ToInt64Seconds(left)));
  }
  proto.set_state(std::string(SessionPhaseName(record.phase)));
  proto.set_device(record.device);
  proto.set_run_id(record.run_id);
  return proto;
}

v1::SessionMemory SavedMemoryToProto(const SavedMemory& memory) {
  v1::SessionMemory proto;
  proto.set_saved_bytes(memory.on_device.bytes());
  proto.set_scale_bytes(memory.on_device.scales);
  proto.set_held_bytes(memory.on_device.held);
  proto.set_added_bytes(memory.added());
  proto.set_host_bytes(memory.on_host);
  proto.set_not_saved_bytes(memory.not_saved);
  proto.set_peak_bytes(memory.peak);
  proto.set_peak_step(memory.peak_step);
  const size_t listed = std::min(memory.operands.size(), kSessionOperandsMax);
  for (const SessionOperand& operand : std::span(memory.operands).first(listed)) {
    v1::SessionOperand& added = *proto.add_operands();
    added.set_microbatch(operand.microbatch);
    added.set_layer(operand.layer);
    added.set_operand(operand.operand);
    added.set_format(operand.format);
    added.set_data_bytes(operand.size.data);
    added.set_scale_bytes(operand.size.scales);
    added.set_counted_bytes(operand.counted.bytes());
    added.set_held_bytes(operand.counted.held);
    added.set_place(std::string(PlaceName(operand.place)));
    added.set_rank(std::max(operand.rank, 0));
  }
  proto.set_operands_left_out(static_cast<int32_t>(memory.operands.size() - listed));
  return proto;
}

v1::ListSessionsResponse SessionPageToProto(const std::vector<SessionRecord>& records,
                                            int page_size, absl::Time now) {
  // The most bytes that an entry's tag and length take, and that the page token takes.
  constexpr size_t kEntryOverhead = 8, kTokenBytes = 64;
  v1::ListSessionsResponse page;
  size_t bytes = kTokenBytes;
  for (const SessionRecord& record : records) {
    v1::Session session = SessionRecordToProto(record, now);
    bytes += session.ByteSizeLong() + kEntryOverhead;
    if (bytes > kMessageBytesMax) break;
    *page.add_sessions() = std::move(session);
  }
  const int count = page.sessions_size();
  const bool has_more = count == page_size || count < static_cast<int>(records.size());
  page.set_next_page_token(PageToken(has_more ? records[count - 1].number : 0));
  return page;
}

v1::SessionSpec SessionSpecToProto(v1::SessionSpec spec, const Recipe& recipe) {
  spec.clear_backward_override();
  spec.mutable_recipe()->set_name(recipe.name());
  auto& knobs = *spec.mutable_recipe()->mutable_knobs();
  knobs.clear();
  for (const auto& [knob, value] : recipe.CanonicalKnobs()) {
    // A session can be opened with what it says of itself.
    if (recipe.knobs().contains(knob)) knobs[knob] = value;
  }
  return spec;
}

std::string_view SessionStepName(SessionStep::Kind kind) {
  static constexpr std::string_view kNames[] = {"train",         "evaluate", "recompute",
                                                "backward",      "wgrad",    "optimize",
                                                "change_recipe", "offload",  "reload"};
  return kNames[static_cast<size_t>(kind)];
}

std::string_view SessionStepField(SessionStep::Kind kind) {
  using enum SessionStep::Kind;
  return kind == kTrain || kind == kEvaluate || kind == kRecompute ? "forward"
                                                                   : SessionStepName(kind);
}

namespace {

absl::Status ChangeFromProto(const v1::SessionStepRequest::ChangeRecipe& proto, SessionStep& step) {
  step.kind = SessionStep::Kind::kChangeRecipe;
  QG_ASSIGN_OR_RETURN(
      Variant variant,
      VariantFromProto(VariantOf(proto.recipe(), proto.backward_override(), ""), "change_recipe"));
  step.recipe = std::move(variant.recipe);
  step.keeps_override =
      proto.backward_override().empty() && !proto.recipe().knobs().contains("backward_override");
  return absl::OkStatus();
}

void OptimizeFromProto(const v1::SessionStepRequest::Optimize& proto, SessionStep& step) {
  step.kind = SessionStep::Kind::kOptimize;
  if (proto.has_learning_rate()) step.optimizer.learning_rate = proto.learning_rate();
}

}  // namespace

absl::StatusOr<SessionStep> SessionStepWithoutTensor(const v1::SessionStepRequest& proto,
                                                     int64_t tensor_bytes_max) {
  using Request = v1::SessionStepRequest;
  SessionStep step;
  switch (proto.step_case()) {
    case Request::kForward:
      QG_RETURN_IF_ERROR(ForwardFromProto(proto.forward(), tensor_bytes_max, step));
      break;
    case Request::kBackward:
      step.kind = SessionStep::Kind::kBackward;
      step.microbatch = MicrobatchName(proto.backward().microbatch());
      break;
    case Request::kWgrad:
      step.kind = SessionStep::Kind::kWgrad;
      break;
    case Request::kOptimize:
      OptimizeFromProto(proto.optimize(), step);
      break;
    case Request::kChangeRecipe:
      QG_RETURN_IF_ERROR(ChangeFromProto(proto.change_recipe(), step));
      break;
    case Request::kOffload:
      step.kind = SessionStep::Kind::kOffload;
      step.microbatch = MicrobatchName(proto.offload().microbatch());
      break;
    case Request::kReload:
      step.kind = SessionStep::Kind::kReload;
      step.microbatch = MicrobatchName(proto.reload().microbatch());
      break;
    case Request::STEP_NOT_SET:
      return RefuseAbsent("step",
                          "forward, backward, wgrad, optimize, change_recipe, "
                          "offload or reload");
  }
  return step;
}

absl::StatusOr<SessionStep> SessionStepFromProto(const v1::SessionStepRequest& proto,
                                                 int64_t tensor_bytes_max) {
  QG_ASSIGN_OR_RETURN(SessionStep step, SessionStepWithoutTensor(proto, tensor_bytes_max));
  if (proto.has_forward()) {
    QG_RETURN_IF_ERROR(
        StepOperandFromProto(proto.forward().x(), "forward.x", tensor_bytes_max, step));
  }
  if (proto.has_backward()) {
    QG_RETURN_IF_ERROR(StepOperandFromProto(proto.backward().grad_output(), "backward.grad_output",
                                            tensor_bytes_max, step));
  }
  return step;
}

}  // namespace quantgate
