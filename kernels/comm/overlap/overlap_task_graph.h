// The work of an overlapped call as a graph: what is done by which rank on which resource, after
// what. One graph has the tasks of all ranks. It is built once, in an order in which every task
// comes after what it depends on, and the same graph runs on threads and on streams.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/engine/engine.h"

namespace quantgate {

/// What of a rank a task occupies.
enum class OverlapResource {
  kCompute,  ///< GEMMs: the rank's engine.
  kReceive,  ///< Copies into the rank's own memory.
  kReduce,   ///< Sums of what the ranks made.
};
/// "compute", "receive", "reduce".
std::string_view OverlapResourceName(OverlapResource resource);
/// All but kCompute.
bool IsCommunication(OverlapResource resource);

/// A rank's queues. Tasks of one of them run one at a time, in the order in which they were added.
enum class OverlapQueue {
  kCompute,  ///< The rank's engine.
  /// Every other GEMM: its kernel begins where the one before it no longer fills the device.
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
  /// Does it, or puts it on `engine`, which is that of its queue.
  std::function<absl::Status(Engine& engine)> work;
  bool is_beside = false;  ///< A GEMM of kComputeBeside.

  OverlapQueue queue() const;
};

class TaskGraph {
 public:
  explicit TaskGraph(int ranks) : ranks_(ranks) {}

  /// Index of the task. INVALID_ARGUMENT naming the task where its rank or peer is none, or where
  /// it comes after one that is not there yet, so that no graph has a cycle.
  absl::StatusOr<int> Add(OverlapTask task);

  int ranks() const { return ranks_; }
  const std::vector<OverlapTask>& tasks() const { return tasks_; }
  /// Tasks of a rank, in order: all of them, or those that communicate or do not.
  std::vector<int> TasksOf(int rank) const;
  std::vector<int> TasksOf(int rank, bool communication) const;
  /// Tasks that a rank has to outlive: its own, and others' that use its memory.
  std::vector<int> TasksThatUse(int rank) const;

 private:
  int ranks_;
  std::vector<OverlapTask> tasks_;
};

}  // namespace quantgate
