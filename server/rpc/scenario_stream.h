// ScenarioStream: one Scenarios.Run. Results go out as the device's worker finds them.
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

/// Deletes itself. Finishes only once the work has given its outcome and no write is under way.
class ScenarioStream : public grpc::ServerWriteReactor<v1::ScenarioEvent> {
 public:
  ScenarioStream(ServiceContext& context, grpc::CallbackServerContext* server_context,
                 const v1::RunScenariosRequest* request);

 private:
  /// Checks, and hands the work to the device.
  absl::Status Begin();
  void Run(absl::Status admission);
  void Queue(v1::ScenarioEvent event);
  /// The work's last word; `this` may be gone after it.
  void SetOutcome(absl::Status outcome);
  /// Starts the next write, or ends the stream.
  void GoOn();

  void OnWriteDone(bool ok) noexcept override;
  void OnCancel() noexcept override;
  void OnDone() noexcept override { delete this; }

  Call call_;
  const v1::RunScenariosRequest* const request_;  // gRPC's, for the length of the call.
  std::unique_ptr<ScenarioRun> run_;
  /// Results that are there take room, whether there is any or not: a device does not wait.
  struct Ready {
    v1::ScenarioEvent event;
    SendBudget::Room room;
  };
  const std::shared_ptr<SendBudget::Connection> connection_;
  Ready sending_;  // gRPC's while a write is under way.

  std::mutex mutex_;
  std::deque<Ready> ready_ ABSL_GUARDED_BY(mutex_);
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> outcome_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quantgate
