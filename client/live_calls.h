// The calls a connection has under way, so that an interrupt can end them all. Thread-safe.
#pragma once

#include <grpcpp/client_context.h>

#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace quantgate {

class LiveCalls {
 public:
  explicit LiveCalls(absl::Time deadline) : deadline_(deadline) {}

  /// Cancels every call under way and every later one.
  void CancelAll();

 private:
  friend class LiveCall;
  mutable absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<grpc::ClientContext*> contexts_ ABSL_GUARDED_BY(mutex_);
  const absl::Time deadline_;
};

/// One call: a client context with the connection's deadline, cancelled by LiveCalls::CancelAll. A
/// farewell is made after these, and has kFarewellTimeout.
class LiveCall {
 public:
  LiveCall(LiveCalls& calls, bool is_farewell);
  ~LiveCall();
  LiveCall(const LiveCall&) = delete;
  LiveCall& operator=(const LiveCall&) = delete;
  grpc::ClientContext* context() { return &context_; }

 private:
  LiveCalls& calls_;
  grpc::ClientContext context_;
};

}  // namespace quantgate
