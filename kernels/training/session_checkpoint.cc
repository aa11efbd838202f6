// Checkpoints: one safetensors file with every tensor of the state under its name, and what else
// the state is in the file's metadata. A file from untrusted hands: every number is checked before
// it is believed.
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/quantize/quantized_outline.h"
#include "kernels/training/session_checks.h"
#include "kernels/training/session_faults.h"
#include "kernels/training/session_run.h"
#include "kernels/training/session_spec_json.h"

namespace quantgate {
namespace {

using Json = nlohmann::json;

constexpr char kVersionKey[] = "quantgate.session";
constexpr char kVersion[] = "1";
constexpr char kSpecKey[] = "spec";
constexpr char kRecipeKey[] = "recipe";
constexpr char kStateKey[] = "state";

absl::Status Malformed(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("checkpoint: ", what));
}

Json UsagesJson(Usages usages) {
  return {{"rowwise", usages.rowwise}, {"columnwise", usages.columnwise}};
}

Json ParameterJson(const Parameter& parameter, const TrainedParameter& trained) {
  const bool is_quantized = parameter.is_quantized();
  const QuantizedTensor& quantized = parameter.quantized;
  const DType dtype = is_quantized ? quantized.source_dtype : parameter.value.dtype();
  Json json = {{"dtype", std::string(DTypeName(dtype))},
               {"shape", is_quantized ? quantized.shape : parameter.value.shape()},
               {"has_momentum", trained.momentum.has_value()},
               {"has_main_gradient", trained.has_main_gradient}};
  if (is_quantized) {
    json["usages"] = UsagesJson(quantized.usages());
    json["is_hybrid"] = quantized.is_hybrid;
  }
  if (trained.gradient.has_value()) {
    json["gradient"] = std::string(DTypeName(trained.gradient.dtype()));
  }
  return json;
}

Json LayerStateJson(SessionLayerState& layer) {
  Json json = {
      {"parameters", Json::object()}, {"delayed", Json::object()}, {"workspaces", Json::object()}};
  for (const auto& [name, parameter] : layer.state.parameters) {
    json["parameters"][name] = ParameterJson(parameter, layer.trained[name]);
  }
  for (const auto& [name, delayed] : layer.state.delayed) {
    json["delayed"][name] = delayed.amax_history.element_count();
  }
  for (const auto& [name, workspace] : layer.state.workspaces) {
    const QuantizedTensor& quantized = workspace.quantized;
    json["workspaces"][name] = {{"usages", UsagesJson(quantized.usages())},
                                {"is_hybrid", quantized.is_hybrid}};
  }
  return json;
}

Json StateJson(SessionState& state) {
  Json layers = Json::array();
  for (SessionLayerState& layer : state.layers) layers.push_back(LayerStateJson(layer));
  return {{"layers", layers},
          {"step_count", state.step_count},
          {"optimizer_steps", state.optimizer_steps},
          {"next_call_id", state.next_call_id}};
}

/// Reads a checkpoint into a state whose tensors are outlines first: what must be there, of which
/// type. Then the file's tensors take their places.
class CheckpointReader {
 public:
  CheckpointReader(Engine& engine, const SessionSpec& spec, const TensorFile& file,
                   const Cancellation* cancellation)
      : engine_(engine), spec_(spec), file_(file), cancellation_(cancellation) {}

  absl::StatusOr<SessionState> Read();

 private:
  absl::StatusOr<Json> Metadata(const char* key) const;
  absl::StatusOr<int64_t> Number(const Json& json, const char* key, int64_t max) const;
  absl::StatusOr<bool> Flag(const Json& json, const char* key) const;
  absl::StatusOr<DType> Type(const Json& json, const char* key) const;
  absl::StatusOr<Shape> ShapeOf(const Json& json, DType dtype, const std::string& path) const;
  absl::Status ReadProgress(const Json& json, SessionState& state) const;
  absl::Status OutlineLayer(const Json& json, size_t index, SessionLayerState& layer) const;
  absl::Status OutlineParameter(const Json& json, const std::string& path, const std::string& name,
                                SessionLayerState& layer) const;
  absl::Status OutlineTrained(const Json& json, const std::string& name, DType dtype,
                              const Shape& shape, SessionLayerState& layer) const;
  absl::StatusOr<QuantizedTensor> OutlineQuantized(const Json& json, const std::string& path,
                                                   DType dtype, const Shape& shape) const;
  absl::Status Fill(SessionState& state) const;
  void ShareBf16Masters(SessionState& state) const;

