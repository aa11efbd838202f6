#include "kernels/comm/overlap/overlap_task_graph.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"

namespace quantgate {

std::string_view OverlapResourceName(OverlapResource resource) {
  switch (resource) {
    case OverlapResource::kCompute:
      return "compute";
    case OverlapResource::kReceive:
      return "receive";
    case OverlapResource::kReduce:
      return "reduce";
  }
  return "unknown";
}

bool IsCommunication(OverlapResource resource) { return resource != OverlapResource::kCompute; }

OverlapQueue OverlapTask::queue() const {
  switch (resource) {
    case OverlapResource::kCompute:
      return is_beside ? OverlapQueue::kComputeBeside : OverlapQueue::kCompute;
    case OverlapResource::kReceive:
      return OverlapQueue::kReceive;
    case OverlapResource::kReduce:
      break;
  }
  return OverlapQueue::kReduce;
}

absl::StatusOr<int> TaskGraph::Add(OverlapTask task) {
  const int index = static_cast<int>(tasks_.size());
  if (task.rank < 0 || task.rank >= ranks_ || task.peer < -1 || task.peer >= ranks_) {
    return Refuse(absl::StrCat("task ", task.name),
                  absl::StrCat("of rank ", task.rank, " and peer ", task.peer),
                  absl::StrCat("there are ", ranks_, " ranks"));
  }
  for (const int earlier : task.after) {
    if (earlier >= 0 && earlier < index) continue;
    return Refuse(absl::StrCat("task ", task.name), absl::StrCat("after task ", earlier),
                  absl::StrCat("it must depend only on the ", index, " tasks before it"));
  }
  tasks_.push_back(std::move(task));
  return index;
}

std::vector<int> TaskGraph::TasksOf(int rank) const {
  std::vector<int> found;
  for (size_t i = 0; i < tasks_.size(); ++i) {
    if (tasks_[i].rank == rank) found.push_back(static_cast<int>(i));
  }
  return found;
}

std::vector<int> TaskGraph::TasksOf(int rank, bool communication) const {
  std::vector<int> found = TasksOf(rank);
  std::erase_if(
      found, [&](int index) { return IsCommunication(tasks_[index].resource) != communication; });
  return found;
}

std::vector<int> TaskGraph::TasksThatUse(int rank) const {
  std::vector<int> found;
  for (size_t i = 0; i < tasks_.size(); ++i) {
    if (tasks_[i].rank == rank || tasks_[i].peer == rank) found.push_back(static_cast<int>(i));
  }
  return found;
}

}  // namespace quantgate
