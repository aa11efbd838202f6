#include "kernels/layer/delayed_reduction.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/comm/group/world.h"
#include "kernels/engine/engine.h"
#include "kernels/layer/experts/expert_run.h"
#include "kernels/layer/layer_program.h"
#include "kernels/layer/layer_values.h"

namespace quantgate {
namespace {

/// A group's name; "" is the default group.
std::string NameOf(const AmaxGroup& group) { return group.is_named() ? group.Text() : ""; }

/// A history as [L][1].
absl::StatusOr<Tensor> Column(const DelayedScalingState& state) {
  const Tensor& history = state.amax_history;
  return history.Reinterpret(history.dtype(), {history.element_count(), 1});
}

bool IsUpdatedAt(UpdatePoint point, TensorRole role) {
  return (role == TensorRole::kGradOutput) == (point == UpdatePoint::kBackward);
}

/// The groups of a point by name, each with the first role that has it; every rank's order.
std::vector<std::pair<std::string, TensorRole>> GroupsAt(const AmaxGroups& groups,
                                                         UpdatePoint point) {
  std::vector<std::pair<std::string, TensorRole>> found;
  for (const TensorRole role : {TensorRole::kInput, TensorRole::kWeight, TensorRole::kGradOutput}) {
    const AmaxGroup& group = AmaxGroupOf(groups, role);
    if (!IsUpdatedAt(point, role) || group.kind == AmaxGroup::Kind::kNone) continue;
    const bool is_new = std::none_of(found.begin(), found.end(),
                                     [&](const auto& one) { return one.first == NameOf(group); });
    if (is_new) found.emplace_back(NameOf(group), role);
  }
  return found;
}

/// The states of the roles that `groups` gives this group ("": the default one). Null for states
/// that this rank does not have.
std::vector<DelayedScalingState*> StatesOf(std::span<const ReducedLayer> layers,
                                           const Recipe& recipe, UpdatePoint point,
                                           const AmaxGroups& groups, const std::string& group) {
  std::vector<DelayedScalingState*> states;
  for (const ReducedLayer& layer : layers) {
    for (const LayerDelayedState& delayed : DelayedStatesOf(*layer.spec, recipe)) {
      if (!IsUpdatedAt(point, delayed.role)) continue;
      if (NameOf(AmaxGroupOf(groups, delayed.role)) != group) continue;
      const auto found =
          layer.state->delayed.find(WithExpertOfWhole(delayed.name, -layer.first_expert));
      states.push_back(found == layer.state->delayed.end() ? nullptr : &found->second);
    }
  }
  return states;
}

/// The amaxes kept beside cached weights of which the ranks of `step`'s tensor-parallel group have
/// parts.
std::vector<Tensor*> AmaxesOfCached(std::span<const ReducedLayer> layers, UpdatePoint point,
                                    const ParallelStep* step, const std::string& group) {
  std::vector<Tensor*> amaxes;
  const bool has_parts = step != nullptr && step->tp != nullptr && step->tp->size() > 1;
  if (!has_parts || point != UpdatePoint::kForward ||
      NameOf(AmaxGroupOf(step->amax_groups, TensorRole::kWeight)) != group) {
    return amaxes;
  }
  for (const ReducedLayer& layer : layers) {
    for (auto& [name, workspace] : layer.state->workspaces) {
      for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
        std::optional<QuantizedCopy>& copy = workspace.quantized.copy(usage);
        const bool is_delayed = workspace.quantizer.spec(usage).scaling == Scaling::kDelayed;
        if (copy.has_value() && is_delayed) amaxes.push_back(&copy->amax);
      }
    }
  }
  return amaxes;
}

absl::Status Reduce(StepRecorder& recorder, ProcessGroup& group,
                    const std::vector<DelayedScalingState*>& states,
                    const std::vector<Tensor*>& cached) {
  Engine& engine = recorder.engine();
  std::vector<Tensor> amaxes;
  Tensor none;  // Stands for states that this rank lacks.
  for (const DelayedScalingState* state : states) {
    if (state == nullptr) {
      if (!none.has_value()) {
        QG_ASSIGN_OR_RETURN(none, Zeros(engine, {1, 1}, recorder.cancellation()));
      }
      amaxes.push_back(none);
      continue;
    }
    QG_ASSIGN_OR_RETURN(const Tensor history, Column(*state));
    QG_ASSIGN_OR_RETURN(amaxes.emplace_back(), RowSlice(history, 0, 1));
  }
  for (const Tensor* amax : cached) {
    QG_ASSIGN_OR_RETURN(amaxes.emplace_back(), amax->Reinterpret(amax->dtype(), {1, 1}));
  }
  QG_ASSIGN_OR_RETURN(const Tensor own, engine.ConcatenateRows(amaxes, recorder.cancellation()));
  QG_ASSIGN_OR_RETURN(const Tensor reduced, group.AllReduceMax(own));
  for (size_t i = 0; i < cached.size(); ++i) {
    const auto row = static_cast<int64_t>(states.size() + i);
    QG_ASSIGN_OR_RETURN(const Tensor amax, RowSlice(reduced, row, 1));
    QG_ASSIGN_OR_RETURN(*cached[i], amax.Reinterpret(amax.dtype(), {1}));
  }
  for (size_t i = 0; i < states.size(); ++i) {
    if (states[i] == nullptr) continue;
    QG_ASSIGN_OR_RETURN(const Tensor history, Column(*states[i]));
    QG_ASSIGN_OR_RETURN(const Tensor amax, RowSlice(reduced, static_cast<int64_t>(i), 1));
    QG_ASSIGN_OR_RETURN(const Tensor past, RowSlice(history, 1, history.rows() - 1));
    const Tensor parts[] = {amax, past};
    QG_ASSIGN_OR_RETURN(const Tensor all, engine.ConcatenateRows(parts, recorder.cancellation()));
    QG_ASSIGN_OR_RETURN(states[i]->amax_history,
                        all.Reinterpret(all.dtype(), states[i]->amax_history.shape()));
  }
  return absl::OkStatus();
}

/// "reduce amaxes of forward", "reduce amaxes of backward over data".
std::string StageOf(UpdatePoint point, const std::string& group) {
  return absl::StrCat("reduce amaxes of ", point == UpdatePoint::kBackward ? "backward" : "forward",
                      group.empty() ? "" : " over ", group);
}

}  // namespace

