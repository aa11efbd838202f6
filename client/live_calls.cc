#include "client/live_calls.h"

#include "absl/time/clock.h"
#include "client/connection.h"

namespace quantgate {

void LiveCalls::CancelAll() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
  for (grpc::ClientContext* context : contexts_) context->TryCancel();
}

LiveCall::LiveCall(LiveCalls& calls, bool is_farewell) : calls_(calls) {
  if (is_farewell) {
    context_.set_deadline(absl::ToChronoTime(absl::Now() + kFarewellTimeout));
    return;
  }
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
