// UploadStream: one Blobs.Write. Messages are received on gRPC's threads and pass through two
// strands of the transfer executor, hashing and then writing, so that the three overlap. When the
// pipeline is full the stream stops reading, and flow control stops the client.
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "server/device/device_copy.h"
#include "server/rpc/call.h"
#include "server/rpc/write_request_view.h"
#include "server/store/blob_upload.h"

namespace quantgate {

/// Deletes itself in OnDone. Calls Finish only while no read and no task is in progress, so that
/// nothing touches the stream after its end.
class UploadStream : public grpc::ServerReadReactor<grpc::ByteBuffer> {
 public:
  UploadStream(ServiceContext& context, grpc::CallbackServerContext* server_context,
               grpc::ByteBuffer* response);

 private:
  struct Received {
    std::unique_ptr<grpc::ByteBuffer> message;
    int64_t message_bytes = 0;
  };
  struct Hashed {
    WriteRequestView request;
    int64_t message_bytes = 0;
  };

  /// The steps that may start now. They are decided under the lock and started after its release.
  struct Actions {
    bool read = false, hash = false, write = false, commit = false, end = false;
  };

  /// Decides which steps may start now. A task that ends must record its end and call this under
  /// one lock, and may touch nothing but Start() afterwards: the last task to end ends the stream.
  Actions DecideActions() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Start(const Actions& actions);
  void Read();
  void DropQueued() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Each of these runs as one task on the executor.
  void HashQueued();
  void WriteQueued();
  void Commit();
  /// Hashes one queued message. Returns whether the task should hash another one.
  bool HashOne(bool may_go_on);

  std::vector<Hashed> NextToWrite();
  absl::Status Take(const WriteRequestView& request);
  absl::Status Begin(const WriteRequestView& request);
  absl::Status CheckChunk(const WriteRequestView& request) const;
  /// Ends the processing with `status`. A later call does not replace the status of the first one.
  void Stop(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Release(int64_t message_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End();

  void OnReadDone(bool ok) noexcept override;
  void OnCancel() noexcept override { call_.cancellation()->Cancel(); }
  void OnDone() noexcept override { delete this; }

  Call call_;
  grpc::ByteBuffer* const response_;
  grpc::ByteBuffer incoming_;  // Owned by gRPC while a read is in progress.

  // Used by the hashing strand, and by Commit() and End() while nothing else runs. The writing
  // strand uses upload_ too, but only to write.
  std::unique_ptr<BlobUpload> upload_;
  std::unique_ptr<DeviceCopy> device_copy_;  // Used by the writing strand once it exists.
  int64_t received_ = 0;                     // Offset in the blob of the next byte to receive.
  bool is_present_ = false;

  std::mutex mutex_;
  std::deque<Received> to_hash_ ABSL_GUARDED_BY(mutex_);
  std::deque<Hashed> to_write_ ABSL_GUARDED_BY(mutex_);
  int in_flight_ ABSL_GUARDED_BY(mutex_) = 0;  // Messages received and not yet written.
  bool is_reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_hashing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_committing_ ABSL_GUARDED_BY(mutex_) = false;
  // Whether the client has sent everything, or has disconnected.
  bool has_read_all_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;
  /// How the call ends, once that is known.
  std::optional<absl::Status> outcome_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quantgate
