#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/training/parameter_update.h"
#include "kernels/training/session_checks.h"
#include "kernels/training/session_faults.h"
#include "kernels/training/session_step_run.h"
#include "kernels/training/sharding/division.h"
#include "kernels/training/sharding/shard_faults.h"

namespace quantgate {

absl::Status CheckOptimize(const SessionSpec& spec, const SessionState& state,
                           const OptimizerStep& step) {
  if (spec.optimizer.kind == OptimizerSpec::Kind::kNone) {
    return RefusePrecondition("optimizer", "none", "this session was opened without one");
  }
  const float rate = step.learning_rate.value_or(0);
  if (!std::isfinite(rate) || rate < 0) {
    return Refuse("learning_rate", absl::StrCat(rate), "must be finite and at least 0");
  }
  if (!state.deferred.empty()) {
    return RefusePrecondition("gradients",
                              absl::StrCat("deferred in ", state.deferred.size(), " layers"),
                              "run the deferred wgrads before the optimizer");
  }
  for (const SessionLayerState& layer : state.layers) {
    for (const auto& [name, trained] : layer.trained) {
      if (trained.gradient.has_value() || trained.has_main_gradient) return absl::OkStatus();
    }
  }
  return RefusePrecondition("gradients", "none since the last update", "run a backward first");
}

namespace {

/// Replaces every gradient by its sum over the ranks, or by this rank's rows or elements of the
/// sum.
absl::Status ReduceGradients(SessionStepRun& run, const OneRankSession::State& session,
                             const Cancellation* cancellation, SessionState& next) {
  if (session.rank == nullptr) return absl::OkStatus();
  const Division division(session, cancellation);
  for (size_t i = 0; i < next.layers.size(); ++i) {
    SessionLayerState& layer = next.layers[i];
    const auto reduce = [&]() -> absl::Status {
      for (auto& [name, trained] : layer.trained) {
        Tensor& gradient =
            trained.has_main_gradient ? layer.state.main_grads.at(name) : trained.gradient;
        if (!gradient.has_value()) continue;
        if (session.faults.Has(kFaultGradientSummedTwice)) {
          QG_ASSIGN_OR_RETURN(gradient, SumOverRanks(session, i, name, gradient));
        }
        const auto divided = layer.divided.find(name);
        QG_ASSIGN_OR_RETURN(gradient,
                            divided == layer.divided.end()
                                ? SumOverRanks(session, i, name, gradient)
                                : division.ReduceGradient(i, name, divided->second, gradient));
      }
      return absl::OkStatus();
    };
    QG_RETURN_IF_ERROR(
        run.recorder(i).Timed({StageKind::kCommunicate, "reduce gradients"}, reduce));
  }
  return absl::OkStatus();
}

OptimizerSpec WithLearningRate(OptimizerSpec optimizer, std::optional<float> learning_rate) {
  if (!learning_rate.has_value()) return optimizer;
  optimizer.adam.learning_rate = *learning_rate;
  optimizer.sgd.learning_rate = *learning_rate;
  return optimizer;
}

}  // namespace

absl::StatusOr<SessionStepResult> OneRankSession::Optimize(const OptimizerStep& step,
                                                           const Cancellation* cancellation) {
  const State& session = *state_;
  SessionState next = session.now;
  QG_RETURN_IF_ERROR(CheckOptimize(session.spec, next, step));
  ++next.optimizer_steps;
  const OptimizerSpec optimizer = WithLearningRate(session.spec.optimizer, step.learning_rate);
  SessionStepRun run(session.engine, session.spec, cancellation, session.rank.get());
  QG_RETURN_IF_ERROR(ReduceGradients(run, session, cancellation, next));
  for (size_t i = 0; i < next.layers.size(); ++i) {
    ParameterUpdate update(session.engine, session.spec, i, next.recipe, session.faults,
                           cancellation, session.rank.get());
    QG_RETURN_IF_ERROR(run.recorder(i).Timed({StageKind::kOperation, "optimizer"}, [&] {
      return InLayer(session.spec.layers[i],
                     update.Optimize(next.layers[i], optimizer, next.optimizer_steps));
    }));
    // Cached weights are those before the update.
    if (session.faults.Has(kFaultWorkspaceKeptAfterUpdate)) continue;
    next.layers[i].state.workspaces.clear();
  }
  SessionStepResult result;
  QG_ASSIGN_OR_RETURN(static_cast<StepRecords&>(result), run.Finish());
  QG_RETURN_IF_ERROR(Commit(std::move(next), *state_));
  return result;
}

}  // namespace quantgate
