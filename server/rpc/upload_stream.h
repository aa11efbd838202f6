// UploadStream: one Blobs.Write. Messages are received on gRPC's threads and pass through two
// strands of the transfer executor, hashing and then writing, so that the three overlap. A full
// pipeline stops the reading, and with it the client.
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

/// Deletes itself. Finishes only while no read and no task is under way, so nothing is left that
/// could touch it.
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

  /// What may be started now; decided under the lock and started outside of it.
  struct Actions {
    bool read = false, hash = false, write = false, commit = false, end = false;
  };

  /// What may be started now. A task that ends notes that and asks under one lock, and touches
  /// nothing but Start() after it: the one that finds all tasks ended ends the stream.
  Actions DecideActions() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Start(const Actions& actions);
  void Read();
  void DropQueued() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // One task each.
  void HashQueued();
  void WriteQueued();
  void Commit();
  /// Returns whether the task goes on with another message.
  bool HashOne(bool may_go_on);

  std::vector<Hashed> NextToWrite();
  absl::Status Take(const WriteRequestView& request);
  absl::Status Begin(const WriteRequestView& request);
  absl::Status CheckChunk(const WriteRequestView& request) const;
  /// Nothing more is processed; the first reason counts.
  void Stop(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Release(int64_t message_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End();

  void OnReadDone(bool ok) noexcept override;
  void OnCancel() noexcept override { call_.cancellation()->Cancel(); }
  void OnDone() noexcept override { delete this; }

  Call call_;
  grpc::ByteBuffer* const response_;
  grpc::ByteBuffer incoming_;  // gRPC's while a read is under way.

  // Of the hashing strand, and of Commit() and End(), which run alone.
  std::unique_ptr<BlobUpload> upload_;
  std::unique_ptr<DeviceCopy> device_copy_;  // Of the writing strand once there is one.
  int64_t received_ = 0;                     // Offset in the blob of the next byte.
  bool is_present_ = false;

  std::mutex mutex_;
  std::deque<Received> to_hash_ ABSL_GUARDED_BY(mutex_);
  std::deque<Hashed> to_write_ ABSL_GUARDED_BY(mutex_);
  int in_flight_ ABSL_GUARDED_BY(mutex_) = 0;  // Messages received and not yet written.
  bool is_reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_hashing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_committing_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_read_all_ ABSL_GUARDED_BY(mutex_) = false;  // The client has sent all, or has gone.
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;
  /// How the call ends, once that is known.
  std::optional<absl::Status> outcome_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quantgate
