// OverlapRun: one run of a task graph by the ranks of a group.
//
// On the CPU each rank has a thread for its GEMMs and one for its communication, and a task waits
// for what it depends on. On CUDA each rank's thread puts its tasks on their queues in the order of
// the graph, after what they depend on has been put there: so every moment is marked before
// anything waits for it, and the devices do the waiting. The operations and their operands are the
// same, so are the bits.
//
// A wait for other ranks has the group's deadline. It is counted while the rank itself has nothing
// to do, as in a collective call, to which a rank comes when it has computed what it brings.
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
#include "kernels/base/cancellation.h"
#include "kernels/comm/group/schedule_noise.h"
#include "kernels/comm/overlap/overlap_task_graph.h"
#include "kernels/comm/overlap/overlap_timeline.h"

namespace quantgate {

/// A rank's queues, by OverlapQueue. On the CPU kCompute serves for kComputeBeside too.
using OverlapLanes = std::array<Engine*, kOverlapQueues>;

/// What a rank's thread does when its first GEMMs are on their queues and no copy is. It may wait,
/// also for other ranks, while the device multiplies. Called once, with how the rank has fared so
/// far, so that it tells the others instead of leaving them to wait; gives that, or its own
/// failure.
using BeforeCopies = std::function<absl::Status(const absl::Status& so_far)>;

struct OverlapRunOptions {
  bool queues_work = false;                     ///< The engines are CUDA's.
  bool keeps_times = false;                     ///< TimelineOf is asked for.
  absl::Duration deadline = absl::Seconds(60);  ///< Of each wait of a rank for others.
  ScheduleNoise noise = {};
  /// Under queues_work, by rank; none where there is nothing to do.
  std::vector<BeforeCopies> before_copies = {};
};

class OverlapRun {
 public:
  /// `lanes` of every rank. Engines must outlive the run.
  OverlapRun(TaskGraph graph, std::vector<OverlapLanes> lanes, OverlapRunOptions options);

  /// The part of one rank, each on a thread of its own and each once. Returns when everything that
  /// uses the rank's memory has been done, or put on queues for which the rank's engine waits. The
  /// first failure of any rank, with rank and task, is what every rank gets that has not returned
  /// by then: DEADLINE_EXCEEDED naming whom the rank waited for where that did not come. After a
  /// failure other ranks may still read this rank's memory, which they keep: nobody may write to
  /// it.
  absl::Status RunRank(int rank, const Cancellation* cancellation);

  /// Of a rank whose RunRank has returned OK, under keeps_times; waits for its tasks.
  absl::StatusOr<OverlapTimeline> TimelineOf(int rank) const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Progress {
    bool done = false;
    std::shared_ptr<const Moment> end;
    std::shared_ptr<const TimePoint> begin_time, end_time;
  };
  struct RankProgress {
    std::shared_ptr<const Moment> begun;  ///< Null until it has.
    std::shared_ptr<const TimePoint> origin;
    int tasks_under_way = 0;
    Clock::time_point idle_since;  ///< Where no task is under way.
  };
  /// Who waits, and before which task; null: at the end.
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
  absl::Status status_;               ///< The first failure.
  std::vector<bool> has_queued_all_;  ///< By rank.
  std::vector<Progress> progress_;    ///< By task.
  std::vector<RankProgress> ranks_;
};

}  // namespace quantgate
