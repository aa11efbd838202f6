// LoopSharing: member threads that work side by side lend each other their CPUs. While one member
// waits, helper threads take pieces of another's loop. The ranks of a run are such members: all
// wait for the slowest, whose CPU may be a slower one or have other work.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "kernels/base/execution.h"

namespace quantgate {

/// Thread-safe. It owns the helper threads and starts each when it is first needed.
class LoopSharing {
  struct Loop {
    WorkFeed& feed;
    absl::FunctionRef<void(WorkFeed&)> worker;
    int helpers = 0;
    bool is_over = false;  ///< A helper has found no more pieces, or could not take them.
  };

 public:
  /// For `members` threads, each of whose loops runs on `threads_each` threads, on `cpus` CPUs. A
  /// member counts as working until it waits or ends.
  LoopSharing(int cpus, int threads_each, int members);
  /// Every member must have ended.
  ~LoopSharing();
  LoopSharing(const LoopSharing&) = delete;
  LoopSharing& operator=(const LoopSharing&) = delete;

  /// How many helper threads were started so far.
  int helpers();

  /// Makes the calling thread a member for as long as the object lives; the member has ended after
  /// that.
  class Member {
   public:
    explicit Member(LoopSharing& sharing);
    ~Member();
    Member(const Member&) = delete;
    Member& operator=(const Member&) = delete;
  };

  /// Counts the calling thread as waiting for as long as the object lives. Does nothing on a thread
  /// that is no member.
  class Wait {
   public:
    Wait();
    ~Wait();
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    LoopSharing* const sharing_;
  };

  /// Opens a loop of the calling thread to helpers. Does nothing on a thread that is no member.
  class OpenLoop {
   public:
    OpenLoop(WorkFeed& feed, absl::FunctionRef<void(WorkFeed&)> worker);
    /// Waits for the helpers that are in the loop. The feed must have no more pieces.
    ~OpenLoop();
    OpenLoop(const OpenLoop&) = delete;
    OpenLoop& operator=(const OpenLoop&) = delete;

   private:
    LoopSharing* const sharing_;
    std::optional<Loop> loop_;
  };

 private:
  void AddWorking(int members);
  /// The body of a helper thread, which stays in a loop until the loop has no more pieces.
  void Help();
  /// The loop with the most pieces left that a helper may join now; null when there is none.
  Loop* LoopToHelp() const;
  /// Wakes or starts one more helper if there is a loop to join.
  void WakeOne();

  const int cpus_;
  const int threads_each_;
  std::mutex mutex_;
  std::condition_variable changed_;  // Tells helpers that there may be a loop to join.
  std::condition_variable left_;     // Tells owners of loops that the last helper has left.
  int working_;                      // Members that do not wait.
  std::vector<Loop*> loops_;
  int helping_ = 0;
  bool is_ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace quantgate
