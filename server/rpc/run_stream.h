// RunStream: streams the events of a run, one at a time, as fast as the client takes them. The
// latest events come from memory, earlier ones from the run store. They are sent in the serialized
// form in which they were stored, not serialized anew.
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

/// At any time exactly one of these is in progress, and only its code may finish the stream: a task
/// on the executor, a write, or the wait for the next event or for room to send it. Deletes itself
/// in OnDone.
class RunStream : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  /// Where the stream begins.
  struct Start {
    std::string run_id;
    int64_t sequence = 1;
    bool cancel_on_disconnect = false;  ///< The run is cancelled when the client disconnects.
  };

  /// Where `start` runs: on the executor, or in the constructor, for a `start` that hardly blocks.
  enum class Place { kExecutor, kHere };
  RunStream(ServiceContext& context, Runs& runs, Rpc rpc, Admission admission,
            grpc::CallbackServerContext* server_context, Place place,
            absl::AnyInvocable<absl::StatusOr<Start>(const Call&) &&> start);

 private:
  /// Runs a task on the executor, in turn with the tasks of other connections.
  void RunTask(Executor::Task task);
  void Begin(Admission admission, absl::AnyInvocable<absl::StatusOr<Start>(const Call&) &&> start);
  /// Sends the next event, or waits for it. `room`: room that was taken for it, or no room.
  void Continue(SendBudget::Room room = {});
  /// Sends the event numbered next_sequence_, or waits for room to send it.
  void Send(std::shared_ptr<const std::string> event, SendBudget::Room room);
  void WaitForRoom(int64_t bytes);
  void WaitForEvent();
  /// The next event if it is in memory, else null.
  std::shared_ptr<const std::string> Latest() const;
  void End(const absl::Status& status);

  void OnWriteDone(bool ok) noexcept override;
  void OnCancel() noexcept override;
  void OnDone() noexcept override { delete this; }

  Call call_;
  Runs& runs_;
  bool cancel_on_disconnect_ = false;
  std::string run_id_;
  // Null where the run had ended before the stream began.
  std::shared_ptr<const LiveRuns::Live> live_;
  int64_t next_sequence_ = 1;
  grpc::ByteBuffer event_;
  const std::shared_ptr<SendBudget::Connection> connection_;

  std::mutex mutex_;
  bool is_cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  // Not 0 while the stream waits for an event (wait_token_) or for room (room_token_).
  int64_t wait_token_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t room_token_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace quantgate
