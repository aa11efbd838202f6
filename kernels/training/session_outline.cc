#include "kernels/training/session_outline.h"

#include <optional>
#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/engine/engine.h"
#include "kernels/layer/layer_sharding.h"
#include "kernels/quantize/quantized_outline.h"
#include "kernels/training/held_codes.h"
#include "kernels/training/parallel/parallel_checks.h"
#include "kernels/training/session_checks.h"

namespace quantgate {

struct SessionOutline::State {
  Engine& engine;
  SessionSpec spec;
  std::map<std::string, Tensor> parameters;
  SessionState now;
  /// The last forward that passed the checks, which take longer than looking for a like one.
  std::optional<CheckedForward> checked_forward = {};

  bool is_on_one_rank() const { return !spec.parallel.has_value(); }
};

namespace {

/// Checks what a rank's parts of the parameters and its overlap permit, as opening the session does
/// on every rank: with outlines of rank 0's, whose dims are those of all. Where experts or rows of
/// weights are divided, or a dim that does not divide, opening alone says what is wrong.
absl::Status CheckPartsOfRanks(const SessionSpec& spec, const SessionState& whole,
                               const Recipe& recipe) {
  const ParallelSpec& parallel = *spec.parallel;
  const int ranks = parallel.tensor_parallel;
  if (ranks == 1 || parallel.expert_parallel > 1 || parallel.fully_sharded) return absl::OkStatus();
  SessionState part = whole;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const LayerSpec& layer = spec.layers[i].spec;
    if (layer.traits().has_experts) return absl::OkStatus();
    for (auto& [name, parameter] : part.layers[i].state.parameters) {
      const ShardRule rule = ParameterShardRule(layer, name);
      if (rule.dim == -1) continue;
      Shape shape = parameter.value.shape();
      const size_t dim = rule.dim < 0 ? shape.size() - 1 : static_cast<size_t>(rule.dim);
      if (dim >= shape.size() || shape[dim] % (int64_t{rule.parts} * ranks) != 0) {
        return absl::OkStatus();
      }
      shape[dim] /= ranks;
      QG_ASSIGN_OR_RETURN(parameter.value,
                          OutlineTensor(parameter.value.dtype(), std::move(shape)));
    }
  }
  ParallelStep step = StepOf(parallel, recipe);
  step.size_without_group = ranks;
  SessionRank rank;
  rank.step = std::make_shared<const ParallelStep>(std::move(step));
  QG_RETURN_IF_ERROR(CheckSessionShapes(spec, part, rank.step));
  return CheckSessionRecipe(spec, part, recipe, &rank, kAnyDType);
}

/// The layers' parameters, and main gradients where the session has any.
absl::StatusOr<SessionState> StateOfOutlines(Engine& engine, SessionSpec& spec,
                                             const std::map<std::string, Tensor>& parameters) {
  NameLayers(spec);
  QG_RETURN_IF_ERROR(CheckSessionSpec(spec));
  QG_RETURN_IF_ERROR(engine.CheckArithmetic(spec.arithmetic));
  SessionState state{.recipe = spec.recipe};
  state.layers.resize(spec.layers.size());
  QG_RETURN_IF_ERROR(SortParameters(spec, parameters, state));
  // Layers on several ranks are checked with each rank's parts.
  if (spec.parallel.has_value()) {
    QG_RETURN_IF_ERROR(CheckPartsOfRanks(spec, state, spec.recipe));
    return state;
  }
  QG_RETURN_IF_ERROR(CheckSessionShapes(spec, state));
  for (SessionLayerState& layer : state.layers) {
    for (const auto& [name, parameter] : layer.state.parameters) {
      if (!spec.main_grads || !IsWeight(name)) continue;
      QG_ASSIGN_OR_RETURN(layer.state.main_grads[name],
                          OutlineTensor(DType::kF32, parameter.value.shape()));
    }
  }
  QG_RETURN_IF_ERROR(CheckSessionRecipe(spec, state, spec.recipe, nullptr, kAnyDType));
  return state;
}

/// Whether a backward of these gradients leaves any for an update.
bool LeavesGradients(const RequiresGrad& grad) { return grad.weight || grad.bias || grad.norm; }

/// A forward in flight whose layers need no values: its step tells the gradients that its backward
/// leaves, as an entry of `deferred` does, and with its recipe what the backward reads.
struct OutlinedForward : InFlight {
  OutlinedForward(const ForwardStep& forward, const Recipe& under) : step(forward), recipe(under) {}
  ForwardStep step;
  Recipe recipe;
};

bool HasWeights(const SessionState& state) {
  for (const SessionLayerState& layer : state.layers) {
    for (const auto& [name, parameter] : layer.state.parameters) {
      if (IsWeight(name)) return true;
    }
  }
  return false;
}

void MarkGradients(bool are_there, SessionState& state) {
  for (SessionLayerState& layer : state.layers) {
    for (const auto& [name, parameter] : layer.state.parameters) {
      layer.trained[name].has_main_gradient = are_there;
    }
  }
}

}  // namespace

