// Executor: a fixed number of threads that run short tasks in order of arrival. Disk,
// hashing and conversion run here, so that gRPC's threads only move bytes. Thread-safe.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"

namespace quantgate {

class Executor {
 public:
  using Task = absl::AnyInvocable<void() &&>;

  explicit Executor(int threads);
  /// Runs what is still queued, then joins.
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  void Run(Task task);
  /// When no other task waits.
  void RunWhenIdle(Task task);
  int threads() const { return static_cast<int>(threads_.size()); }

 private:
  void Work();
  /// The next task, once there is one; none when the executor ends.
  Task Next() ABSL_LOCKS_EXCLUDED(mutex_);
  std::mutex mutex_;
  std::condition_variable has_work_;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  std::deque<Task> idle_tasks_ ABSL_GUARDED_BY(mutex_);  ///< Of RunWhenIdle.
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace quantgate
