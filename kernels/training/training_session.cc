#include "kernels/training/training_session.h"

#include <algorithm>
#include <initializer_list>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/refusal.h"
#include "kernels/engine/engine.h"
#include "kernels/layer/experts/stacked_experts.h"
#include "kernels/training/held_codes.h"
#include "kernels/training/parallel/parallel_checks.h"
#include "kernels/training/parallel/parallel_session.h"
#include "kernels/training/parameter_update.h"
#include "kernels/training/session_checks.h"
#include "kernels/training/session_experts.h"
#include "kernels/training/session_faults.h"
#include "kernels/training/session_state.h"
#include "kernels/training/session_step_run.h"
#include "kernels/training/sharding/division.h"

namespace quantgate {
namespace {

/// "fc1.weight" of layer "fc1": "weight"; absent for another layer's.
std::optional<std::string> NameWithin(const SessionLayer& layer, const std::string& name) {
  const std::string prefix = layer.name + ".";
  if (name.compare(0, prefix.size(), prefix) != 0) return std::nullopt;
  return name.substr(prefix.size());
}

/// Whether it is a tensor of the session itself, which may be given instead of starting at zero.
bool IsTrained(const std::string& name) {
  for (const char* last : {"main_grad", "exp_avg", "exp_avg_sq"}) {
    if (WithLastWord(name, last) == name) return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<std::set<size_t>> UnstackParameters(const SessionSpec& spec,
                                                   std::map<std::string, Tensor>& parameters) {
  std::set<size_t> stacked;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const SessionLayer& layer = spec.layers[i];
    if (!layer.spec.traits().has_experts) continue;
    for (const std::string word : {"weight", "main_grad"}) {
      const std::string name = absl::StrCat(layer.name, ".", word);
      if (!parameters.contains(name)) continue;
      std::map<std::string, Tensor> within;
      for (const auto& [other, tensor] : parameters) {
        const std::optional<std::string> own = NameWithin(layer, other);
        if (own.has_value()) within[*own] = tensor;
      }
      if (absl::Status status = UnstackExperts(layer.spec, "parameters", within, word);
          !status.ok()) {
        return AsField(absl::StrCat("parameters[", name, "]"), status);
      }
      parameters.erase(name);
      for (const auto& [own, tensor] : within) {
        parameters[absl::StrCat(layer.name, ".", own)] = tensor;
      }
      if (word == "weight") stacked.insert(i);
    }
  }
  return stacked;
}

absl::Status SortParameters(const SessionSpec& spec,
                            const std::map<std::string, Tensor>& parameters, SessionState& state) {
  for (const auto& [name, tensor] : parameters) {
    if (IsTrained(name)) continue;
    bool is_taken = false;
    for (size_t i = 0; i < spec.layers.size() && !is_taken; ++i) {
      const std::optional<std::string> within = NameWithin(spec.layers[i], name);
      if (!within.has_value()) continue;
      state.layers[i].state.parameters[*within].value = tensor;
      is_taken = true;
    }
    if (!is_taken) {
      return Refuse(absl::StrCat("parameters[", name, "]"), "given",
                    "no layer has a parameter of that name; names are LAYER.PARAMETER");
    }
  }
  return absl::OkStatus();
}

namespace {

absl::Status MakeTrained(Engine& engine, const SessionSpec& spec, SessionLayerState& layer,
                         const Cancellation* cancellation) {
  for (auto& [name, parameter] : layer.state.parameters) {
    QG_ASSIGN_OR_RETURN(parameter.value, engine.ToDevice(parameter.value, cancellation));
    TrainedParameter& trained = layer.trained[name];
    const Shape shape = parameter.value.shape();
    if (spec.optimizer.kind == OptimizerSpec::Kind::kAdam) {
      QG_ASSIGN_OR_RETURN(trained.exp_avg, Zeros(engine, shape, cancellation));
      QG_ASSIGN_OR_RETURN(trained.exp_avg_sq, Zeros(engine, shape, cancellation));
    }
    if (spec.main_grads && IsWeight(name)) {
      QG_ASSIGN_OR_RETURN(layer.state.main_grads[name], Zeros(engine, shape, cancellation));
    }
  }
  return absl::OkStatus();
}

/// Puts given tensors in place of the zeros that a session starts with.
absl::Status PutTrained(Engine& engine, const SessionSpec& spec,
                        const std::map<std::string, Tensor>& parameters, SessionState& state,
                        const Cancellation* cancellation) {
  std::map<std::string, Tensor*> slots;
  VisitTensors(spec, state, [&](const std::string& name, Tensor& tensor) {
    if (tensor.has_value()) slots[name] = &tensor;
  });
  for (const auto& [name, given] : parameters) {
    if (!IsTrained(name)) continue;
    const auto slot = slots.find(name);
    if (slot == slots.end()) {
      return Refuse(absl::StrCat("parameters[", name, "]"), "given",
                    "this session keeps no such tensor");
    }
    Tensor& tensor = *slot->second;
    if (given.dtype() != tensor.dtype() || given.shape() != tensor.shape()) {
      return Refuse(absl::StrCat("parameters[", name, "]"), TensorText(given),
                    absl::StrCat("it must be ", TensorText(tensor)));
    }
    QG_ASSIGN_OR_RETURN(tensor, engine.ToDevice(given, cancellation));
  }
  return absl::OkStatus();
}

/// The value whose name is `name`; INVALID_ARGUMENT listing the names.
template <typename Value>
absl::StatusOr<Value> Parse(const char* field, std::string_view name,
                            std::initializer_list<Value> values,
                            std::string_view (*name_of)(Value)) {
  std::vector<std::string> names;
  for (const Value value : values) {
    if (name_of(value) == name) return value;
    names.emplace_back(name_of(value));
  }
  return Refuse(field, absl::StrCat("\"", std::string(name.substr(0, 64)), "\""),
                absl::StrCat("unknown name; known: ", absl::StrJoin(names, ", ")));
}

}  // namespace

OneRankSession::OneRankSession(std::unique_ptr<State> state) : state_(std::move(state)) {}
OneRankSession::~OneRankSession() = default;

const Recipe& OneRankSession::recipe() const { return state_->now.recipe; }
int64_t OneRankSession::step_count() const { return state_->now.step_count; }

std::vector<std::string> OneRankSession::microbatches() const {
  std::vector<std::string> names;
  for (const auto& [name, flight] : state_->now.in_flight) names.push_back(name);
  return names;
}

absl::StatusOr<std::unique_ptr<Session>> OpenSession(
    Engine& engine, SessionSpec spec, const std::map<std::string, Tensor>& parameters,
    const RankSetting* setting, const Cancellation* cancellation, const CodesByName& codes) {
  if (spec.parallel.has_value()) {
    QG_RETURN_IF_ERROR(CheckHeldCodes(spec, codes));
    std::map<std::string, Tensor> of_experts = parameters;
    QG_RETURN_IF_ERROR(UnstackParameters(spec, of_experts).status());
    return ParallelSession::Open(engine, std::move(spec), of_experts, setting, cancellation);
  }
  return OneRankSession::Open(engine, std::move(spec), parameters, cancellation,
                              setting == nullptr ? SeededFaults() : setting->faults, nullptr,
                              codes);
}

absl::StatusOr<std::unique_ptr<OneRankSession>> OneRankSession::Open(
    Engine& engine, SessionSpec spec, const std::map<std::string, Tensor>& given,
    const Cancellation* cancellation, const SeededFaults& faults,
    std::shared_ptr<const SessionRank> rank, const CodesByName& codes) {
  if (rank == nullptr) QG_RETURN_IF_ERROR(CheckOneRank(spec));
  if (spec.recipe.is_delayed() && faults.Has(kFaultOverrideIgnoredUnderDelayed)) {
    spec.recipe = spec.recipe.WithBackwardOverride(BackwardOverride::kNone);
  }
  NameLayers(spec);
  if (faults.Has(kFaultRulesOfFirstLayer)) {
    for (SessionLayer& layer : spec.layers) layer.spec.name = spec.layers.front().name;
  }
  QG_RETURN_IF_ERROR(CheckSessionSpec(spec));
  QG_RETURN_IF_ERROR(engine.CheckArithmetic(spec.arithmetic));
  SessionState state{.recipe = spec.recipe};
  state.layers.resize(spec.layers.size());
  std::map<std::string, Tensor> parameters = given;
  QG_ASSIGN_OR_RETURN(std::set<size_t> stacked, UnstackParameters(spec, parameters));
  QG_RETURN_IF_ERROR(CheckHeldCodes(spec, codes));
  QG_ASSIGN_OR_RETURN(const auto values, ValuesOfHeld(engine, codes, cancellation));
  QG_RETURN_IF_ERROR(SortParameters(spec, parameters, state));
  QG_RETURN_IF_ERROR(SortParameters(spec, values, state));
  QG_RETURN_IF_ERROR(CheckSessionShapes(spec, state, rank == nullptr ? nullptr : rank->step));
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    SessionLayerState& layer = state.layers[i];
    QG_RETURN_IF_ERROR(MakeTrained(engine, spec, layer, cancellation));
    ParameterUpdate update(engine, spec, i, spec.recipe, faults, cancellation, rank.get());
    QG_RETURN_IF_ERROR(InLayer(spec.layers[i], update.Begin(layer)));
  }
  QG_RETURN_IF_ERROR(HoldCodes(engine, spec, codes, cancellation, state));
  QG_RETURN_IF_ERROR(PutTrained(engine, spec, parameters, state, cancellation));
  QG_RETURN_IF_ERROR(CheckSessionRecipe(spec, state, spec.recipe, rank.get(), kAnyDType));
  KeepOwnExperts(spec, rank.get(), state.layers);
  QG_RETURN_IF_ERROR(
      Division(engine, spec, rank.get(), faults, cancellation).Divide(spec.recipe, state.layers));
  auto opened =
      std::make_unique<State>(engine, std::move(spec), faults, std::move(state), std::move(rank));
  opened->stacked_layers = std::move(stacked);
  return std::unique_ptr<OneRankSession>(new OneRankSession(std::move(opened)));
}

std::shared_ptr<const SessionState> OneRankSession::Snapshot() const {
  return std::make_shared<const SessionState>(state_->now);
}

void OneRankSession::RestoreSnapshot(const std::shared_ptr<const SessionState>& moment) {
  state_->now = *moment;
}

std::function<void()> OneRankSession::RestorePoint() {
  return [this, moment = Snapshot()] { RestoreSnapshot(moment); };
}

absl::StatusOr<KeptForward> OneRankSession::KeepForward(const std::string& microbatch) {
  QG_ASSIGN_OR_RETURN(const auto flight, FindInFlight(state_->now, microbatch, false));
  std::vector<DelayedStates> delayed;
  for (LayerState& layer : LayersUnder(state_->now, flight->recipe_number)) {
    delayed.push_back(std::move(layer.delayed));
  }
  const auto put_into = [flight, delayed, microbatch](SessionState& state) {
    // A number that no recipe has yet: those of the session's own are not negative.
    const bool is_first = state.retired_delayed.empty();
    const int64_t number =
        std::min<int64_t>(is_first ? 0 : state.retired_delayed.begin()->first, 0) - 1;
    auto kept = std::make_shared<InFlight>(*flight);
    kept->recipe_number = number;
    state.retired_delayed[number] = delayed;
    state.in_flight[microbatch] = std::move(kept);
  };
  KeptForward kept;
  kept.put = [this, microbatch, put_into]() -> absl::Status {
    SessionState next = state_->now;
    QG_RETURN_IF_ERROR(FindInFlight(next, microbatch, false).status());
    put_into(next);
    state_->now = std::move(next);
    return absl::OkStatus();
  };
  kept.bytes_beside = [this, put_into] {
    SessionState alone{.recipe = state_->now.recipe};
    put_into(alone);
    return BytesBeside(state_->spec, state_->now, alone);
  };
  return kept;
}

int64_t OneRankSession::bytes() const { return BytesOf(state_->spec, state_->now); }

SavedMemory OneRankSession::saved_memory() const {
  return SavedMemoryOf(state_->spec, state_->now);
}

void OneRankSession::LimitBytes(int64_t bytes_max) { state_->bytes_max = bytes_max; }

absl::StatusOr<std::vector<StateTensor>> OneRankSession::Describe(
    const Cancellation* cancellation) {
  SessionState state = state_->now;
  std::vector<StateTensor> tensors;
  std::vector<Tensor> held;
  VisitHeldTensors(state_->spec, state, [&](const std::string& name, Tensor& tensor) {
    tensors.push_back({name, tensor.dtype(), tensor.shape(), {}});
    held.push_back(tensor);
  });
  QG_ASSIGN_OR_RETURN(const std::vector<Fingerprint> fingerprints,
                      state_->engine.FingerprintsOf(held, cancellation));
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].fingerprint = fingerprints[i];
  return tensors;
}

absl::StatusOr<Tensor> OneRankSession::Find(const std::string& name,
                                            const Cancellation* cancellation) {
  SessionState state = state_->now;
  for (size_t i = 0; i < state.layers.size(); ++i) {
    for (const auto& [parameter_name, parameter] : state.layers[i].state.parameters) {
      if (absl::StrCat(state_->spec.layers[i].name, ".", parameter_name) != name) continue;
      if (!parameter.is_quantized()) return parameter.value;
      const QuantizedTensor& quantized = parameter.quantized;
      const Usage usage = quantized.rowwise.has_value() ? Usage::kRowwise : Usage::kColumnwise;
      return state_->engine.Dequantize(quantized, usage, quantized.source_dtype, cancellation);
    }
  }
  Tensor found;
  VisitHeldTensors(state_->spec, state, [&](const std::string& candidate, Tensor& tensor) {
    if (candidate == name) found = tensor;
  });
  if (found.has_value()) return found;
  for (const size_t layer : state_->stacked_layers) {
    const SessionLayer& of = state_->spec.layers[layer];
    const std::optional<std::string> within = NameWithin(of, name);
    if (!within.has_value() || (*within != "weight" && *within != "main_grad")) continue;
    std::vector<Tensor> experts;
    for (size_t expert = 0; expert < of.spec.m_splits.size(); ++expert) {
      QG_ASSIGN_OR_RETURN(experts.emplace_back(),
                          Find(absl::StrCat(name, ".", expert), cancellation));
    }
    return StackExperts(state_->engine, experts, cancellation);
  }
  return StatusOf({.code = absl::StatusCode::kNotFound,
                   .field = "tensor",
                   .value = name,
                   .rule = "the session has none of that name"});
}

std::string_view WeightStorageName(WeightStorage weights) {
  return weights == WeightStorage::kQuantized ? "quantized" : "high_precision";
}

std::string_view MastersName(Masters masters) {
  if (masters == Masters::kNone) return "none";
  return masters == Masters::kF32 ? "f32" : "bf16_remainder";
}

std::string_view RequantizationName(Requantization requantization) {
  return requantization == Requantization::kFromF32 ? "from_f32" : "through_bf16";
}

absl::StatusOr<WeightStorage> ParseWeightStorage(std::string_view name) {
  return Parse("weights", name, {WeightStorage::kHighPrecision, WeightStorage::kQuantized},
               WeightStorageName);
}

absl::StatusOr<Masters> ParseMasters(std::string_view name) {
  return Parse("masters", name, {Masters::kNone, Masters::kF32, Masters::kBf16Remainder},
               MastersName);
}

absl::StatusOr<Requantization> ParseRequantization(std::string_view name) {
  return Parse("requantization", name, {Requantization::kFromF32, Requantization::kThroughBf16},
               RequantizationName);
}

}  // namespace quantgate
