#include "kernels/comm/overlap_runner.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace quantgate {
namespace {

/// How often a waiting thread looks at its cancellation, which tells nobody.
constexpr std::chrono::milliseconds kLook(20);

}  // namespace

OverlapRun::OverlapRun(TaskGraph graph, std::vector<OverlapLanes> lanes, OverlapRunOptions options)
    : graph_(std::move(graph)),
      lanes_(std::move(lanes)),
      options_(std::move(options)),
      progress_(graph_.tasks().size()),
      begun_(lanes_.size()),
      origins_(lanes_.size()) {}

Engine& OverlapRun::LaneOf(const OverlapTask& task) const {
  const OverlapQueue queue = options_.queues_work || task.queue() != OverlapQueue::kComputeBeside
                                 ? task.queue()
                                 : OverlapQueue::kCompute;
  return *lanes_[task.rank][static_cast<size_t>(queue)];
}

absl::Status OverlapRun::RunRank(int rank, const Cancellation* cancellation) {
  absl::Status status = Begin(rank);
  if (options_.queues_work) {
    status = RunQueued(rank, std::move(status), cancellation);
  } else if (status.ok()) {
    status = RunOnThreads(rank, cancellation);
  }
  if (!status.ok()) Fail(status);
  // What is on queues already uses the ranks' memory, however the run went.
  const absl::Status joined = Join(rank);
  const std::lock_guard<std::mutex> lock(mutex_);
  return status_.ok() ? joined : status_;
}

// Lanes begin after everything asked of the rank's engine: what made the operands, and what last
// used memory that a lane gets anew.
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
    begun_[rank] = moment;
    origins_[rank] = std::move(origin);
  }
  changed_.notify_all();
  return absl::OkStatus();
}

// A rank stays until all have put what they have on queues, whether that went well or not: it may
// be of this rank's memory.
absl::Status OverlapRun::RunQueued(int rank, absl::Status status,
                                   const Cancellation* cancellation) {
  status = Queue(rank, std::move(status), cancellation);
  if (!status.ok()) Fail(status);
  std::unique_lock<std::mutex> lock(mutex_);
  ++queued_ranks_;
  changed_.notify_all();
  changed_.wait(lock, [&] { return queued_ranks_ == graph_.ranks(); });
  return status;
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
  return Await(graph_.TasksThatUse(rank), cancellation);
}

absl::Status OverlapRun::RunInOrder(const std::vector<int>& tasks,
                                    const Cancellation* cancellation) {
  for (const int index : tasks) {
    const OverlapTask& task = graph_.tasks()[index];
    QG_RETURN_IF_ERROR(Await(task.after, cancellation));
    Delay(options_.noise, task.rank, static_cast<uint64_t>(index), NoisePoint::kBeforeTask);
    const absl::Status status = RunTask(index);
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat("rank ", task.rank, ", ", task.name, ": ",
                                                      std::string(status.message())));
    }
  }
  return absl::OkStatus();
}

absl::Status OverlapRun::RunTask(int index) {
  const OverlapTask& task = graph_.tasks()[index];
  Engine& lane = LaneOf(task);
  std::vector<std::shared_ptr<const Moment>> earlier;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    if (task.peer >= 0) {
      // The peer's memory is there once the peer has come.
      changed_.wait(lock, [&] { return begun_[task.peer] != nullptr || !status_.ok(); });
      QG_RETURN_IF_ERROR(status_);
      earlier.push_back(begun_[task.peer]);
    }
    for (const int dependency : task.after) {
      if (&LaneOf(graph_.tasks()[dependency]) == &lane) continue;  // In order already.
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
  progress.done = true;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    progress_[index] = std::move(progress);
  }
  changed_.notify_all();
  return absl::OkStatus();
}

absl::Status OverlapRun::Await(const std::vector<int>& tasks, const Cancellation* cancellation) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    QG_RETURN_IF_ERROR(status_);
    if (std::all_of(tasks.begin(), tasks.end(), [&](int index) { return progress_[index].done; })) {
      return absl::OkStatus();
    }
    if (cancellation != nullptr) QG_RETURN_IF_ERROR(cancellation->Check());
    changed_.wait_for(lock, kLook);
  }
}

void OverlapRun::Fail(absl::Status status) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (status_.ok()) status_ = std::move(status);
  }
  changed_.notify_all();
}

// The rank's engine waits for the last of each queue that uses the rank's memory.
absl::Status OverlapRun::Join(int rank) {
  Engine& engine = *lanes_[rank][0];
  std::map<Engine*, std::shared_ptr<const Moment>> last;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const int index : graph_.TasksThatUse(rank)) {
      if (!progress_[index].done) continue;
      Engine& lane = LaneOf(graph_.tasks()[index]);
      if (&lane != &engine) last[&lane] = progress_[index].end;
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
    QG_ASSIGN_OR_RETURN(record.begin_s, progress_[i].begin_time->SecondsSince(*origins_[rank]));
    QG_ASSIGN_OR_RETURN(record.end_s, progress_[i].end_time->SecondsSince(*origins_[rank]));
    timeline.tasks.push_back(std::move(record));
  }
  return timeline;
}

}  // namespace quantgate
