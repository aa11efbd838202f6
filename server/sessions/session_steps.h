// What steps of sessions have in common, in calls (session_step_call.cc) and in traces
// (trace_execution.h): doing one, comparing what two of them gave, and telling what one did.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/status_macros.h"
#include "kernels/training/training_session.h"
#include "quantgate/v1/session_trace.pb.h"
#include "server/runs/call_context.h"
#include "server/sessions/convert_session.h"
#include "server/sessions/session_store.h"

namespace quantgate {

/// The recipe that a change of recipe asks for in a session whose recipe is `now`.
absl::StatusOr<Recipe> RecipeOfChange(const SessionStep& step, const Recipe& now);

/// Calls the function of `taker` that takes a step of this kind, with what it needs of the step.
/// `taker` has the functions of SessionOutline; the tensor of a forward or backward is in
/// `step.forward.x` and x_codes.
template <typename Taker>
auto TakeStepOf(Taker& taker, const SessionStep& step) -> decltype(taker.Forward(step.forward)) {
  switch (step.kind) {
    case SessionStep::Kind::kTrain:
    case SessionStep::Kind::kEvaluate:
    case SessionStep::Kind::kRecompute:
      return taker.Forward(step.forward);
    case SessionStep::Kind::kBackward:
      return taker.Backward({step.microbatch, step.forward.x, step.forward.x_codes});
    case SessionStep::Kind::kWgrad:
      return taker.Wgrad();
    case SessionStep::Kind::kOptimize:
      return taker.Optimize(step.optimizer);
    case SessionStep::Kind::kChangeRecipe: {
      QG_ASSIGN_OR_RETURN(const Recipe recipe, RecipeOfChange(step, taker.recipe()));
      return taker.ChangeRecipe(recipe);
    }
    case SessionStep::Kind::kOffload:
      return taker.Offload(step.microbatch);
    case SessionStep::Kind::kReload:
      return taker.Reload(step.microbatch);
  }
  return absl::InternalError("unknown kind of step");
}

/// Does a step; the tensor of a forward or backward is in `step.forward.x` and x_codes. A change of
/// recipe that changes the backward override says so in a note, beside those of NotesOfRecipe.
/// `spec`: HeldSession::spec.
absl::StatusOr<SessionStepResult> TakeSessionStep(Session& training, const std::string& spec,
                                                  const SessionStep& step,
                                                  const Cancellation& cancellation);
/// The same with as many bytes as the store leaves the session. A step that is refused memory or
/// room has changed nothing and is tried again after each eviction of an idle session.
absl::StatusOr<SessionStepResult> TakeStepWithinRoom(
    SessionStore& store, const SessionUse& use,
    absl::FunctionRef<absl::StatusOr<SessionStepResult>()> take);

/// What the session holds for backwards after a step of this result.
v1::SessionMemory MemoryAfter(const Session& training, const SessionStepResult& result);
/// Counts the overlapped stages of all ranks.
void CountOverlaps(RunStatistics& statistics, const SessionStepResult& result);
/// Sets quantizations, overlaps, memory, rank differences and notes.
void StepResultToProto(const Session& training, const SessionStepResult& result,
                       v1::TraceStep& proto);

/// Compares each of `subjects` with the tensor of its name among `references`, where there is one.
/// Requires nothing: every comparison passes.
absl::StatusOr<std::vector<v1::StepComparison>> CompareTensors(
    Engine& engine, const std::vector<NamedTensor>& subjects,
    const std::vector<NamedTensor>& references, const Cancellation* cancellation);
/// Sets TraceQuantization.scale_against_reference_log2 of a step's quantizations.
void CompareScales(const v1::TraceStep& reference, v1::TraceStep& step);

}  // namespace quantgate
