// Writing a session's checkpoint, and restoring a session from one.
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/refusal.h"
#include "kernels/layer/layer_faults.h"
#include "kernels/layer/layer_program.h"
#include "kernels/training/checkpoint/checkpoint_format.h"
#include "kernels/training/parallel/parallel_checks.h"
#include "kernels/training/parallel/parallel_session.h"
#include "kernels/training/session_checks.h"
#include "kernels/training/session_faults.h"
#include "kernels/training/session_step_run.h"
#include "kernels/training/sharding/division.h"

namespace quantgate {
namespace {

absl::Status CheckDelayed(Engine& engine, const SessionSpec& spec, const SessionState& state,
                          const Cancellation* cancellation) {
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    std::set<std::string> known;
    for (const LayerDelayedState& one : DelayedStatesOf(spec.layers[i].spec, state.recipe)) {
      known.insert(one.name);
    }
    for (const auto& [name, delayed] : state.layers[i].state.delayed) {
      if (state.recipe.is_delayed() && !known.contains(name)) {
        return Refuse(absl::StrCat("checkpoint[", spec.layers[i].name, ".", name, "]"),
                      "no such state",
                      absl::StrCat("under recipe ", state.recipe.ShortText(), " the layer's are ",
                                   absl::StrJoin(known, ", ")));
      }
      DelayedScalingState host;
      QG_ASSIGN_OR_RETURN(host.scale, engine.ToHost(delayed.scale, cancellation));
      QG_ASSIGN_OR_RETURN(host.amax_history, engine.ToHost(delayed.amax_history, cancellation));
      QG_RETURN_IF_ERROR(CheckDelayedScaling(
          host, absl::StrCat("checkpoint[", spec.layers[i].name, ".", name, "]")));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckCheckpoint(const SessionState& state) {
  if (!state.in_flight.empty()) {
    return RefusePrecondition("microbatch", state.in_flight.begin()->first,
                              "it is in flight; run its backward before a checkpoint");
  }
  if (!state.deferred.empty()) {
    return RefusePrecondition("gradients", "deferred",
                              "run the deferred wgrads before a checkpoint");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const SessionState>> OneRankSession::StateOnHost(
    const Cancellation* cancellation) const {
  const State& session = *state_;
  auto state = std::make_shared<SessionState>(session.now);
  QG_RETURN_IF_ERROR(CheckCheckpoint(*state));
  QG_RETURN_IF_ERROR(Division(session, cancellation).Join(state->layers));
  absl::Status status;
  VisitTensors(session.spec, *state, [&](const std::string&, Tensor& tensor) {
    if (!tensor.has_value() || !status.ok()) return;
    absl::StatusOr<Tensor> host = session.engine.ToHost(tensor, cancellation);
    if (host.ok()) tensor = *std::move(host);
    status = host.status();
  });
  QG_RETURN_IF_ERROR(status);
  return state;
}

absl::StatusOr<TensorFile> OneRankSession::Checkpoint(const Cancellation* cancellation) {
  QG_ASSIGN_OR_RETURN(const auto state, StateOnHost(cancellation));
  return WriteCheckpoint(state_->spec, *state);
}

absl::StatusOr<std::unique_ptr<Session>> RestoreSession(Engine& engine, SessionSpec spec,
                                                        const TensorFile& checkpoint,
                                                        const RankSetting* setting,
                                                        const Cancellation* cancellation) {
  if (spec.parallel.has_value()) {
    return ParallelSession::Restore(engine, std::move(spec), checkpoint, setting, cancellation);
  }
  return OneRankSession::Restore(engine, std::move(spec), checkpoint, cancellation,
                                 setting == nullptr ? SeededFaults() : setting->faults);
}

absl::StatusOr<std::unique_ptr<OneRankSession>> OneRankSession::Restore(
    Engine& engine, SessionSpec spec, const TensorFile& checkpoint,
    const Cancellation* cancellation, const SeededFaults& faults,
    std::shared_ptr<const SessionRank> rank) {
  if (rank == nullptr) QG_RETURN_IF_ERROR(CheckOneRank(spec));
  NameLayers(spec);
  QG_RETURN_IF_ERROR(CheckSessionSpec(spec));
  QG_RETURN_IF_ERROR(engine.CheckArithmetic(spec.arithmetic));
  QG_ASSIGN_OR_RETURN(SessionState state,
                      ReadCheckpoint(engine, spec, checkpoint, rank.get(), cancellation));
  QG_RETURN_IF_ERROR(CheckDelayed(engine, spec, state, cancellation));
  QG_RETURN_IF_ERROR(CheckSessionRecipe(spec, state, spec.recipe, rank.get(), kAnyDType));
  if (faults.Has(kFaultCheckpointRestartsRandomNumbers)) state.next_call_id = 0;
  for (SessionLayerState& layer : state.layers) {
    if (faults.Has(kFaultCheckpointDropsHistories)) layer.state.delayed.clear();
    if (faults.Has(kFaultRestoredExpertsStale)) {
      layer.state.seeded_memory = std::make_shared<SeededMemory>();
    }
  }
  QG_RETURN_IF_ERROR(
      Division(engine, spec, rank.get(), faults, cancellation).Divide(state.recipe, state.layers));
  auto session =
      std::make_unique<State>(engine, std::move(spec), faults, std::move(state), std::move(rank));
  if (session->now.recipe.CanonicalText() != session->spec.recipe.CanonicalText()) {
    SessionState changed = session->now;
    QG_RETURN_IF_ERROR(ApplyRecipe(*session, session->spec.recipe, cancellation, changed));
    session->now = std::move(changed);
  }
  return std::unique_ptr<OneRankSession>(new OneRankSession(std::move(session)));
}

}  // namespace quantgate