bool ReducesDelayedAmaxes(const Recipe& recipe, int ranks) {
  return recipe.is_delayed() && recipe.delayed_scaling().reduce_amax && ranks > 1;
}

absl::Status ReduceDelayedAmaxes(StepRecorder& recorder, ProcessGroup* group,
                                 std::span<const ReducedLayer> layers, const Recipe& recipe,
                                 UpdatePoint point, const ParallelStep* step) {
  static const AmaxGroups& by_default = *new AmaxGroups();
  const AmaxGroups& groups = step == nullptr ? by_default : step->amax_groups;
  for (const auto& [name, role] : GroupsAt(groups, point)) {
    ProcessGroup* const end = name.empty() ? group : step->amax_end(role);
    // A named group of one rank is asked too: which stages there are does not depend on the rank.
    const int ranks = !name.empty() ? kWorldSizeMax : end == nullptr ? 1 : end->size();
    const std::vector<DelayedScalingState*> states = StatesOf(layers, recipe, point, groups, name);
    if (!ReducesDelayedAmaxes(recipe, ranks) || states.empty()) continue;
    const std::vector<Tensor*> cached = AmaxesOfCached(layers, point, step, name);
    QG_RETURN_IF_ERROR(recorder.Timed({StageKind::kCommunicate, StageOf(point, name)},
                                      [&] { return Reduce(recorder, *end, states, cached); }));
  }
  return absl::OkStatus();
}

}  // namespace quantgate
