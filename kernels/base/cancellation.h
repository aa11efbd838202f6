// Lets a caller stop work between operations: a flag and a deadline, checked by whoever computes.
// Thread-safe.
#pragma once

#include <atomic>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace quantgate {

class Cancellation {
 public:
  Cancellation() = default;
  explicit Cancellation(absl::Time deadline) : deadline_(deadline) {}
  Cancellation(const Cancellation&) = delete;
  Cancellation& operator=(const Cancellation&) = delete;

  void Cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  absl::Time deadline() const { return deadline_; }

  /// OK, or CANCELLED, or DEADLINE_EXCEEDED.
  absl::Status Check() const;

 private:
  std::atomic<bool> cancelled_{false};
  const absl::Time deadline_ = absl::InfiniteFuture();
};

}  // namespace quantgate
