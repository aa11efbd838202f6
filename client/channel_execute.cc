// The runs of a ChannelConnection, over as many streams as each takes.
#include "client/execute.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/sync_stream.h>

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/time/clock.h"
#include "client/channel_connection.h"
#include "client/live_calls.h"
#include "client/status.h"
#include "kernels/base/status_macros.h"
#include "quantgate/v1/engine_service.grpc.pb.h"
#include "quantgate/v1/scenarios_service.grpc.pb.h"
#include "quantgate/v1/sessions_service.grpc.pb.h"

namespace quantgate {
namespace {

using EventReader = std::unique_ptr<grpc::ClientReader<v1::RunEvent>>;

/// Starts a run, or attaches to the run that a request with this id started.
using StartStream =
    absl::FunctionRef<EventReader(grpc::ClientContext* context, const std::string& request_id)>;

/// One stream, from the start of the run or from where the last one broke.
absl::Status Follow(ChannelConnection& connection, StartStream start, RunFollower& follower,
                    const RunObserverFunction& observer) {
  LiveCall call(connection.live_calls());
  EventReader reader;
  if (follower.run_id().empty()) {
    reader = start(call.context(), follower.request_id());
  } else {
    v1::WaitRunRequest request;
    request.set_run_id(follower.run_id());
    request.set_from_sequence(follower.last_sequence() + 1);
    reader = v1::Engine::NewStub(connection.channel())->WaitRun(call.context(), request);
  }
  v1::RunEvent event;
  while (reader->Read(&event)) follower.Take(event, observer);
  return FromGrpcStatus(reader->Finish());
}

/// The id of a run that was asked for but not heard of yet: the same request attaches to it.
std::string RunIdOf(StartStream start, const std::string& request_id) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kFarewellTimeout));
  const EventReader reader = start(&context, request_id);
  v1::RunEvent event;
  const std::string run_id = reader->Read(&event) ? event.run_id() : "";
  context.TryCancel();
  while (reader->Read(&event)) continue;
  reader->Finish();
  return run_id;
}

/// Nobody waits for a run whose caller gave up.
void CancelIfAbandoned(ChannelConnection& connection, StartStream start,
                       const RunFollower& follower, const absl::Status& status) {
  if (!absl::IsDeadlineExceeded(status) && !absl::IsCancelled(status)) return;
  v1::CancelRunRequest request;
  request.set_run_id(follower.run_id().empty() ? RunIdOf(start, follower.request_id())
                                               : follower.run_id());
  if (!request.run_id().empty()) connection.CancelRun(request).IgnoreError();
}

/// Follows a run to its end, over as many streams as it takes.
absl::StatusOr<v1::RunReport> FollowToEnd(ChannelConnection& connection, StartStream start,
                                          const RunObserverFunction& observer) {
  RunFollower follower(NewRequestId());
  for (int attempt = 1;; ++attempt) {
    const int64_t before = follower.last_sequence();
    absl::Status status = Follow(connection, start, follower, observer);
    if (follower.has_finished()) return follower.Report();
    if (status.ok()) status = absl::UnavailableError("the stream ended before the run did");
    if (follower.last_sequence() > before) attempt = 1;
    if (!IsWorthRetrying(status) || !connection.PauseBeforeRetry(attempt, status)) {
      CancelIfAbandoned(connection, start, follower, status);
      return status;
    }
  }
}

}  // namespace

absl::StatusOr<v1::RunReport> ChannelConnection::ExecuteRun(const v1::RunSpec& spec,
                                                            const RunObserverFunction& observer) {
  const auto start = [&](grpc::ClientContext* context, const std::string& request_id) {
    v1::ExecuteRequest request;
    *request.mutable_spec() = spec;
    request.set_request_id(request_id);
    request.set_stream_outputs(true);
    return v1::Engine::NewStub(channel())->Execute(context, request);
  };
  return FollowToEnd(*this, start, observer);
}

absl::StatusOr<v1::RunReport> ChannelConnection::RunTrace(const v1::RunTraceRequest& request,
                                                          const RunObserverFunction& observer) {
  const auto start = [&](grpc::ClientContext* context, const std::string& request_id) {
    v1::RunTraceRequest asked = request;
    asked.set_request_id(request_id);
    return v1::Sessions::NewStub(channel())->RunTrace(context, asked);
  };
  return FollowToEnd(*this, start, observer);
}

absl::StatusOr<v1::ScenarioRunFinished> ChannelConnection::RunScenarios(
    const v1::RunScenariosRequest& request, const ScenarioObserverFunction& observer) {
  const std::unique_ptr<v1::Scenarios::Stub> stub = v1::Scenarios::NewStub(channel());
  LiveCall call(live_calls());
  const auto reader = stub->Run(call.context(), request);
  v1::ScenarioEvent event;
  v1::ScenarioRunFinished finished;
  bool has_finished = false;
  while (reader->Read(&event)) {
    if (event.has_finished()) {
      has_finished = true;
      finished = event.finished();
    }
    observer(event);
  }
  const absl::Status status = FromGrpcStatus(reader->Finish());
  if (!status.ok()) return status;
  if (!has_finished) return absl::DataLossError("the scenarios ended without their last event");
  return finished;
}

}  // namespace quantgate
