#include "kernels/base/cancellation.h"

#include "kernels/base/steady_time.h"

namespace quantgate {

absl::Status Cancellation::Check() const {
  if (cancelled_.load(std::memory_order_relaxed))
    return absl::CancelledError("cancelled by caller");
  if (deadline_ != absl::InfiniteFuture() && SteadyNow() >= deadline_) {
    return absl::DeadlineExceededError("deadline passed before the work was done");
  }
  return absl::OkStatus();
}

}  // namespace quantgate