  Engine& engine_;
  const SessionSpec& spec_;
  const TensorFile& file_;
  const Cancellation* const cancellation_;
  std::optional<Recipe> recipe_;  ///< The checkpoint's own.
};

absl::StatusOr<Json> CheckpointReader::Metadata(const char* key) const {
  const auto found = file_.metadata.find(key);
  if (found == file_.metadata.end()) {
    return Malformed(absl::StrCat("metadata \"", key,
                                  "\" is absent; a session's checkpoint has "
                                  "it"));
  }
  Json json = Json::parse(found->second, nullptr, false);
  if (!json.is_object()) return Malformed(absl::StrCat("metadata \"", key, "\" is no JSON object"));
  return json;
}

absl::StatusOr<int64_t> CheckpointReader::Number(const Json& json, const char* key,
                                                 int64_t max) const {
  const auto found = json.find(key);
  const bool is_number = found != json.end() && found->is_number_unsigned() &&
                         found->get<uint64_t>() <= static_cast<uint64_t>(max);
  if (is_number) return found->get<int64_t>();
  return Malformed(absl::StrCat(key, " must be an integer from 0 to ", max));
}

absl::StatusOr<bool> CheckpointReader::Flag(const Json& json, const char* key) const {
  const auto found = json.find(key);
  if (found != json.end() && found->is_boolean()) return found->get<bool>();
  return Malformed(absl::StrCat(key, " must be true or false"));
}

absl::StatusOr<DType> CheckpointReader::Type(const Json& json, const char* key) const {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_string()) {
    return Malformed(absl::StrCat(key, " must name a dtype"));
  }
  QG_ASSIGN_OR_RETURN(const DType dtype, ParseDType(found->get<std::string>()));
  if (IsHighPrecision(dtype)) return dtype;
  return Malformed(absl::StrCat(key, ": ", found->get<std::string>(), "; f32, bf16 or f16"));
}

absl::StatusOr<Shape> CheckpointReader::ShapeOf(const Json& json, DType dtype,
                                                const std::string& path) const {
  const auto found = json.find("shape");
  if (found == json.end() || !found->is_array() || found->empty() || found->size() > kRankMax) {
    return Malformed(absl::StrCat(path, ".shape must have 1 to ", kRankMax, " dims"));
  }
  Shape shape;
  for (const Json& dim : *found) {
    if (!dim.is_number_unsigned() ||
        dim.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) {
      return Malformed(absl::StrCat(path, ".shape must have integers from 0 on"));
    }
    shape.push_back(dim.get<int64_t>());
  }
  QG_RETURN_IF_ERROR(CheckedElementCount(shape, dtype, path).status());
  return shape;
}

absl::StatusOr<QuantizedTensor> CheckpointReader::OutlineQuantized(const Json& json,
                                                                   const std::string& path,
                                                                   DType dtype,
                                                                   const Shape& shape) const {
  const Quantizer& quantizer = recipe_->QuantizerFor(TensorRole::kWeight);
  const auto usages_json = json.find("usages");
  if (usages_json == json.end() || !usages_json->is_object()) {
    return Malformed(absl::StrCat(path, ".usages is absent"));
  }
  Usages usages;
  QG_ASSIGN_OR_RETURN(usages.rowwise, Flag(*usages_json, "rowwise"));
  QG_ASSIGN_OR_RETURN(usages.columnwise, Flag(*usages_json, "columnwise"));
  if (!usages.rowwise && !usages.columnwise) {
    return Malformed(absl::StrCat(path, ".usages: none; a quantized weight has one at least"));
  }
  QG_RETURN_IF_ERROR(CheckQuantization(dtype, shape, quantizer, usages));
  QuantizedTensor quantized;
  quantized.source_dtype = dtype;
  quantized.shape = shape;
  QG_ASSIGN_OR_RETURN(quantized.is_hybrid, Flag(json, "is_hybrid"));
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    if (usage == Usage::kRowwise ? !usages.rowwise : !usages.columnwise) continue;
    QG_ASSIGN_OR_RETURN(quantized.copy(usage),
                        OutlineCopy(quantizer.spec(usage), usage, dtype, shape));
    if (quantizer.spec(usage).format != QuantizerFormat::kFp8Tensor) continue;
    QG_ASSIGN_OR_RETURN(quantized.scale, OutlineTensor(DType::kF32, {1}));
  }
  return quantized;
}

