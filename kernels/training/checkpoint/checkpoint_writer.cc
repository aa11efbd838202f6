#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/training/checkpoint/checkpoint_format.h"
#include "kernels/training/session_experts.h"
#include "kernels/training/sharding/state_sharding.h"

namespace quantgate {
namespace {

using Json = nlohmann::json;

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

std::map<std::string, std::string> Metadata(const SessionSpec& spec, const Recipe& recipe,
                                            const Json& state) {
  return {{kCheckpointVersionKey, kCheckpointVersion},
          {kCheckpointSpecKey, JsonText(SessionSpecJson(spec))},
          {kCheckpointRecipeKey, recipe.CanonicalText()},
          {kCheckpointStateKey, JsonText(state)}};
}

bool AllSame(std::span<const Tensor> tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [&](const Tensor& tensor) { return HaveSameBytes(tensor, tensors[0]); });
}

/// Joins the ranks' states into one, tensor by tensor.
class RanksWriter {
 public:
  RanksWriter(const SessionSpec& spec, std::vector<SessionState> ranks)
      : spec_(spec),
        tp_(static_cast<size_t>(spec.parallel->tensor_parallel)),
        ranks_(std::move(ranks)) {
    for (SessionState& state : ranks_) own_.push_back(HeldNames(spec_, state));
    JoinExperts(spec_, ranks_);
  }

  absl::StatusOr<TensorFile> Write();

 private:
  struct HeldTensor {
    TensorPlace place;
    std::string name;
    Tensor tensor;
  };

  absl::Status CollectTensors();
  absl::StatusOr<Json> JoinedStateJson();
  /// Absent if the parts cannot be joined, so that each rank's is its own.
  absl::StatusOr<std::optional<Tensor>> Join(size_t index);
  std::vector<Tensor> TensorsAt(size_t index) const;

  const SessionSpec& spec_;
  const size_t tp_;
  std::vector<SessionState> ranks_;            ///< With the experts of all ranks of a copy.
  std::vector<std::set<std::string>> own_;     ///< By rank, the names that it has itself.
  std::vector<std::vector<HeldTensor>> held_;  ///< By rank; the same names in the same order.
  const std::unique_ptr<Engine> host_ = MakeCpuEngine({.threads = 1});
};

absl::Status RanksWriter::CollectTensors() {
  for (SessionState& state : ranks_) {
    std::vector<HeldTensor>& held = held_.emplace_back();
    VisitPlaces(spec_, state,
                [&](const TensorPlace& place, const std::string& name, Tensor& tensor) {
                  if (tensor.has_value()) held.push_back({place, name, tensor});
                });
    const auto has_name = [](const HeldTensor& a, const HeldTensor& b) { return a.name == b.name; };
    if (std::equal(held.begin(), held.end(), held_[0].begin(), held_[0].end(), has_name)) continue;
    return absl::InternalError("checkpoint: the ranks of a session hold other tensors");
  }
  return absl::OkStatus();
}

std::vector<Tensor> RanksWriter::TensorsAt(size_t index) const {
  std::vector<Tensor> tensors;
  for (const auto& held : held_) tensors.push_back(held[index].tensor);
  return tensors;
}

absl::StatusOr<std::optional<Tensor>> RanksWriter::Join(size_t index) {
  using Kind = TensorPlace::Kind;
  const TensorPlace& place = held_[0][index].place;
  if (place.kind == Kind::kGradient && IsSummedByOptimizer(spec_, place.layer, place.parameter)) {
    return std::nullopt;
  }
  const std::optional<ShardRule> rule = StateShardRule(spec_, place);
  if (!rule.has_value()) return std::nullopt;
  const std::vector<Tensor> tensors = TensorsAt(index);
  if (rule->dim == -1) {
    return AllSame(tensors) ? std::optional<Tensor>(tensors[0]) : std::nullopt;
  }
  for (size_t rank = tp_; rank < tensors.size(); ++rank) {
    if (!HaveSameBytes(tensors[rank], tensors[rank % tp_])) return std::nullopt;
  }
  return JoinShards(*host_, {tensors.begin(), tensors.begin() + static_cast<int64_t>(tp_)}, *rule,
                    nullptr);
}

/// The JSON of one rank's state; all ranks' are equal except for the sizes of their parts.
absl::StatusOr<Json> RanksWriter::JoinedStateJson() {
  Json json = StateJson(ranks_[0]);
  for (size_t rank = 1; rank < ranks_.size(); ++rank) {
    if (StateJson(ranks_[rank]) == json) continue;
    return absl::InternalError("checkpoint: the ranks of a session have other states");
  }
  if (tp_ == 1) return json;
  for (size_t i = 0; i < spec_.layers.size(); ++i) {
    for (const auto& [name, parameter] : json["layers"][i]["parameters"].items()) {
      const ShardRule rule = ParameterShardRule(spec_.layers[i].spec, name);
      if (rule.dim == -1) continue;
      Json& dim = parameter["shape"][static_cast<size_t>(rule.dim)];
      dim = dim.get<int64_t>() * static_cast<int64_t>(tp_);
    }
  }
  return json;
}

absl::StatusOr<TensorFile> RanksWriter::Write() {
  QG_RETURN_IF_ERROR(CollectTensors());
  TensorFile file;
  QG_ASSIGN_OR_RETURN(const Json state, JoinedStateJson());
  file.metadata = Metadata(spec_, ranks_[0].recipe, state);
  for (size_t i = 0; i < held_[0].size(); ++i) {
    const std::string& name = held_[0][i].name;
    QG_ASSIGN_OR_RETURN(std::optional<Tensor> whole, Join(i));
    if (whole.has_value()) {
      file.tensors.push_back({name, *std::move(whole)});
      continue;
    }
    file.metadata[kCheckpointRanksKey] = RanksText(spec_);
    for (size_t rank = 0; rank < held_.size(); ++rank) {
      if (own_[rank].count(name) == 0) continue;
      file.tensors.push_back({RankPrefix(static_cast<int>(rank)) + name, held_[rank][i].tensor});
    }
  }
  return file;
}

}  // namespace

TensorFile WriteCheckpoint(const SessionSpec& spec, SessionState state) {
  TensorFile file;
  VisitTensors(spec, state, [&](const std::string& name, Tensor& tensor) {
    if (tensor.has_value()) file.tensors.push_back({name, tensor});
  });
  file.metadata = Metadata(spec, state.recipe, StateJson(state));
  return file;
}

absl::StatusOr<TensorFile> WriteCheckpointOfRanks(const SessionSpec& spec,
                                                  std::vector<SessionState> ranks) {
  return RanksWriter(spec, std::move(ranks)).Write();
}

}  // namespace quantgate
