#include "kernels/layer/delayed_reduction.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/layer/layer_program.h"
#include "kernels/layer/layer_values.h"

namespace quantgate {
namespace {

/// A history as [L][1].
absl::StatusOr<Tensor> Column(const DelayedScalingState& state) {
  const Tensor& history = state.amax_history;
  return history.Reinterpret(history.dtype(), {history.element_count(), 1});
}

std::vector<DelayedScalingState*> StatesOf(std::span<const ReducedLayer> layers,
                                           UpdatePoint point) {
  const bool is_backward = point == UpdatePoint::kBackward;
  std::vector<DelayedScalingState*> states;
  for (const ReducedLayer& layer : layers) {
    for (const LayerDelayedState& delayed : DelayedStatesOf(*layer.spec)) {
      if ((delayed.role == TensorRole::kGradOutput) != is_backward) continue;
      const auto found = layer.state->delayed.find(delayed.name);
      if (found != layer.state->delayed.end()) states.push_back(&found->second);
    }
  }
  return states;
}

absl::Status Reduce(StepRecorder& recorder, ProcessGroup& group,
                    const std::vector<DelayedScalingState*>& states) {
  Engine& engine = recorder.engine();
  std::vector<Tensor> amaxes;
  for (const DelayedScalingState* state : states) {
    QG_ASSIGN_OR_RETURN(const Tensor history, Column(*state));
    QG_ASSIGN_OR_RETURN(Tensor amax, RowSlice(history, 0, 1));
    amaxes.push_back(std::move(amax));
  }
  QG_ASSIGN_OR_RETURN(const Tensor own, engine.ConcatenateRows(amaxes, recorder.cancellation()));
  QG_ASSIGN_OR_RETURN(const Tensor reduced, group.AllReduceMax(own));
  for (size_t i = 0; i < states.size(); ++i) {
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

}  // namespace

bool ReducesDelayedAmaxes(const Recipe& recipe, int ranks) {
  return recipe.is_delayed() && recipe.delayed_scaling().reduce_amax && ranks > 1;
}

absl::Status ReduceDelayedAmaxes(StepRecorder& recorder, ProcessGroup& group,
                                 std::span<const ReducedLayer> layers, const Recipe& recipe,
                                 UpdatePoint point) {
  if (!ReducesDelayedAmaxes(recipe, group.size())) return absl::OkStatus();
  const std::vector<DelayedScalingState*> states = StatesOf(layers, point);
  if (states.empty()) return absl::OkStatus();
  const char* const what = point == UpdatePoint::kBackward ? "backward" : "forward";
  return recorder.Timed(absl::StrCat("reduce amaxes of ", what),
                        [&] { return Reduce(recorder, group, states); });
}

}  // namespace quantgate
