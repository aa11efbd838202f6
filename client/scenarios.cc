#include "client/scenarios.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/sync_stream.h>

#include <memory>

#include "client/channel_connection.h"
#include "client/live_calls.h"
#include "client/status.h"
#include "quantgate/v1/scenarios_service.grpc.pb.h"

namespace quantgate {

absl::StatusOr<v1::ScenarioRunFinished> RunScenarios(Connection& connection,
                                                     const v1::RunScenariosRequest& request,
                                                     const ScenarioObserverFunction& observer) {
  return connection.RunScenarios(request, observer);
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
