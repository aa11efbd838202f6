// Executor: a fixed number of threads that run short tasks in order of arrival, where only one task
// of an owner is in line at a time. Disk, hashing and conversion run here, so that gRPC's threads
// only move bytes. Thread-safe.
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

  /// Queues a task. Of the tasks of one owner, for example a connection, only one is in the line;
  /// the next joins the end of the line when that one starts, so that an owner with thousands of
  /// tasks holds up nobody else. A task with a null owner has an owner to itself. Queueing is
  /// noexcept, for the reason in runs/memory_guard.h: a task is queued once, or the process ends.
  void Run(Task task, const void* owner = nullptr) noexcept;
  /// As Run, with lower priority: at most one thread in four runs such tasks, and while others wait
  /// too, at most every other task taken is such a one.
  void RunBehind(Task task, const void* owner) noexcept;
  /// Runs a task as soon as no other task waits.
  void RunWhenIdle(Task task) noexcept;
  int threads() const { return static_cast<int>(threads_.size()); }

 private:
  struct Waiting {
    Task task;
    const void* owner = nullptr;
  };
  /// A line of tasks, with one of each owner at a time.
  class Line {
   public:
    void Add(Task task, const void* owner);
    Task Take();
    bool empty() const { return tasks_.empty(); }

   private:
    std::deque<Waiting> tasks_;
    /// The further tasks of each owner that has one in tasks_.
    absl::flat_hash_map<const void*, std::deque<Task>> further_;
  };

  void Work();
  /// Waits for the next task; an empty one when the executor ends. `is_behind` says whether the
  /// thread's last task came by RunBehind, and is set to whether this one did.
  Task Next(bool& is_behind) ABSL_LOCKS_EXCLUDED(mutex_);
  bool MayTakeBehind() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::mutex mutex_;
  std::condition_variable has_work_;
  Line line_ ABSL_GUARDED_BY(mutex_);
  Line behind_ ABSL_GUARDED_BY(mutex_);
  const int running_behind_max_;
  int running_behind_ ABSL_GUARDED_BY(mutex_) = 0;
  bool was_behind_last_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Task> idle_tasks_ ABSL_GUARDED_BY(mutex_);  ///< Tasks of RunWhenIdle.
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace quantgate