absl::StatusOr<SessionOutline> SessionOutline::Open(
    Engine& engine, SessionSpec spec, std::map<std::string, Tensor> parameters,
    const std::map<std::string, QuantizedTensor>& codes) {
  NameLayers(spec);
  QG_RETURN_IF_ERROR(CheckHeldCodes(spec, codes));
  QG_RETURN_IF_ERROR(UnstackParameters(spec, parameters).status());
  for (const auto& [name, held] : codes) {
    QG_ASSIGN_OR_RETURN(parameters[name], OutlineTensor(held.source_dtype, held.shape));
  }
  QG_ASSIGN_OR_RETURN(SessionState now, StateOfOutlines(engine, spec, parameters));
  return SessionOutline(std::make_shared<State>(
      State{engine, std::move(spec), std::move(parameters), std::move(now)}));
}

const Recipe& SessionOutline::recipe() const { return state_->now.recipe; }

absl::Status SessionOutline::Forward(const ForwardStep& step) {
  State& state = *state_;
  QG_RETURN_IF_ERROR(CheckForwardOrder(state.now, step));
  auto flight = std::make_shared<OutlinedForward>(step, state.now.recipe);
  if (!state.is_on_one_rank()) {
    QG_RETURN_IF_ERROR(CheckNoCodes("x", step.x_codes));
    QG_RETURN_IF_ERROR(CheckForwardAmaxGroups(step.amax_groups, state.spec, state.now.recipe));
    QG_RETURN_IF_ERROR(CheckForwardOverlap(step.overlap, state.spec, state.now.recipe));
  } else {
    QG_RETURN_IF_ERROR(CheckNamesNoRanks(step));
    const std::optional<CheckedForward>& last = state.checked_forward;
    const bool is_codes = step.x_codes.has_codes();
    if (!is_codes && last.has_value() && last->IsLike(step, state.now.recipe, nullptr)) {
      flight->y_shape = last->y_shape;
    } else {
      QG_ASSIGN_OR_RETURN(flight->y_shape, CheckSessionForward(state.spec, state.now,
                                                               state.now.recipe, step, nullptr));
      if (!is_codes) {
        state.checked_forward = CheckedForward{.recipe = state.now.recipe,
                                               .x_dtype = step.x.dtype(),
                                               .x_shape = step.x.shape(),
                                               .train = step.train,
                                               .calibrate = step.calibrate,
                                               .requires_grad = step.requires_grad,
                                               .column_overlap = {},
                                               .row_overlap = {},
                                               .amax_groups = {},
                                               .y_shape = flight->y_shape};
      }
    }
  }
  if (step.train) state.now.in_flight[step.microbatch] = std::move(flight);
  return absl::OkStatus();
}

