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
  /// As Run, but behind: one thread in four at most takes such tasks, and of those that are taken
  /// no more than every other one where others wait too.
  void RunBehind(Task task, const void* owner);
  /// When no other task waits.
  void RunWhenIdle(Task task);
  int threads() const { return static_cast<int>(threads_.size()); }

 private:
  struct Waiting {
    Task task;
    const void* owner = nullptr;
  };
  /// Tasks that wait, of each owner one at a time.
  class Line {
   public:
    void Add(Task task, const void* owner);
    Task Take();
    bool empty() const { return tasks_.empty(); }

   private:
    std::deque<Waiting> tasks_;
    /// Of each owner with a task there, the further ones.
    absl::flat_hash_map<const void*, std::deque<Task>> further_;
  };

  void Work();
  /// The next task, once there is one; none when the executor ends. `is_behind` of the thread's
  /// last task, and then of this one.
  Task Next(bool& is_behind) ABSL_LOCKS_EXCLUDED(mutex_);
  bool MayTakeBehind() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::mutex mutex_;
  std::condition_variable has_work_;
  Line line_ ABSL_GUARDED_BY(mutex_);
  Line behind_ ABSL_GUARDED_BY(mutex_);
  const int running_behind_max_;
  int running_behind_ ABSL_GUARDED_BY(mutex_) = 0;
  bool was_behind_last_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Task> idle_tasks_ ABSL_GUARDED_BY(mutex_);  ///< Of RunWhenIdle.
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace quantgate
