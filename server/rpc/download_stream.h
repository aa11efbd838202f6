// DownloadStream: one Blobs.Read. It reads and hashes a piece of the blob when the send budget has
// room for it. From the second piece on, it reads the next piece while the previous one is sent.
// Pieces grow as long as the client takes them quickly, so that a client that reads nothing costs
// one small piece and no open file. A stream's first piece is read with low priority
// (Executor::RunBehind) where the client has taken nothing yet of another stream of the same
// connection, so that thousands of streams that begin at once do not delay clients that do read.
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <memory>
#include <mutex>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "server/limits.h"
#include "server/rpc/call.h"
#include "server/store/blob_reader.h"

namespace quantgate {

/// Deletes itself in OnDone. Calls Finish only while no write, no task and no wait is in progress.
class DownloadStream : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  DownloadStream(ServiceContext& context, grpc::CallbackServerContext* server_context,
                 const grpc::ByteBuffer* request);
  ~DownloadStream() override;

 private:
  /// A message and the bytes of the blob in it.
  struct Message {
    grpc::ByteBuffer buffer;
    int64_t data_bytes = 0;
  };

  /// The steps that may start now. They are decided under the lock and started after its release.
  struct Actions {
    bool read = false, write = false;
    bool is_behind = false;  ///< Whether the read is queued by Executor::RunBehind.
    std::optional<absl::Status> end;
  };

  /// Decides which steps may start now. A task or write that ends must record its end and call this
  /// under one lock, and may touch nothing but Start() afterwards: the last of them to end finishes
  /// the stream.
  Actions DecideActions() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Start(const Actions& actions);

  void RunTask(bool is_behind, Executor::Task task);

  // One task asks for room and reads. If there is no room, another task reads once there is.
  void AskForRoom();
  void WaitForRoom(int64_t wanted);
  /// `room` is empty where the stream has waited too long for room; it then ends with an error.
  void ReadNext(SendBudget::Room room);
  absl::Status Begin();
  absl::StatusOr<Message> ReadMessage(SendBudget::Room room);
  void EndReading(absl::StatusOr<Message> message);

  void OnWriteDone(bool ok) noexcept override;
  void OnCancel() noexcept override;
  void OnDone() noexcept override { delete this; }

  Call call_;
  const grpc::ByteBuffer* const request_;  // Owned by gRPC; lives as long as the call.
  const std::shared_ptr<SendBudget::Connection> connection_;
  const bool begins_behind_;
  std::optional<BlobReader> reader_;  // Used by the reading task only.
  Message sending_;                   // Owned by gRPC while a write is in progress.

  std::mutex mutex_;
  std::optional<Message> ready_ ABSL_GUARDED_BY(mutex_);
  int64_t piece_bytes_ ABSL_GUARDED_BY(mutex_) = kSendPieceBytesLeast;
  SendBudget::Clock::time_point write_begun_ ABSL_GUARDED_BY(mutex_);
  int64_t room_token_ ABSL_GUARDED_BY(mutex_) = 0;  // Not 0 while the reading task waits for room.
  bool is_reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_written_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> outcome_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quantgate
