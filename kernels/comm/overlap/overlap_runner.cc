#include "kernels/comm/overlap/overlap_runner.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"

namespace quantgate {
namespace {

/// How often a waiting thread checks the time and its cancellation, which wake nobody.
constexpr std::chrono::milliseconds kLook(20);

/// "rank 0, copy rows of 1 from 1: "; a null task stands for the end of the run.
std::string Where(int rank, const OverlapTask* task) {
  return absl::StrCat("rank ", rank, ", ", task == nullptr ? "at its end" : task->name, ": ");
}

}  // namespace

OverlapRun::OverlapRun(TaskGraph graph, std::vector<OverlapLanes> lanes, OverlapRunOptions options)
    : graph_(std::move(graph)),
      lanes_(std::move(lanes)),
      options_(std::move(options)),
      has_queued_all_(lanes_.size()),
      progress_(graph_.tasks().size()),
      ranks_(lanes_.size()) {}

Engine* OverlapRun::LaneOf(const OverlapTask& task) const {
  const OverlapQueue queue = options_.queues_work || task.queue() != OverlapQueue::kComputeBeside
                                 ? task.queue()
                                 : OverlapQueue::kCompute;
  return lanes_[task.rank][static_cast<size_t>(queue)];
}

absl::Status OverlapRun::RunRank(int rank, const Cancellation* cancellation) {
  absl::Status status = Begin(rank);
  if (options_.queues_work) {
    status = RunQueued(rank, std::move(status), cancellation);
  } else if (status.ok()) {
    status = RunOnThreads(rank, cancellation);
  }
  if (!status.ok()) Fail(status);
  // Work that is on queues uses the ranks' memory, also after a failure.
  const absl::Status joined = Join(rank);
  const std::lock_guard<std::mutex> lock(mutex_);
  return status_.ok() ? joined : status_;
}

// Lanes begin after everything that was asked of the rank's engine before: what made the operands,
// and the last use of memory that a lane is given anew.
absl::Status OverlapRun::Begin(int rank) {
  Engine& engine = *lanes_[rank][0];
  QG_ASSIGN_OR_RETURN(const std::shared_ptr<const Moment> moment, engine.MarkMoment());
  for (Engine* lane : lanes_[rank]) {
    if (lane != &engine) QG_RETURN_IF_ERROR(lane->WaitFor(*moment));
  }
  std::shared_ptr<const TimePoint> origin;
  if (options_.keeps_times) {
    QG_ASSIGN_OR_RETURN(origin, engine.MarkTime());
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ranks_[rank].begun = moment;
    ranks_[rank].origin = std::move(origin);
  }
  changed_.notify_all();
  return absl::OkStatus();
}

absl::Status OverlapRun::RunQueued(int rank, absl::Status status,
                                   const Cancellation* cancellation) {
  status = Queue(rank, std::move(status), cancellation);
  if (!status.ok()) Fail(status);
  const absl::Status all_queued = AwaitQueued(rank);
  return status.ok() ? all_queued : status;
}

// A rank stays until all ranks have put their work on queues, also after a failure: that work may
// use this rank's memory, to which the next call writes. A rank that does not come within the
// deadline fails the run, and after a failed run nobody writes there.
absl::Status OverlapRun::AwaitQueued(int rank) {
  const Clock::time_point begin = Clock::now();
  std::unique_lock<std::mutex> lock(mutex_);
  has_queued_all_[rank] = true;
  changed_.notify_all();
  while (!absl::IsDeadlineExceeded(status_)) {
    const auto late = std::find(has_queued_all_.begin(), has_queued_all_.end(), false);
    if (late == has_queued_all_.end()) return absl::OkStatus();
    if (absl::FromChrono(Clock::now() - begin) > options_.deadline) {
      return DeadlineError({.rank = rank},
                           absl::StrCat("rank ", late - has_queued_all_.begin(), " did not come"));
    }
    changed_.wait_for(lock, kLook);
  }
  return status_;
}

absl::Status OverlapRun::Queue(int rank, absl::Status begun, const Cancellation* cancellation) {
  const std::vector<int> tasks = graph_.TasksOf(rank);
  const auto first_copy = std::find_if(tasks.begin(), tasks.end(), [&](int index) {
    return IsCommunication(graph_.tasks()[index].resource);
  });
  absl::Status status = std::move(begun);
  if (status.ok()) status = RunInOrder({tasks.begin(), first_copy}, cancellation);
  if (!options_.before_copies.empty() && options_.before_copies[rank]) {
    status = options_.before_copies[rank](status);
  }
  QG_RETURN_IF_ERROR(status);
  return RunInOrder({first_copy, tasks.end()}, cancellation);
}

absl::Status OverlapRun::RunOnThreads(int rank, const Cancellation* cancellation) {
  absl::Status communicated;
  std::thread communication([&] {
    communicated = RunInOrder(graph_.TasksOf(rank, /*communication=*/true), cancellation);
    if (!communicated.ok()) Fail(communicated);
  });
  absl::Status computed = RunInOrder(graph_.TasksOf(rank, /*communication=*/false), cancellation);
  if (!computed.ok()) Fail(computed);
  communication.join();
  QG_RETURN_IF_ERROR(computed);
  QG_RETURN_IF_ERROR(communicated);
  return AwaitTasks({.rank = rank, .cancellation = cancellation}, graph_.TasksThatUse(rank));
}

absl::Status OverlapRun::RunInOrder(const std::vector<int>& tasks,
                                    const Cancellation* cancellation) {
  for (const int index : tasks) {
    const OverlapTask& task = graph_.tasks()[index];
    QG_RETURN_IF_ERROR(AwaitTasks({task.rank, &task, cancellation}, task.after));
    Delay(options_.noise, task.rank, static_cast<uint64_t>(index), NoisePoint::kBeforeTask);
    const absl::Status status = RunTask(index);
    if (!status.ok()) {
      return Prefixed(Where(task.rank, &task), status);
    }
  }
  return absl::OkStatus();
}

absl::Status OverlapRun::RunTask(int index) {
  RankProgress& mine = ranks_[graph_.tasks()[index].rank];
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++mine.tasks_under_way;
  }
  absl::Status status = DoTask(index);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    --mine.tasks_under_way;
    mine.idle_since = Clock::now();
    if (status.ok()) progress_[index].done = true;
  }
  changed_.notify_all();
  return status;
}

