// LoopSharing: threads that work side by side lend each other their CPUs. The loop of one is open
// to helpers while others wait, as the ranks of a run wait for the slowest of them, whose CPU may
// be a slower one or have other work.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "kernels/base/parallel_for_each.h"

namespace quantgate {

/// Thread-safe. Helpers are threads of its own, begun when one is first wanted.
class LoopSharing {
  struct Loop {
    WorkFeed& feed;
    absl::FunctionRef<void(WorkFeed&)> worker;
    int helpers = 0;
    bool is_over = false;  ///< A helper has found no more pieces, or could not take them.
  };

 public:
  /// For so many member threads, whose loops have `threads_each` threads, on `cpus` CPUs. A member
  /// counts as working until its thread waits or has ended.
  LoopSharing(int cpus, int threads_each, int members);
  /// After the last member.
  ~LoopSharing();
  LoopSharing(const LoopSharing&) = delete;
  LoopSharing& operator=(const LoopSharing&) = delete;

  /// Helpers begun so far.
  int helpers();

  /// The calling thread is a member for as long as this lives, and has ended after that.
  class Member {
   public:
    explicit Member(LoopSharing& sharing);
    ~Member();
    Member(const Member&) = delete;
    Member& operator=(const Member&) = delete;
  };

  /// The calling thread waits for as long as this lives. Of a thread that is no member: nothing.
  class Wait {
   public:
    Wait();
    ~Wait();
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    LoopSharing* const sharing_;
  };

  /// Opens a loop of the calling thread to helpers. Of a thread that is no member: nothing.
  class OpenLoop {
   public:
    OpenLoop(WorkFeed& feed, absl::FunctionRef<void(WorkFeed&)> worker);
    /// Waits for the helpers in it. When the feed has no more pieces.
    ~OpenLoop();
    OpenLoop(const OpenLoop&) = delete;
    OpenLoop& operator=(const OpenLoop&) = delete;

   private:
    LoopSharing* const sharing_;
    std::optional<Loop> loop_;
  };

 private:
  void AddWorking(int members);
  /// The body of a helper's thread. It stays in a loop until that has no more pieces.
  void Help();
  /// The one with most pieces left that a helper may take part in now; null: there is none.
  Loop* LoopToHelp() const;
  /// One more helper, where there is something to do for it.
  void WakeOne();

  const int cpus_;
  const int threads_each_;
  std::mutex mutex_;
  std::condition_variable changed_;  // For helpers: there may be something to do.
  std::condition_variable left_;     // For owners of loops: the last helper has left.
  int working_;                      // Members.
  std::vector<Loop*> loops_;
  int helping_ = 0;
  bool is_ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace quantgate
