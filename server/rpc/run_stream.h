// RunStream: the events of a run, read from the run store one at a time, as fast as the client
// takes them.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <mutex>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "quantgate/v1/engine_service.pb.h"
#include "server/rpc/call.h"
#include "server/rpc/runs.h"

namespace quantgate {

/// At any time exactly one of these may go on, and so may finish: a task on the executor, a write
/// under way, or the wait for the next event. Deletes itself.
class RunStream : public grpc::ServerWriteReactor<v1::RunEvent> {
 public:
  /// Where the stream begins.
  struct Start {
    std::string run_id;
    int64_t sequence = 1;
  };

  /// `start` runs on the executor. With `cancel_on_disconnect` the run is cancelled when the client
  /// goes.
  RunStream(ServiceContext& context, Runs& runs, Rpc rpc, Admission admission,
            grpc::CallbackServerContext* server_context, bool cancel_on_disconnect,
            absl::AnyInvocable<absl::StatusOr<Start>(const Call&) &&> start);

 private:
  void Begin(Admission admission, absl::AnyInvocable<absl::StatusOr<Start>(const Call&) &&> start);
  void Continue();
  /// The event with next_sequence_.
  void Send(const std::string& event);
  void WaitForEvent();
  void End(const absl::Status& status);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override { delete this; }

  Call call_;
  Runs& runs_;
  const bool cancel_on_disconnect_;
  std::string run_id_;
  int64_t next_sequence_ = 1;
  v1::RunEvent event_;

  std::mutex mutex_;
  bool is_cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t wait_token_ ABSL_GUARDED_BY(mutex_) = 0;  // Not 0: the wait has the turn.
};

}  // namespace quantgate
