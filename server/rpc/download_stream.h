// DownloadStream: one Blobs.Read. It reads and hashes a piece when there is room to send it: the
// next one while the last one is sent, once the client has taken any. Pieces grow as long as they
// are taken quickly, so that a client that reads nothing costs a small one and no open file. The
// first pieces of a connection that has others of which nothing is taken yet stand behind all
// others: streams by the thousand that begin at once hold up nobody who reads.
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

/// Deletes itself. Finishes only while no write, no task and no wait is under way.
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

  /// What may be started now; decided under the lock and started outside of it.
  struct Actions {
    bool read = false, write = false;
    bool is_behind = false;  ///< Whether the read is by Executor::RunBehind.
    std::optional<absl::Status> end;
  };

  /// What may be started now. A task or write that ends notes that and asks under one lock, and
  /// touches nothing but Start() after it: the one that finds all others ended ends the stream.
  Actions DecideActions() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Start(const Actions& actions);

  void RunTask(bool is_behind, Executor::Task task);

  // One task: asks for room and reads, or waits for room and reads in another one.
  void AskForRoom();
  void WaitForRoom(int64_t wanted);
  /// `room`: none when there was none for too long.
  void ReadNext(SendBudget::Room room);
  absl::Status Begin();
  absl::StatusOr<Message> ReadMessage(SendBudget::Room room);
  void EndReading(absl::StatusOr<Message> message);

  void OnWriteDone(bool ok) noexcept override;
  void OnCancel() noexcept override;
  void OnDone() noexcept override { delete this; }

  Call call_;
  const grpc::ByteBuffer* const request_;  // gRPC's, for the length of the call.
  const std::shared_ptr<SendBudget::Connection> connection_;
  const bool begins_behind_;
  std::optional<BlobReader> reader_;  // Of the task that reads.
  Message sending_;                   // gRPC's while a write is under way.

  std::mutex mutex_;
  std::optional<Message> ready_ ABSL_GUARDED_BY(mutex_);
  int64_t piece_bytes_ ABSL_GUARDED_BY(mutex_) = kSendPieceBytesLeast;
  SendBudget::Clock::time_point write_begun_ ABSL_GUARDED_BY(mutex_);
  int64_t room_token_ ABSL_GUARDED_BY(mutex_) = 0;  // Not 0: the task that reads waits for room.
  bool is_reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_written_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> outcome_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quantgate
