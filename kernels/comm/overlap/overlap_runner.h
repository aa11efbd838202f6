// OverlapRun: one run of a task graph by the ranks of a group.
//
// On the CPU each rank has a thread for its GEMMs and one for its communication, and a task waits
// for its dependencies. On CUDA each rank's thread puts its tasks on their queues in the order of
// the graph, after the dependencies have been put on theirs. So every moment is marked before
// anything waits for it, and the devices do the waiting. The operations and their operands are the
// same on both, and so are the bits.
//
// A wait for other ranks has the group's deadline. The time counts only while the rank itself has
// nothing to do, as in a collective call, to which a rank comes once it has computed its part.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/base/execution.h"
#include "kernels/comm/group/schedule_noise.h"
#include "kernels/comm/overlap/overlap_task_graph.h"
#include "kernels/comm/overlap/overlap_timeline.h"

namespace quantgate {

/// A rank's queues, by OverlapQueue. On the CPU kComputeBeside is the same engine as kCompute.
using OverlapLanes = std::array<Engine*, kOverlapQueues>;

/// Called once by a rank's thread when its first GEMMs are on their queues and no copy is. It may
/// wait, also for other ranks, while the device multiplies. `so_far` is the rank's status: after an
/// error the function tells the other ranks instead of leaving them to wait. Gives `so_far` or its
/// own error.
using BeforeCopies = std::function<absl::Status(const absl::Status& so_far)>;

struct OverlapRunOptions {
  bool queues_work = false;                     ///< True for CUDA engines.
  bool keeps_times = false;                     ///< Needed for TimelineOf.
  absl::Duration deadline = absl::Seconds(60);  ///< Time after which a wait for others fails.
  ScheduleNoise noise = {};
  /// By rank, with queues_work only; empty or null where there is nothing to do.
  std::vector<BeforeCopies> before_copies = {};
};

class OverlapRun {
 public:
  /// `lanes` are by rank. Engines must outlive the run.
  OverlapRun(TaskGraph graph, std::vector<OverlapLanes> lanes, OverlapRunOptions options);

  /// Runs the part of one rank; called once for each rank, on a thread of its own. Returns when
  /// everything that uses the rank's memory has been done, or put on queues for which the rank's
  /// engine waits. The first failure of any rank, with rank and task, is returned to every rank
  /// that has not returned by then; DEADLINE_EXCEEDED names the rank that did not come. After a
  /// failure other ranks may still read this rank's memory, which they keep alive: nobody may write
  /// to it.
  absl::Status RunRank(int rank, const Cancellation* cancellation);

  /// The timeline of a rank whose RunRank has returned OK, with keeps_times; waits for its tasks.
  absl::StatusOr<OverlapTimeline> TimelineOf(int rank) const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Progress {
    bool done = false;
    std::shared_ptr<const Moment> end;
    std::shared_ptr<const TimePoint> begin_time, end_time;
  };
  struct RankProgress {
    std::shared_ptr<const Moment> begun;  ///< Null until the rank has begun.
    std::shared_ptr<const TimePoint> origin;
    int tasks_under_way = 0;
    Clock::time_point idle_since;  ///< Meaningful while no task is under way.
  };
  /// A rank that waits before a task; null: at the end of the run.
  struct Waiter {
    int rank = 0;
    const OverlapTask* task = nullptr;
    const Cancellation* cancellation = nullptr;
  };

  Engine* LaneOf(const OverlapTask& task) const;
  absl::Status Begin(int rank);
  absl::Status RunQueued(int rank, absl::Status status, const Cancellation* cancellation);
  absl::Status Queue(int rank, absl::Status begun, const Cancellation* cancellation);
  absl::Status RunOnThreads(int rank, const Cancellation* cancellation);
  absl::Status RunInOrder(const std::vector<int>& tasks, const Cancellation* cancellation);
  absl::Status RunTask(int index);
  absl::Status DoTask(int index);
  absl::Status AwaitTasks(const Waiter& waiter, const std::vector<int>& tasks);
  absl::Status AwaitQueued(int rank);
  std::string LatePeer(const Waiter& waiter, const std::vector<int>& tasks) const;
  bool IsHeldUpBy(const OverlapTask& task, int index, int earlier) const;
  int HoldUpOf(int index) const;
  absl::Status DeadlineError(const Waiter& waiter, const std::string& late) const;
  void Fail(absl::Status status);
  absl::Status Join(int rank);

  const TaskGraph graph_;
  const std::vector<OverlapLanes> lanes_;
  const OverlapRunOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  absl::Status status_;               ///< The first failure of any rank.
  std::vector<bool> has_queued_all_;  ///< By rank.
  std::vector<Progress> progress_;    ///< By task.
  std::vector<RankProgress> ranks_;
};

}  // namespace quantgate
