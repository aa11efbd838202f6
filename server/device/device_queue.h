// DeviceQueue: jobs that wait for a device, bounded in number and in order of arrival. A job that
// waits leaves the queue at its deadline or when it is cancelled; one that runs is cancelled
// through its Cancellation. Thread-safe.
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
#include "kernels/base/execution.h"

namespace quantgate {

class DeviceQueue {
 public:
  struct Options {
    std::string name;  ///< For errors and metrics.
    int workers = 1;
    int capacity = 64;  ///< Jobs waiting, not counting those that run.
  };

  /// Called exactly once: on a worker with OK when it is the job's turn, or, when the job leaves
  /// the queue early, on the queue's own thread with CANCELLED, DEADLINE_EXCEEDED or, after
  /// CancelAll, UNAVAILABLE.
  using Job = absl::AnyInvocable<void(absl::Status admission) &&>;

  explicit DeviceQueue(Options options);
  /// Cancels all jobs and waits until they have ended.
  ~DeviceQueue();
  DeviceQueue(const DeviceQueue&) = delete;
  DeviceQueue& operator=(const DeviceQueue&) = delete;

  /// Returns the number of jobs ahead of this one, running ones included. RESOURCE_EXHAUSTED when
  /// the queue is full, UNAVAILABLE when it drains; then the job is not called.
  absl::StatusOr<int> Submit(std::shared_ptr<Cancellation> cancellation, Job job);
  /// Announces that a job is about to be submitted: an idle worker stays awake for a moment to wait
  /// for it, since waking the worker later takes longer.
  void Expect();
  /// True from Expect until a worker has woken up for it.
  bool is_expecting() const;
  /// Cancels, and drops the job from the queue at once if it still waits.
  void Cancel(const std::shared_ptr<Cancellation>& cancellation);

  /// Refuses new jobs from now on.
  void Drain();
  /// Waits until nothing waits or runs any more; false when `deadline` comes first.
  bool WaitIdle(absl::Time deadline);
  /// Cancels what runs and drops what waits, because the server ends.
  void CancelAll();
  /// What a job that ended with `status` is to be told: UNAVAILABLE in place of CANCELLED where
  /// CancelAll cancelled it, and nobody had before.
  absl::Status Reported(const Cancellation& cancellation, absl::Status status) const;

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
  /// Keeps the thread awake until a job waits, but no longer than kMoment.
  void LookOut() const;
  void Reap();
  bool IsIdle() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return waiting_.empty() && active_ == 0;
  }
  void CancelOnce(const std::shared_ptr<Cancellation>& cancellation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Time EarliestDeadline() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<Entry> TakeDropped() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  mutable std::mutex mutex_;
  std::condition_variable has_work_, must_reap_, is_idle_;
  std::deque<Entry> waiting_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Cancellation>> running_ ABSL_GUARDED_BY(mutex_);
  /// Those that CancelAll cancelled.
  std::vector<std::shared_ptr<Cancellation>> ended_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> has_waiting_{false};    // Read by LookOut without the lock.
  int active_ ABSL_GUARDED_BY(mutex_) = 0;  // Jobs being called, dropped ones included.
  bool expects_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool reap_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> workers_;
  std::thread reaper_;
};

}  // namespace quantgate
