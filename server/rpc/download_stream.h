// DownloadStream: one Blobs.Read. The next piece is read and hashed while the last one is sent.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <mutex>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "quantgate/v1/blobs_service.pb.h"
#include "server/rpc/call.h"
#include "server/store/blob_reader.h"

namespace quantgate {

/// Deletes itself. Finishes only while no write and no task is under way.
class DownloadStream : public grpc::ServerWriteReactor<v1::ReadResponse> {
 public:
  DownloadStream(ServiceContext& context, grpc::CallbackServerContext* server_context,
                 const v1::ReadRequest* request);

 private:
  /// What may be started at one moment; filled under the lock and done outside of it.
  struct Actions {
    bool read = false, write = false;
    std::optional<absl::Status> end;
  };

  /// What may go on now. Who is through says so and asks under one lock, and leaves everything but
  /// Start() alone after it: whoever sees the last part through ends the stream.
  Actions DecideActions() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Start(const Actions& actions);
  void ReadNext();
  absl::Status Begin();

  void OnWriteDone(bool ok) override;
  void OnCancel() override { call_.cancellation()->Cancel(); }
  void OnDone() override { delete this; }

  Call call_;
  const v1::ReadRequest* const request_;  // gRPC's, for the length of the call.
  std::optional<BlobReader> reader_;      // Of the task that reads.
  v1::ReadResponse sending_;              // gRPC's while a write is under way.

  std::mutex mutex_;
  std::optional<v1::ReadResponse> ready_ ABSL_GUARDED_BY(mutex_);
  bool is_reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> outcome_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quantgate
