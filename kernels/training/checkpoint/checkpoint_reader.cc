// Reads a checkpoint. First makes a state of outlines, which say what tensors of which dtypes and
// shapes this rank must have; then the file's tensors, or this rank's parts of them, replace the
// outlines. No number of the file is used before it is checked.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/base/refusal.h"
#include "kernels/quantize/quantized_outline.h"
#include "kernels/training/checkpoint/checkpoint_format.h"
#include "kernels/training/session_checks.h"
#include "kernels/training/session_experts.h"
#include "kernels/training/sharding/state_sharding.h"

namespace quantgate {
namespace {

using Json = nlohmann::json;

// How the names of scales end where each copy of a weight has one of its own.
constexpr char kRowwiseScale[] = ".rowwise_scale";
constexpr char kColumnwiseScale[] = ".columnwise_scale";

absl::Status Malformed(const std::string& what) { return Refuse("checkpoint", "", what); }

class CheckpointReader {
 public:
  CheckpointReader(Engine& engine, const SessionSpec& spec, const TensorFile& file,
                   const SessionRank* rank, const Cancellation* cancellation)
      : engine_(engine), spec_(spec), file_(file), rank_(rank), cancellation_(cancellation) {}

  absl::StatusOr<SessionState> Read();

 private:
  absl::StatusOr<Json> Metadata(const char* key) const;
  absl::StatusOr<int64_t> Number(const Json& json, const char* key, int64_t max) const;
  absl::StatusOr<bool> Flag(const Json& json, const char* key) const;
  absl::StatusOr<DType> Type(const Json& json, const char* key) const;
  absl::StatusOr<Shape> ShapeOf(const Json& json, DType dtype, const std::string& path) const;
  absl::Status ReadProgress(const Json& json, SessionState& state) const;
  absl::Status OutlineLayer(const Json& json, size_t index, SessionLayerState& layer) const;
  absl::Status OutlineParameter(const Json& json, size_t index, const std::string& name,
                                SessionLayerState& layer) const;
  absl::Status OutlineTrained(const Json& json, const std::string& name, DType dtype,
                              const Shape& shape, SessionLayerState& layer) const;
  absl::StatusOr<QuantizedTensor> OutlineQuantized(const Json& json, const std::string& path,
                                                   const Quantizer& quantizer, DType dtype,
                                                   const Shape& shape) const;
  Quantizer WeightQuantizer(size_t layer, const std::string& weight) const {
    return RecipeOfParameter(spec_.layers[layer].spec, *recipe_, weight)
        .QuantizerFor(TensorRole::kWeight);
  }
  int tp() const { return rank_ == nullptr ? 1 : spec_.parallel->tensor_parallel; }
  absl::Status CheckRanks() const;
  /// This rank's part of a parameter's shape.
  absl::Status Divide(size_t layer, const std::string& name, Shape& shape) const;
  /// `all`: the names that the file must have, including experts of other ranks.
  absl::Status Fill(const std::set<std::string>& all, SessionState& state) const;
  /// The tensor that replaces an outline, made of the file's tensor of that name.
  absl::StatusOr<Tensor> PartOf(const TensorPlace& place, const std::string& name,
                                const Tensor& whole) const;
  void ShareBf16Masters(SessionState& state) const;