absl::Status CheckpointReader::OutlineTrained(const Json& json, const std::string& name,
                                              DType dtype, const Shape& shape,
                                              SessionLayerState& layer) const {
  TrainedParameter& trained = layer.trained[name];
  const auto outline = [&](bool is_held, DType type, Tensor& tensor) -> absl::Status {
    if (!is_held) return absl::OkStatus();
    QG_ASSIGN_OR_RETURN(tensor, OutlineTensor(type, shape));
    return absl::OkStatus();
  };
  const bool has_remainder = spec_.masters == Masters::kBf16Remainder;
  const bool is_adam = spec_.optimizer.kind == OptimizerSpec::Kind::kAdam;
  QG_RETURN_IF_ERROR(outline(spec_.masters == Masters::kF32, DType::kF32, trained.master));
  const bool is_quantized = layer.state.parameters.at(name).is_quantized();
  QG_RETURN_IF_ERROR(outline(has_remainder && is_quantized, DType::kBF16, trained.split.parameter));
  QG_RETURN_IF_ERROR(outline(has_remainder, DType::kI16, trained.split.remainder));
  QG_RETURN_IF_ERROR(outline(is_adam, DType::kF32, trained.exp_avg));
  QG_RETURN_IF_ERROR(outline(is_adam, DType::kF32, trained.exp_avg_sq));
  QG_ASSIGN_OR_RETURN(const bool has_momentum, Flag(json, "has_momentum"));
  QG_RETURN_IF_ERROR(outline(has_momentum, DType::kF32, trained.momentum));
  QG_ASSIGN_OR_RETURN(trained.has_main_gradient, Flag(json, "has_main_gradient"));
  const bool has_main_grad = spec_.main_grads && IsWeight(name);
  if (trained.has_main_gradient && !has_main_grad) {
    return Malformed(absl::StrCat(name, ".has_main_gradient: true, of a parameter without one"));
  }
  if (has_main_grad) {
    QG_ASSIGN_OR_RETURN(layer.state.main_grads[name], OutlineTensor(DType::kF32, shape));
  }
  if (!json.contains("gradient")) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(const DType gradient, Type(json, "gradient"));
  return outline(true, gradient, trained.gradient);
}

absl::Status CheckpointReader::OutlineParameter(const Json& json, const std::string& path,
                                                const std::string& name,
                                                SessionLayerState& layer) const {
  if (!json.is_object()) return Malformed(absl::StrCat(path, " is no JSON object"));
  QG_ASSIGN_OR_RETURN(const DType dtype, Type(json, "dtype"));
  QG_ASSIGN_OR_RETURN(const Shape shape, ShapeOf(json, dtype, path));
  Parameter& parameter = layer.state.parameters[name];
  if (spec_.weights == WeightStorage::kQuantized && IsWeight(name)) {
    QG_ASSIGN_OR_RETURN(parameter.quantized, OutlineQuantized(json, path, dtype, shape));
    parameter.quantizer = recipe_->QuantizerFor(TensorRole::kWeight);
  } else {
    QG_ASSIGN_OR_RETURN(parameter.value, OutlineTensor(dtype, shape));
  }
  return OutlineTrained(json, name, dtype, shape, layer);
}

