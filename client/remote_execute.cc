// The runs of a RemoteConnection, over as many streams as each takes.
#include "client/execute.h"

#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "client/remote_connection.h"
#include "client/status.h"
#include "kernels/base/status_macros.h"

namespace quantgate {

/// Follows a run to its end. `method` starts it, or attaches to the run that a request with this id
/// started.
template <typename Request>
absl::StatusOr<v1::RunReport> RemoteConnection::FollowToEnd(const std::string& method,
                                                            Request request,
                                                            const RunObserverFunction& observer) {
  RunFollower follower(NewRequestId());
  request.set_request_id(follower.request_id());
  // One stream, from the start of the run or from where the last one broke.
  const auto follow = [&] {
    v1::RunEvent event;
    const auto take = [&] {
      follower.Take(event, observer);
      return true;
    };
    if (follower.run_id().empty()) {
      return ReadStream(method, Purpose::kWork, request, event, take);
    }
    v1::WaitRunRequest rest;
    rest.set_run_id(follower.run_id());
    rest.set_from_sequence(follower.last_sequence() + 1);
    return ReadStream("Engine/WaitRun", Purpose::kWork, rest, event, take);
  };
  // Nobody waits for a run whose caller gave up. The id of one that was asked for but not heard of
  // yet is told to the same request.
  const auto cancel_run = [&] {
    v1::CancelRunRequest cancel;
    cancel.set_run_id(follower.run_id());
    if (cancel.run_id().empty()) {
      v1::RunEvent event;
      ReadStream(method, Purpose::kFarewell, request, event, [&] {
        cancel.set_run_id(event.run_id());
        return false;
      }).IgnoreError();
    }
    if (!cancel.run_id().empty()) CancelRun(cancel).IgnoreError();
  };
  for (int attempt = 1;; ++attempt) {
    const int64_t before = follower.last_sequence();
    absl::Status status = follow();
    if (follower.has_finished()) return follower.Report();
    if (status.ok()) status = absl::UnavailableError("the stream ended before the run did");
    if (follower.last_sequence() > before) attempt = 1;
    if (!IsWorthRetrying(status) || !PauseBeforeRetry(attempt, status)) {
      if (absl::IsDeadlineExceeded(status) || absl::IsCancelled(status)) cancel_run();
      return status;
    }
  }
}

absl::StatusOr<v1::RunReport> RemoteConnection::ExecuteRun(const v1::RunSpec& spec,
                                                           const RunObserverFunction& observer) {
  v1::ExecuteRequest request;
  *request.mutable_spec() = spec;
  request.set_stream_outputs(true);
  return FollowToEnd("Engine/Execute", std::move(request), observer);
}

absl::StatusOr<v1::RunReport> RemoteConnection::RunTrace(const v1::RunTraceRequest& request,
                                                         const RunObserverFunction& observer) {
  return FollowToEnd("Sessions/RunTrace", request, observer);
}

absl::StatusOr<v1::ScenarioRunFinished> RemoteConnection::RunScenarios(
    const v1::RunScenariosRequest& request, const ScenarioObserverFunction& observer) {
  v1::ScenarioEvent event;
  v1::ScenarioRunFinished finished;
  bool has_finished = false;
  QG_RETURN_IF_ERROR(ReadStream("Scenarios/Run", Purpose::kWork, request, event, [&] {
    if (event.has_finished()) {
      has_finished = true;
      finished = event.finished();
    }
    observer(event);
    return true;
  }));
  if (!has_finished) return absl::DataLossError("the scenarios ended without their last event");
  return finished;
}

}  // namespace quantgate
