// The work of an overlapped call as a graph of tasks, each with its rank, its resource and the
// tasks that it depends on. One graph has the tasks of all ranks. It is built once, in an order in
// which every task comes after its dependencies, and the same graph runs on threads and on streams.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/engine/engine.h"

namespace quantgate {

/// The resource of its rank that a task occupies.
enum class OverlapResource {
  kCompute,  ///< GEMMs, on the rank's engine.
  kReceive,  ///< Copies into the rank's own memory.
  kReduce,   ///< Sums of the ranks' partial products.
};
/// "compute", "receive", "reduce".
std::string_view OverlapResourceName(OverlapResource resource);
/// True for every resource but kCompute.
bool IsCommunication(OverlapResource resource);

/// A rank's queues. The tasks of a queue run one at a time, in the order in which they were added.
enum class OverlapQueue {
  kCompute,  ///< The rank's engine.
  /// Every second GEMM, so that its kernel begins when the one before no longer fills the device.
  kComputeBeside,
  kReceive,
  kReduce,
};
inline constexpr int kOverlapQueues = 4;

struct OverlapTask {
  std::string name;  ///< "gemm rows of 3", "copy rows of 3 from 2": unique in its rank's resource.
  int rank = 0;
  OverlapResource resource = OverlapResource::kCompute;
  /// A rank other than `rank` whose memory the task reads or writes; -1: none.
  int peer = -1;
  /// Indices of tasks that must have ended.
  std::vector<int> after;
  /// Does the work, or puts it on `engine`, the engine of the task's queue.
  std::function<absl::Status(Engine& engine)> work;
  bool is_beside = false;  ///< The task is a GEMM on kComputeBeside.

  OverlapQueue queue() const;
};

class TaskGraph {
 public:
  explicit TaskGraph(int ranks) : ranks_(ranks) {}

  /// Adds a task and gives its index. INVALID_ARGUMENT naming the task where its rank or peer is
  /// not a rank of the graph, or where it depends on a task that is not there yet, so that no graph
  /// has a cycle.
  absl::StatusOr<int> Add(OverlapTask task);

  int ranks() const { return ranks_; }
  const std::vector<OverlapTask>& tasks() const { return tasks_; }
  /// The tasks of a rank, in order: all of them, or those that do (or do not) communicate.
  std::vector<int> TasksOf(int rank) const;
  std::vector<int> TasksOf(int rank, bool communication) const;
  /// The tasks that a rank must outlive: its own, and those of other ranks that use its memory.
  std::vector<int> TasksThatUse(int rank) const;

 private:
  int ranks_;
  std::vector<OverlapTask> tasks_;
};

}  // namespace quantgate
