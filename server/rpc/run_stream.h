// RunStream: the events of a run, one at a time, as fast as the client takes them: the latest from
// memory, others from the run store. They are sent as they were stored, not parsed and written
// anew.
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <memory>
#include <mutex>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "server/rpc/call.h"
#include "server/runs/runs.h"

namespace quantgate {

/// At any time exactly one of these may go on, and so may finish: a task on the executor, a write
/// under way, or the wait for the next event or for room to send it. Deletes itself.
class RunStream : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  /// Where the stream begins.
  struct Start {
    std::string run_id;
    int64_t sequence = 1;
    bool cancel_on_disconnect = false;  ///< The run is cancelled when the client goes.
  };

  /// Where `start` runs: on the executor, or within the constructor when it waits for next to
  /// nothing.
  enum class Place { kExecutor, kHere };
  RunStream(ServiceContext& context, Runs& runs, Rpc rpc, Admission admission,
            grpc::CallbackServerContext* server_context, Place place,
            absl::AnyInvocable<absl::StatusOr<Start>(const Call&) &&> start);

 private:
  /// In turn with the tasks of other connections.
  void RunTask(Executor::Task task);
  void Begin(Admission admission, absl::AnyInvocable<absl::StatusOr<Start>(const Call&) &&> start);
  /// `room`: for the next event, or none.
  void Continue(SendBudget::Room room = {});
  /// The event with next_sequence_, once there is room for it.
  void Send(std::shared_ptr<const std::string> event, SendBudget::Room room);
  void WaitForRoom(int64_t bytes);
  void WaitForEvent();
  /// The next event, where it is in memory.
  std::shared_ptr<const std::string> Latest() const;
  void End(const absl::Status& status);

  void OnWriteDone(bool ok) noexcept override;
  void OnCancel() noexcept override;
  void OnDone() noexcept override { delete this; }

  Call call_;
  Runs& runs_;
  bool cancel_on_disconnect_ = false;
  std::string run_id_;
  std::shared_ptr<const LiveRuns::Live> live_;  // Null: the run had ended before.
  int64_t next_sequence_ = 1;
  grpc::ByteBuffer event_;
  const std::shared_ptr<SendBudget::Connection> connection_;

  std::mutex mutex_;
  bool is_cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  // Not 0: the wait for an event, or for room, has the turn.
  int64_t wait_token_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t room_token_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace quantgate
