// ScenarioStream: one Scenarios.Run. It sends each result as soon as the device's worker has it.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "quantgate/v1/scenarios_service.pb.h"
#include "server/rpc/call.h"
#include "server/runs/scenario_run.h"

namespace quantgate {

/// Deletes itself in OnDone. Calls Finish only after SetOutcome, while no write is in progress.
class ScenarioStream : public grpc::ServerWriteReactor<v1::ScenarioEvent> {
 public:
  ScenarioStream(ServiceContext& context, grpc::CallbackServerContext* server_context,
                 const v1::RunScenariosRequest* request);

 private:
  /// Checks the request and queues the work on the device.
  absl::Status Begin();
  void Run(absl::Status admission);
  void Queue(v1::ScenarioEvent event);
  /// Records how the work ended. The work calls it last, since `this` may be deleted afterwards.
  void SetOutcome(absl::Status outcome);
  /// Starts the next write, or ends the stream.
  void GoOn();

  void OnWriteDone(bool ok) noexcept override;
  void OnCancel() noexcept override;
  void OnDone() noexcept override { delete this; }

  Call call_;
  const v1::RunScenariosRequest* const request_;  // Owned by gRPC; lives as long as the call.
  std::unique_ptr<ScenarioRun> run_;
  /// An event that is ready to be sent. It takes room in the send budget even beyond the budget's
  /// bounds, so that the device does not wait for a client.
  struct Ready {
    v1::ScenarioEvent event;
    SendBudget::Room room;
  };
  const std::shared_ptr<SendBudget::Connection> connection_;
  Ready sending_;  // Owned by gRPC while a write is in progress.

  std::mutex mutex_;
  std::deque<Ready> ready_ ABSL_GUARDED_BY(mutex_);
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> outcome_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quantgate
