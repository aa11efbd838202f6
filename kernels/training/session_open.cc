#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/refusal.h"
#include "kernels/engine/engine.h"
#include "kernels/training/parallel/parallel_checks.h"
#include "kernels/training/parallel/parallel_session.h"
#include "kernels/training/parameter_update.h"
#include "kernels/training/session_checks.h"
#include "kernels/training/session_experts.h"
#include "kernels/training/session_faults.h"
#include "kernels/training/session_state.h"
#include "kernels/training/sharding/division.h"

namespace quantgate {
namespace {

/// "fc1.weight" of layer "fc1": "weight"; absent for another layer's.
std::optional<std::string> NameWithin(const SessionLayer& layer, const std::string& name) {
  const std::string prefix = layer.name + ".";
  if (name.compare(0, prefix.size(), prefix) != 0) return std::nullopt;
  return name.substr(prefix.size());
}

/// The session's own tensors, which may be given in place of zeros.
bool IsTrained(const std::string& name) {
  for (const char* last : {"main_grad", "exp_avg", "exp_avg_sq"}) {
    if (WithLastWord(name, last) == name) return true;
  }
  return false;
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

/// Tensors given in place of the zeros that a session starts with.
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

}  // namespace

TrainingSession::TrainingSession(std::unique_ptr<State> state) : state_(std::move(state)) {}
TrainingSession::~TrainingSession() = default;

const Recipe& TrainingSession::recipe() const { return state_->now.recipe; }
int64_t TrainingSession::step_count() const { return state_->now.step_count; }

std::vector<std::string> TrainingSession::microbatches() const {
  std::vector<std::string> names;
  for (const auto& [name, flight] : state_->now.in_flight) names.push_back(name);
  return names;
}

absl::StatusOr<std::unique_ptr<Session>> OpenSession(
    Engine& engine, SessionSpec spec, const std::map<std::string, Tensor>& parameters,
    const RankSetting* setting, const Cancellation* cancellation) {
  if (spec.parallel.has_value()) {
    return ParallelSession::Open(engine, std::move(spec), parameters, setting, cancellation);
  }
  return TrainingSession::Open(engine, std::move(spec), parameters, cancellation,
                               setting == nullptr ? SeededFaults() : setting->faults);
}

absl::StatusOr<std::unique_ptr<TrainingSession>> TrainingSession::Open(
    Engine& engine, SessionSpec spec, const std::map<std::string, Tensor>& parameters,
    const Cancellation* cancellation, const SeededFaults& faults,
    std::shared_ptr<const SessionRank> rank) {
  if (rank == nullptr) QG_RETURN_IF_ERROR(CheckOneRank(spec));
  if (spec.recipe.is_delayed() && faults.Has(kFaultOverrideIgnoredUnderDelayed)) {
    spec.recipe = spec.recipe.WithBackwardOverride(BackwardOverride::kNone);
  }
  QG_RETURN_IF_ERROR(CheckSessionSpec(spec));
  QG_RETURN_IF_ERROR(engine.CheckArithmetic(spec.arithmetic));
  SessionState state{.recipe = spec.recipe};
  state.layers.resize(spec.layers.size());
  QG_RETURN_IF_ERROR(SortParameters(spec, parameters, state));
  QG_RETURN_IF_ERROR(CheckSessionShapes(spec, state, rank == nullptr ? nullptr : rank->step));
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    SessionLayerState& layer = state.layers[i];
    QG_RETURN_IF_ERROR(MakeTrained(engine, spec, layer, cancellation));
    ParameterUpdate update(engine, spec, i, spec.recipe, faults, cancellation, rank.get());
    QG_RETURN_IF_ERROR(InLayer(spec.layers[i], update.Begin(layer)));
  }
  QG_RETURN_IF_ERROR(PutTrained(engine, spec, parameters, state, cancellation));
  QG_RETURN_IF_ERROR(CheckSessionRecipe(spec, state, spec.recipe, rank.get(), kAnyDType));
  KeepOwnExperts(spec, rank.get(), state.layers);
  QG_RETURN_IF_ERROR(
      Division(engine, spec, rank.get(), faults, cancellation).Divide(spec.recipe, state.layers));
  return std::unique_ptr<TrainingSession>(new TrainingSession(
      std::make_unique<State>(engine, std::move(spec), faults, std::move(state), std::move(rank))));
}

}  // namespace quantgate