absl::Status CheckpointReader::OutlineLayer(const Json& json, size_t index,
                                            SessionLayerState& layer) const {
  const std::string prefix = spec_.layers[index].name + ".";
  for (const char* part : {"parameters", "delayed", "workspaces"}) {
    if (json.is_object() && json.contains(part) && json[part].is_object()) continue;
    return Malformed(absl::StrCat("state of layer ", spec_.layers[index].name, ": no ", part));
  }
  for (const auto& [name, parameter] : json["parameters"].items()) {
    QG_RETURN_IF_ERROR(OutlineParameter(parameter, prefix + name, name, layer));
  }
  for (const auto& [name, length] : json["delayed"].items()) {
    QG_ASSIGN_OR_RETURN(const int64_t rows,
                        Number(json["delayed"], name.c_str(), kAmaxHistoryLengthMax));
    DelayedScalingState& delayed = layer.state.delayed[name];
    QG_ASSIGN_OR_RETURN(delayed.scale, OutlineTensor(DType::kF32, {1}));
    QG_ASSIGN_OR_RETURN(delayed.amax_history, OutlineTensor(DType::kF32, {rows}));
  }
  for (const auto& [name, workspace] : json["workspaces"].items()) {
    const auto parameter = layer.state.parameters.find(name);
    if (parameter == layer.state.parameters.end() || parameter->second.is_quantized() ||
        !workspace.is_object()) {
      return Malformed(absl::StrCat(prefix, name, ".workspace: of no high-precision weight"));
    }
    const Tensor& value = parameter->second.value;
    WeightWorkspace& kept = layer.state.workspaces[name];
    QG_ASSIGN_OR_RETURN(kept.quantized,
                        OutlineQuantized(workspace, prefix + name, value.dtype(), value.shape()));
    kept.quantizer = recipe_->QuantizerFor(TensorRole::kWeight);
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::ReadProgress(const Json& json, SessionState& state) const {
  constexpr int64_t kStepsMax = int64_t{1} << 53;  // Steps go on counting from here.
  QG_ASSIGN_OR_RETURN(state.step_count, Number(json, "step_count", kStepsMax));
  QG_ASSIGN_OR_RETURN(state.optimizer_steps, Number(json, "optimizer_steps", kStepsMax));
  QG_ASSIGN_OR_RETURN(state.next_call_id,
                      Number(json, "next_call_id", std::numeric_limits<uint32_t>::max()));
  return absl::OkStatus();
}

absl::Status CheckpointReader::Fill(SessionState& state) const {
  std::map<std::string, Tensor> tensors;
  for (const NamedTensor& tensor : file_.tensors) tensors[tensor.name] = tensor.tensor;
  absl::Status status;
  VisitTensors(spec_, state, [&](const std::string& name, Tensor& tensor) {
    if (!tensor.has_value() || !status.ok()) return;
    const auto found = tensors.find(name);
    if (found == tensors.end()) {
      status = Malformed(absl::StrCat("tensor ", name, " is absent"));
    } else if (found->second.dtype() != tensor.dtype() || found->second.shape() != tensor.shape()) {
      status = Malformed(absl::StrCat("tensor ", name, ": ", TensorText(found->second),
                                      "; it must be ", TensorText(tensor)));
    } else {
      absl::StatusOr<Tensor> moved = engine_.ToDevice(found->second, cancellation_);
      if (moved.ok()) tensor = *std::move(moved);
      status = moved.status();
      tensors.erase(found);
    }
  });
  QG_RETURN_IF_ERROR(status);
  if (tensors.empty()) return absl::OkStatus();
  return Malformed(absl::StrCat("tensor ", tensors.begin()->first,
                                "; this state has none of that "
                                "name"));
}

/// A bf16 parameter is the upper half of its master.
void CheckpointReader::ShareBf16Masters(SessionState& state) const {
  if (spec_.masters != Masters::kBf16Remainder) return;
  for (SessionLayerState& layer : state.layers) {
    for (const auto& [name, parameter] : layer.state.parameters) {
      if (!parameter.is_quantized()) layer.trained[name].split.parameter = parameter.value;
    }
  }
}

absl::StatusOr<SessionState> CheckpointReader::Read() {
  const auto version = file_.metadata.find(kVersionKey);
  if (version == file_.metadata.end() || version->second != kVersion) {
    return Malformed(absl::StrCat("metadata \"", kVersionKey, "\" must be \"", kVersion, "\""));
  }
  QG_ASSIGN_OR_RETURN(const Json spec, Metadata(kSpecKey));
  QG_ASSIGN_OR_RETURN(const Json json, Metadata(kStateKey));
  QG_RETURN_IF_ERROR(CheckSameSpec(spec, SessionSpecJson(spec_)));
  const auto recipe = file_.metadata.find(kRecipeKey);
  if (recipe == file_.metadata.end()) return Malformed("metadata \"recipe\" is absent");
  QG_ASSIGN_OR_RETURN(recipe_, Recipe::Parse(recipe->second));
  if (recipe_->name() != spec_.recipe.name()) {
    return absl::FailedPreconditionError(
        absl::StrCat("checkpoint: of recipe ", recipe_->ShortText(), ", this session's is ",
                     spec_.recipe.ShortText(), "; a session goes on under its own recipe"));
  }
  SessionState state{.recipe = *recipe_};
  QG_RETURN_IF_ERROR(ReadProgress(json, state));
  const auto layers = json.find("layers");
  if (layers == json.end() || !layers->is_array() || layers->size() != spec_.layers.size()) {
    return Malformed("state.layers: not as many as the spec has");
  }
  state.layers.resize(spec_.layers.size());
  for (size_t i = 0; i < state.layers.size(); ++i) {
    QG_RETURN_IF_ERROR(OutlineLayer((*layers)[i], i, state.layers[i]));
  }
  QG_RETURN_IF_ERROR(CheckSessionShapes(spec_, state));
  QG_RETURN_IF_ERROR(Fill(state));
  ShareBf16Masters(state);
  return state;
}

absl::Status CheckDelayed(Engine& engine, const SessionSpec& spec, const SessionState& state,
                          const Cancellation* cancellation) {
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    for (const auto& [name, delayed] : state.layers[i].state.delayed) {
      DelayedScalingState host;
      QG_ASSIGN_OR_RETURN(host.scale, engine.ToHost(delayed.scale, cancellation));
      QG_ASSIGN_OR_RETURN(host.amax_history, engine.ToHost(delayed.amax_history, cancellation));
      QG_RETURN_IF_ERROR(
          CheckDelayedScaling(host, absl::StrCat("checkpoint: ", spec.layers[i].name, ".", name)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TensorFile> TrainingSession::Checkpoint(const Cancellation* cancellation) {
  const State& session = *state_;
  SessionState state = session.now;
  if (!state.in_flight.empty()) {
    return WrongOrder(absl::StrCat("checkpoint: microbatch ", state.in_flight.begin()->first,
                                   " is in flight; its backward comes first"));
  }
  if (!state.deferred.empty()) {
    return WrongOrder("checkpoint: weight gradients are deferred; the wgrad step comes first");
  }
  TensorFile file;
  absl::Status status;
  VisitTensors(session.spec, state, [&](const std::string& name, Tensor& tensor) {
    if (!tensor.has_value() || !status.ok()) return;
    absl::StatusOr<Tensor> host = session.engine.ToHost(tensor, cancellation);
    if (host.ok()) file.tensors.push_back({name, *host});
    status = host.status();
  });
  QG_RETURN_IF_ERROR(status);
  file.metadata = {{kVersionKey, kVersion},
                   {kSpecKey, JsonText(SessionSpecJson(session.spec))},
                   {kRecipeKey, state.recipe.CanonicalText()},
                   {kStateKey, JsonText(StateJson(state))}};
  return file;
}

absl::StatusOr<std::unique_ptr<TrainingSession>> TrainingSession::Restore(
    Engine& engine, SessionSpec spec, const TensorFile& checkpoint,
    const Cancellation* cancellation, const SeededFaults& faults) {
  QG_RETURN_IF_ERROR(CheckSessionSpec(spec));
  if (spec.parallel.has_value()) {
    return absl::UnimplementedError(absl::StrCat(
        "parallel: ", spec.parallel->Label(), "; a session goes on from a checkpoint on one rank"));
  }
  QG_RETURN_IF_ERROR(engine.CheckArithmetic(spec.arithmetic));
  QG_ASSIGN_OR_RETURN(SessionState state,
                      CheckpointReader(engine, spec, checkpoint, cancellation).Read());
  QG_RETURN_IF_ERROR(CheckDelayed(engine, spec, state, cancellation));
  if (faults.Has(kFaultCheckpointRestartsRandomNumbers)) state.next_call_id = 0;
  for (SessionLayerState& layer : state.layers) {
    if (faults.Has(kFaultCheckpointDropsHistories)) layer.state.delayed.clear();
  }
  auto session = std::make_unique<State>(engine, std::move(spec), faults, std::move(state));
  if (session->now.recipe.CanonicalText() != session->spec.recipe.CanonicalText()) {
    SessionState changed = session->now;
    QG_RETURN_IF_ERROR(ApplyRecipe(*session, session->spec.recipe, cancellation, changed));
    session->now = std::move(changed);
  }
  return std::unique_ptr<TrainingSession>(new TrainingSession(std::move(session)));
}

}  // namespace quantgate
