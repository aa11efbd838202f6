// Executor: a fixed number of threads that run short tasks in order of arrival, but for those of
// owners with several. Disk, hashing and conversion run here, so that gRPC's threads only move
// bytes. Thread-safe.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
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

  /// Of the tasks of one owner, a connection for example, one waits in the order of arrival, and
  /// the next joins behind all others when that one starts: so thousands of one hold up nobody
  /// else. Null: nobody else's.
  void Run(Task task, const void* owner = nullptr);
  /// When no other task waits.
  void RunWhenIdle(Task task);
  int threads() const { return static_cast<int>(threads_.size()); }

 private:
  struct Waiting {
    Task task;
    const void* owner = nullptr;
  };

  void Work();
  /// The next task, once there is one; none when the executor ends.
  Task Next() ABSL_LOCKS_EXCLUDED(mutex_);
  std::mutex mutex_;
  std::condition_variable has_work_;
  std::deque<Waiting> tasks_ ABSL_GUARDED_BY(mutex_);
  /// Of each owner with a task there, the further ones.
  absl::flat_hash_map<const void*, std::deque<Task>> further_ ABSL_GUARDED_BY(mutex_);
  std::deque<Task> idle_tasks_ ABSL_GUARDED_BY(mutex_);  ///< Of RunWhenIdle.
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace quantgate