absl::Status SessionOutline::Backward(const BackwardStep& step) {
  State& state = *state_;
  QG_RETURN_IF_ERROR(CheckBackwardOrder(state.now, step.microbatch));
  const auto flight =
      std::static_pointer_cast<const OutlinedForward>(state.now.in_flight.at(step.microbatch));
  const RequiresGrad& requires_grad = flight->step.requires_grad;
  if (!state.is_on_one_rank()) {
    QG_RETURN_IF_ERROR(CheckNoCodes("grad_output", step.codes));
  } else {
    QG_RETURN_IF_ERROR(CheckGradOutput(step.grad_output, flight->y_shape));
    // Where no gradient is wanted no layer reads it.
    const bool is_read = requires_grad.x || LeavesGradients(requires_grad);
    if (is_read && step.codes.has_codes()) {
      QG_RETURN_IF_ERROR(CheckSessionForward(state.spec, state.now, flight->recipe, flight->step,
                                             nullptr, &step.codes)
                             .status());
    }
  }
  state.now.in_flight.erase(step.microbatch);
  if (!LeavesGradients(requires_grad)) return absl::OkStatus();
  if (flight->step.defer_wgrad && requires_grad.weight && HasWeights(state.now)) {
    state.now.deferred.emplace_back();
  }
  // A bias has its gradient from a backward whose weight gradients are deferred, too.
  MarkGradients(true, state.now);
  return absl::OkStatus();
}

absl::Status SessionOutline::Wgrad() {
  QG_RETURN_IF_ERROR(CheckWgrad(state_->now));
  state_->now.deferred.clear();
  return absl::OkStatus();
}

absl::Status SessionOutline::Optimize(const OptimizerStep& step) {
  QG_RETURN_IF_ERROR(CheckOptimize(state_->spec, state_->now, step));
  MarkGradients(false, state_->now);
  return absl::OkStatus();
}

absl::Status SessionOutline::ChangeRecipe(const Recipe& recipe) {
  State& state = *state_;
  if (state.is_on_one_rank()) {
    const std::optional<DType> x_dtype = state.checked_forward.has_value()
                                             ? state.checked_forward->x_dtype
                                             : DTypeOfParameters(state.now);
    QG_RETURN_IF_ERROR(CheckSessionRecipe(state.spec, state.now, recipe, nullptr, x_dtype));
  } else {
    QG_RETURN_IF_ERROR(CheckRecipeOnRanks(state.spec, recipe));
    QG_RETURN_IF_ERROR(CheckPartsOfRanks(state.spec, state.now, recipe));
  }
  if (state.spec.weights == WeightStorage::kQuantized) {
    QG_RETURN_IF_ERROR(CheckQuantizedWeightsOf(state.spec.layers, recipe));
  }
  state.now.recipe = recipe;
  return absl::OkStatus();
}

absl::Status SessionOutline::Offload(const std::string& microbatch) {
  QG_ASSIGN_OR_RETURN(const auto flight, FindInFlight(state_->now, microbatch, false));
  auto moved =
      std::make_shared<OutlinedForward>(*std::static_pointer_cast<const OutlinedForward>(flight));
  moved->is_offloaded = true;
  state_->now.in_flight[microbatch] = std::move(moved);
  return absl::OkStatus();
}

absl::Status SessionOutline::Reload(const std::string& microbatch) {
  QG_ASSIGN_OR_RETURN(const auto flight, FindInFlight(state_->now, microbatch, true));
  auto moved =
      std::make_shared<OutlinedForward>(*std::static_pointer_cast<const OutlinedForward>(flight));
  moved->is_offloaded = false;
  state_->now.in_flight[microbatch] = std::move(moved);
  return absl::OkStatus();
}

absl::Status SessionOutline::Restart(SessionSpec spec) {
  State& state = *state_;
  QG_RETURN_IF_ERROR(CheckCheckpoint(state.now));
  QG_ASSIGN_OR_RETURN(SessionState now, StateOfOutlines(state.engine, spec, state.parameters));
  // A checkpoint has the gradients so far.
  for (size_t i = 0; i < now.layers.size(); ++i)
    now.layers[i].trained = state.now.layers[i].trained;
  state.spec = std::move(spec);
  state.now = std::move(now);
  state.checked_forward.reset();
  return absl::OkStatus();
}

}  // namespace quantgate
