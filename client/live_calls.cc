#include "client/live_calls.h"

#include <algorithm>

namespace quantgate {

bool LiveCalls::cancelled() const {
  absl::MutexLock lock(&mutex_);
  return cancelled_;
}

void LiveCalls::CancelAll() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
  for (grpc::ClientContext* context : contexts_) context->TryCancel();
}

bool LiveCalls::Pause(absl::Duration duration) {
  const absl::Time wake = absl::Now() + duration;
  absl::MutexLock lock(&mutex_);
  mutex_.AwaitWithDeadline(absl::Condition(&cancelled_), std::min(wake, deadline_));
  return !cancelled_ && wake < deadline_;
}

LiveCall::LiveCall(LiveCalls& calls) : calls_(calls) {
  if (calls_.deadline_ != absl::InfiniteFuture()) {
    context_.set_deadline(absl::ToChronoTime(calls_.deadline_));
  }
  absl::MutexLock lock(&calls_.mutex_);
  calls_.contexts_.insert(&context_);
  if (calls_.cancelled_) context_.TryCancel();
}

LiveCall::~LiveCall() {
  absl::MutexLock lock(&calls_.mutex_);
  calls_.contexts_.erase(&context_);
}

}  // namespace quantgate