  Engine& engine_;
  const SessionSpec& spec_;
  const TensorFile& file_;
  const SessionRank* const rank_;
  const Cancellation* const cancellation_;
  const std::unique_ptr<Engine> host_ = MakeCpuEngine({.threads = 1});
  std::optional<Recipe> recipe_;  ///< The recipe of the checkpoint.
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
                                                                   const Quantizer& quantizer,
                                                                   DType dtype,
                                                                   const Shape& shape) const {
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

absl::Status CheckpointReader::Divide(size_t layer, const std::string& name, Shape& shape) const {
  if (tp() == 1) return absl::OkStatus();
  const ShardRule rule = ParameterShardRule(spec_.layers[layer].spec, name);
  if (rule.dim == -1) return absl::OkStatus();
  const auto dim = static_cast<size_t>(rule.dim);
  const int64_t multiple = static_cast<int64_t>(rule.parts) * tp();
  if (dim >= shape.size() || shape[dim] % multiple != 0) {
    return Malformed(absl::StrCat(spec_.layers[layer].name, ".", name, ": [", ShapeText(shape),
                                  "]; dim ", dim, " must be a multiple of ", multiple, ", for ",
                                  tp(), " ranks of the tensor-parallel group"));
  }
  shape[dim] /= tp();
  return absl::OkStatus();
}

absl::Status CheckpointReader::OutlineParameter(const Json& json, size_t index,
                                                const std::string& name,
                                                SessionLayerState& layer) const {
  const std::string path = absl::StrCat(spec_.layers[index].name, ".", name);
  if (!json.is_object()) return Malformed(absl::StrCat(path, " is no JSON object"));
  QG_ASSIGN_OR_RETURN(const DType dtype, Type(json, "dtype"));
  QG_ASSIGN_OR_RETURN(Shape shape, ShapeOf(json, dtype, path));
  QG_RETURN_IF_ERROR(Divide(index, name, shape));
  Parameter& parameter = layer.state.parameters[name];
  if (spec_.weights == WeightStorage::kQuantized && IsWeight(name)) {
    parameter.quantizer = WeightQuantizer(index, name);
    QG_ASSIGN_OR_RETURN(parameter.quantized,
                        OutlineQuantized(json, path, parameter.quantizer, dtype, shape));
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
    QG_RETURN_IF_ERROR(OutlineParameter(parameter, index, name, layer));
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
    kept.quantizer = WeightQuantizer(index, name);
    QG_ASSIGN_OR_RETURN(kept.quantized, OutlineQuantized(workspace, prefix + name, kept.quantizer,
                                                         value.dtype(), value.shape()));
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

absl::StatusOr<Tensor> CheckpointReader::PartOf(const TensorPlace& place, const std::string& name,
                                                const Tensor& whole) const {
  const auto refuse = [&](const char* rule) {
    return RefusePrecondition(absl::StrCat("checkpoint[", name, "]"), "", rule);
  };
  const bool is_gradient = place.kind == TensorPlace::Kind::kGradient;
  if (is_gradient && IsSummedByOptimizer(spec_, place.layer, place.parameter)) {
    return refuse(
        "gradients since the last optimizer step; ranks that sum them in the optimizer step can "
        "continue only from their own");
  }
  const std::optional<ShardRule> rule = StateShardRule(spec_, place);
  if (!rule.has_value()) {
    return refuse("scales of blocks, and no rank's part begins and ends at one");
  }
  if (tp() == 1) return whole;
  return ShardOf(*host_, absl::StrCat("checkpoint[", name, "]"), whole, *rule, rank_->index % tp(),
                 tp());
}

absl::Status CheckpointReader::Fill(const std::set<std::string>& all, SessionState& state) const {
  std::map<std::string, Tensor> tensors;
  for (const NamedTensor& tensor : file_.tensors) tensors[tensor.name] = tensor.tensor;
  const bool has_ranks = file_.metadata.count(kCheckpointRanksKey) != 0;
  const std::string prefix = has_ranks ? RankPrefix(rank_->index) : "";
  const auto has = [&](const std::string& name) {
    return tensors.count(name) != 0 || (has_ranks && tensors.count(prefix + name) != 0);
  };
  const auto fill = [&](const TensorPlace& place, const std::string& of_state,
                        Tensor& tensor) -> absl::Status {
    std::string name = of_state;
    if (place.kind == TensorPlace::Kind::kScale && !has(name)) {
      // A checkpoint of a time when two copies had one scale has that of the rowwise one.
      if (absl::EndsWith(name, kColumnwiseScale)) {
        tensor = Tensor();
        return absl::OkStatus();
      }
      const bool is_rowwise = absl::EndsWith(name, kRowwiseScale);
      if (is_rowwise) name = absl::StrCat(absl::StripSuffix(name, kRowwiseScale), ".scale");
    }
    auto found = has_ranks ? tensors.find(prefix + name) : tensors.end();
    const bool is_own = found != tensors.end();
    if (!is_own) found = tensors.find(name);
    if (found == tensors.end()) return Malformed(absl::StrCat("tensor ", name, " is absent"));
    Tensor part = found->second;
    // Safetensors names several types alike: FP6 codes come back as U8.
    if (TraitsOf(part.dtype()).safetensors == TraitsOf(tensor.dtype()).safetensors) {
      QG_ASSIGN_OR_RETURN(part, part.Reinterpret(tensor.dtype(), part.shape()));
    }
    if (!is_own) {
      QG_ASSIGN_OR_RETURN(part, PartOf(place, name, part));
    }
    if (part.dtype() != tensor.dtype() || part.shape() != tensor.shape()) {
      return Malformed(absl::StrCat("tensor ", name, ": ", TensorText(part), "; it must be ",
                                    TensorText(tensor)));
    }
    QG_ASSIGN_OR_RETURN(tensor, engine_.ToDevice(part, cancellation_));
    tensors.erase(found);
    return absl::OkStatus();
  };
  absl::Status status;
  VisitPlaces(spec_, state, [&](const TensorPlace& place, const std::string& name, Tensor& tensor) {
    if (tensor.has_value() && status.ok()) status = fill(place, name, tensor);
  });
  QG_RETURN_IF_ERROR(status);
  const std::set<std::string> own = HeldNames(spec_, state);
  for (const auto& [name, tensor] : tensors) {
    // The tensor is another rank's own.
    if (has_ranks && absl::StartsWith(name, "rank") && !absl::StartsWith(name, prefix)) continue;
    if (all.count(name) != 0 && own.count(name) == 0) continue;
    return Malformed(absl::StrCat("tensor ", name, "; this state has none of that name"));
  }
  return absl::OkStatus();
}

/// Makes every bf16 parameter the upper half of its master.
void CheckpointReader::ShareBf16Masters(SessionState& state) const {
  if (spec_.masters != Masters::kBf16Remainder) return;
  for (SessionLayerState& layer : state.layers) {
    for (const auto& [name, parameter] : layer.state.parameters) {
      if (!parameter.is_quantized()) layer.trained[name].split.parameter = parameter.value;
    }
  }
}

/// Checks that tensors which are each rank's own belong to this session's ranks.
absl::Status CheckpointReader::CheckRanks() const {
  const auto ranks = file_.metadata.find(kCheckpointRanksKey);
  if (ranks == file_.metadata.end()) return absl::OkStatus();
  const std::string own = rank_ == nullptr ? "one rank" : RanksText(spec_);
  if (rank_ != nullptr && ranks->second == own) return absl::OkStatus();
  const auto first = std::find_if(
      file_.tensors.begin(), file_.tensors.end(),
      [](const NamedTensor& tensor) { return absl::StartsWith(tensor.name, RankPrefix(0)); });
  return RefusePrecondition(
      "checkpoint", absl::StrCat("of ranks ", ranks->second),
      absl::StrCat(
          "each of them has its own ",
          first == file_.tensors.end() ? "tensors" : first->name.substr(RankPrefix(0).size()),
          "; this session is on ", own, ", and only the same ranks can continue from such a file"));
}

absl::StatusOr<SessionState> CheckpointReader::Read() {
  const auto version = file_.metadata.find(kCheckpointVersionKey);
  if (version == file_.metadata.end()) {
    return Malformed(absl::StrCat("no checkpoint of a session: its metadata has no \"",
                                  kCheckpointVersionKey, "\""));
  }
  if (version->second != kCheckpointVersion) {
    return Malformed(absl::StrCat("metadata \"", kCheckpointVersionKey, "\" must be \"",
                                  kCheckpointVersion, "\""));
  }
  QG_ASSIGN_OR_RETURN(const Json spec, Metadata(kCheckpointSpecKey));
  QG_ASSIGN_OR_RETURN(const Json json, Metadata(kCheckpointStateKey));
  QG_RETURN_IF_ERROR(CheckSameSpec(spec, SessionSpecJson(spec_)));
  const auto recipe = file_.metadata.find(kCheckpointRecipeKey);
  if (recipe == file_.metadata.end()) return Malformed("metadata \"recipe\" is absent");
  absl::StatusOr<Recipe> written = Recipe::ParseStored(recipe->second);
  if (!written.ok()) {
    return Malformed(absl::StrCat("metadata \"recipe\": ", written.status().message(),
                                  "; no session can run that recipe or continue from it"));
  }
  recipe_ = *std::move(written);
  if (recipe_->name() != spec_.recipe.name()) {
    return RefusePrecondition(
        "checkpoint", "of recipe " + recipe_->ShortText(),
        absl::StrCat("this session's is ", spec_.recipe.ShortText(),
                     "; a session continues under the recipe of its checkpoint"));
  }
  QG_RETURN_IF_ERROR(CheckRanks());
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
  QG_RETURN_IF_ERROR(CheckSessionShapes(spec_, state, rank_ == nullptr ? nullptr : rank_->step));
  const std::set<std::string> all = HeldNames(spec_, state);
  KeepOwnExperts(spec_, rank_, state.layers);
  QG_RETURN_IF_ERROR(Fill(all, state));
  ShareBf16Masters(state);
  return state;
}

}  // namespace

absl::StatusOr<SessionState> ReadCheckpoint(Engine& engine, const SessionSpec& spec,
                                            const TensorFile& file, const SessionRank* rank,
                                            const Cancellation* cancellation) {
  return CheckpointReader(engine, spec, file, rank, cancellation).Read();
}

}  // namespace quantgate