absl::Status OverlapRun::DoTask(int index) {
  const OverlapTask& task = graph_.tasks()[index];
  Engine& lane = *LaneOf(task);
  std::vector<std::shared_ptr<const Moment>> earlier;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (task.peer >= 0) earlier.push_back(ranks_[task.peer].begun);
    for (const int dependency : task.after) {
      if (LaneOf(graph_.tasks()[dependency]) == &lane) continue;  // In order already.
      earlier.push_back(progress_[dependency].end);
    }
  }
  for (const auto& moment : earlier) QG_RETURN_IF_ERROR(lane.WaitFor(*moment));
  Progress progress;
  if (options_.keeps_times) {
    QG_ASSIGN_OR_RETURN(progress.begin_time, lane.MarkTime());
  }
  QG_RETURN_IF_ERROR(task.work(lane));
  if (options_.keeps_times) {
    QG_ASSIGN_OR_RETURN(progress.end_time, lane.MarkTime());
  }
  QG_ASSIGN_OR_RETURN(progress.end, lane.MarkMoment());
  const std::lock_guard<std::mutex> lock(mutex_);
  progress_[index] = std::move(progress);
  return absl::OkStatus();
}

// Waits for the tasks to end, and for the peer of the waiter's next task to begin: only then does
// the peer's memory exist.
absl::Status OverlapRun::AwaitTasks(const Waiter& waiter, const std::vector<int>& tasks) {
  const Clock::time_point begin = Clock::now();
  const int peer = waiter.task == nullptr ? -1 : waiter.task->peer;
  const RankProgress& mine = ranks_[waiter.rank];
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    QG_RETURN_IF_ERROR(status_);
    if ((peer < 0 || ranks_[peer].begun != nullptr) &&
        std::all_of(tasks.begin(), tasks.end(), [&](int index) { return progress_[index].done; })) {
      return absl::OkStatus();
    }
    if (waiter.cancellation != nullptr) QG_RETURN_IF_ERROR(waiter.cancellation->Check());
    const Clock::time_point idle_since = std::max(begin, mine.idle_since);
    if (mine.tasks_under_way == 0 &&
        absl::FromChrono(Clock::now() - idle_since) > options_.deadline) {
      const std::string late = LatePeer(waiter, tasks);
      if (!late.empty()) return DeadlineError(waiter, late);
    }
    changed_.wait_for(lock, kLook);
  }
}

