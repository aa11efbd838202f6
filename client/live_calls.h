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

  absl::Time deadline() const { return deadline_; }
  bool cancelled() const;
  /// Cancels every call under way and every later one.
  void CancelAll();
  /// Sleeps, or returns early (false) once cancelled or past the deadline.
  bool Pause(absl::Duration duration);

 private:
  friend class LiveCall;
  mutable absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<grpc::ClientContext*> contexts_ ABSL_GUARDED_BY(mutex_);
  const absl::Time deadline_;
};

/// One call: a client context with the connection's deadline, cancelled by LiveCalls::CancelAll.
class LiveCall {
 public:
  explicit LiveCall(LiveCalls& calls);
  ~LiveCall();
  LiveCall(const LiveCall&) = delete;
  LiveCall& operator=(const LiveCall&) = delete;
  grpc::ClientContext* context() { return &context_; }

 private:
  LiveCalls& calls_;
  grpc::ClientContext context_;
};

}  // namespace quantgate
