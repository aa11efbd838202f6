// OverlapRun: one run of a task graph by the ranks of a group.
//
// On the CPU each rank has a thread for its GEMMs and one for its communication, and a task waits
// for what it depends on. On CUDA each rank's thread puts its tasks on their queues in the order of
// the graph, after what they depend on has been put there: so every moment is marked before
// anything waits for it, and the devices do the waiting. The operations and their operands are the
// same, so are the bits.
#pragma once

#include <array>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/cancellation.h"
#include "kernels/comm/overlap_task_graph.h"
#include "kernels/comm/overlap_timeline.h"
#include "kernels/comm/schedule_noise.h"

namespace quantgate {

/// A rank's queues, by OverlapQueue. On the CPU kCompute serves for kComputeBeside too.
using OverlapLanes = std::array<Engine*, kOverlapQueues>;

/// What a rank's thread does when its first GEMMs are on their queues and no copy is. It may wait,
/// also for other ranks, while the device multiplies. Called once, with how the rank has fared so
/// far, so that it tells the others instead of leaving them to wait; gives that, or its own
/// failure.
using BeforeCopies = std::function<absl::Status(const absl::Status& so_far)>;

struct OverlapRunOptions {
  bool queues_work = false;  ///< The engines are CUDA's.
  bool keeps_times = false;  ///< TimelineOf is asked for.
  ScheduleNoise noise;
  /// Under queues_work, by rank; none where there is nothing to do.
  std::vector<BeforeCopies> before_copies;
};

class OverlapRun {
 public:
  /// `lanes` of every rank. Engines must outlive the run.
  OverlapRun(TaskGraph graph, std::vector<OverlapLanes> lanes, OverlapRunOptions options);

  /// The part of one rank, each on a thread of its own and each once. Returns when everything that
  /// uses the rank's memory has been done, or put on queues for which the rank's engine waits. The
  /// first failure of any rank, with rank and task, is what every rank gets.
  absl::Status RunRank(int rank, const Cancellation* cancellation);

  /// Of a rank whose RunRank has returned OK, under keeps_times; waits for its tasks.
  absl::StatusOr<OverlapTimeline> TimelineOf(int rank) const;

 private:
  struct Progress {
    bool done = false;
    std::shared_ptr<const Moment> end;
    std::shared_ptr<const TimePoint> begin_time, end_time;
  };

  Engine& LaneOf(const OverlapTask& task) const;
  absl::Status Begin(int rank);
  absl::Status RunQueued(int rank, absl::Status status, const Cancellation* cancellation);
  absl::Status Queue(int rank, absl::Status begun, const Cancellation* cancellation);
  absl::Status RunOnThreads(int rank, const Cancellation* cancellation);
  absl::Status RunInOrder(const std::vector<int>& tasks, const Cancellation* cancellation);
  absl::Status RunTask(int index);
  absl::Status Await(const std::vector<int>& tasks, const Cancellation* cancellation);
  void Fail(absl::Status status);
  absl::Status Join(int rank);

  const TaskGraph graph_;
  const std::vector<OverlapLanes> lanes_;
  const OverlapRunOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  absl::Status status_;                               ///< The first failure.
  int queued_ranks_ = 0;                              ///< That have put their last task on a queue.
  std::vector<Progress> progress_;                    ///< By task.
  std::vector<std::shared_ptr<const Moment>> begun_;  ///< By rank; null until it is there.
  std::vector<std::shared_ptr<const TimePoint>> origins_;  ///< Of the ranks' timelines.
};

}  // namespace quantgate
