// DeviceQueue: work waiting for the engine. Bounded, in order of arrival, aware of deadlines,
// cancellable while it waits; what runs is cancelled through its Cancellation. Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/base/cancellation.h"

namespace quantgate {

class DeviceQueue {
 public:
  struct Options {
    std::string name;  ///< For errors and metrics.
    int workers = 1;
    int capacity = 64;  ///< Jobs waiting, not counting those that run.
  };

  /// Called exactly once: on a worker with OK when it is the job's turn, or, when the job leaves
  /// the queue early, on the queue's own thread with CANCELLED or DEADLINE_EXCEEDED.
  using Job = absl::AnyInvocable<void(absl::Status admission) &&>;

  explicit DeviceQueue(Options options);
  /// Cancels everything and waits for it.
  ~DeviceQueue();
  DeviceQueue(const DeviceQueue&) = delete;
  DeviceQueue& operator=(const DeviceQueue&) = delete;

  /// Jobs ahead of this one, running ones included. RESOURCE_EXHAUSTED when full, UNAVAILABLE when
  /// draining; then the job is not called.
  absl::StatusOr<int> Submit(std::shared_ptr<Cancellation> cancellation, Job job);
  /// That a job is about to be submitted: an idle worker looks out for it, awake, for a moment. To
  /// wake it later takes longer.
  void Expect();
  /// Whether no worker has begun to look out yet.
  bool is_expecting() const;
  /// Cancels, and drops the job from the queue at once if it still waits.
  void Cancel(const std::shared_ptr<Cancellation>& cancellation);

  /// Refuses new jobs from now on.
  void Drain();
  /// True when nothing waits or runs before `deadline`.
  bool WaitIdle(absl::Time deadline);
  /// Cancels what runs and drops what waits.
  void CancelAll();

  int depth() const;
  int running() const;
  int capacity() const { return options_.capacity; }
  /// How long the job at the head has waited; zero when none waits.
  absl::Duration oldest_age() const;

 private:
  struct Entry {
    std::shared_ptr<Cancellation> cancellation;
    Job job;
    absl::Time enqueued;
  };

  void Work();
  /// Until a job waits, or for a moment.
  void LookOut() const;
  void Reap();
  bool IsIdle() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return waiting_.empty() && active_ == 0;
  }
  absl::Time EarliestDeadline() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<Entry> TakeDropped() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  mutable std::mutex mutex_;
  std::condition_variable has_work_, must_reap_, is_idle_;
  std::deque<Entry> waiting_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Cancellation>> running_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> has_waiting_{false};    // For LookOut.
  int active_ ABSL_GUARDED_BY(mutex_) = 0;  // Jobs being called, dropped ones included.
  bool expects_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool reap_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> workers_;
  std::thread reaper_;
};

}  // namespace quantgate