// The rank that holds up the waiter in the end; empty where that is the waiter itself, whose other
// thread reports it.
std::string OverlapRun::LatePeer(const Waiter& waiter, const std::vector<int>& tasks) const {
  if (waiter.task != nullptr && waiter.task->peer >= 0 &&
      ranks_[waiter.task->peer].begun == nullptr) {
    return absl::StrCat("rank ", waiter.task->peer, " did not come");
  }
  for (const int index : tasks) {
    if (progress_[index].done) continue;
    const OverlapTask& task = graph_.tasks()[HoldUpOf(index)];
    if (task.rank == waiter.rank) continue;
    return absl::StrCat("rank ", task.rank, " did not come to the end of ", task.name);
  }
  return "";
}

// Whether `task`, at `index`, must wait for the end of the task at `earlier`, because it depends on
// it or comes after it on the same thread.
bool OverlapRun::IsHeldUpBy(const OverlapTask& task, int index, int earlier) const {
  if (std::find(task.after.begin(), task.after.end(), earlier) != task.after.end()) return true;
  const OverlapTask& other = graph_.tasks()[earlier];
  return earlier < index && other.rank == task.rank &&
         (options_.queues_work ||
          IsCommunication(other.resource) == IsCommunication(task.resource));
}

// The task at the root of a delay: the one that holds up the task at `index` and is itself held up
// by nothing. It is the task itself or an earlier one.
int OverlapRun::HoldUpOf(int index) const {
  for (int earlier = 0; earlier < index;) {
    if (!progress_[earlier].done && IsHeldUpBy(graph_.tasks()[index], index, earlier)) {
      index = earlier;
      earlier = 0;
    } else {
      ++earlier;
    }
  }
  return index;
}

absl::Status OverlapRun::DeadlineError(const Waiter& waiter, const std::string& late) const {
  return absl::DeadlineExceededError(absl::StrCat(Where(waiter.rank, waiter.task), late, " within ",
                                                  absl::FormatDuration(options_.deadline)));
}

void OverlapRun::Fail(absl::Status status) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (status_.ok()) status_ = std::move(status);
  }
  changed_.notify_all();
}

// Makes the rank's engine wait for the last task of each queue that uses the rank's memory.
absl::Status OverlapRun::Join(int rank) {
  Engine& engine = *lanes_[rank][0];
  std::map<Engine*, std::shared_ptr<const Moment>> last;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const int index : graph_.TasksThatUse(rank)) {
      if (!progress_[index].done) continue;
      Engine* const lane = LaneOf(graph_.tasks()[index]);
      if (lane != &engine) last[lane] = progress_[index].end;
    }
  }
  for (const auto& [lane, moment] : last) QG_RETURN_IF_ERROR(engine.WaitFor(*moment));
  return absl::OkStatus();
}

absl::StatusOr<OverlapTimeline> OverlapRun::TimelineOf(int rank) const {
  OverlapTimeline timeline;
  for (size_t i = 0; i < graph_.tasks().size(); ++i) {
    const OverlapTask& task = graph_.tasks()[i];
    if (task.rank != rank) continue;
    TaskRecord record{task.name, task.resource};
    QG_ASSIGN_OR_RETURN(record.begin_s,
                        progress_[i].begin_time->SecondsSince(*ranks_[rank].origin));
    QG_ASSIGN_OR_RETURN(record.end_s, progress_[i].end_time->SecondsSince(*ranks_[rank].origin));
    timeline.tasks.push_back(std::move(record));
  }
  return timeline;
}

}  // namespace quantgate
