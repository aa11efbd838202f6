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

/// What of a rank a task occupies. Tasks of one resource of one rank run one at a time, in the
/// order in which they were added.
enum class OverlapResource {
  kCompute,  ///< GEMMs: the rank's engine.
  kReceive,  ///< Copies into the rank's own memory.
  kReduce,   ///< Sums of what the ranks made.
};
inline constexpr int kOverlapResources = 3;
/// "compute", "receive", "reduce".
std::string_view OverlapResourceName(OverlapResource resource);
/// All but kCompute.
bool IsCommunication(OverlapResource resource);

struct OverlapTask {
  std::string name;  ///< "gemm rows of 3", "copy rows of 3 from 2": unique in its rank's resource.
  int rank = 0;
  OverlapResource resource = OverlapResource::kCompute;
  /// A rank other than `rank` whose memory the task reads or writes; -1: none.
  int peer = -1;
  /// Indices of tasks that must have ended.
  std::vector<int> after;
  /// Does it, or puts it on the queue of `engine`, which is the resource's.
  std::function<absl::Status(Engine& engine)> work;
};

class TaskGraph {
 public:
  explicit TaskGraph(int ranks) : ranks_(ranks) {}

  /// Index of the task. INVALID_ARGUMENT naming the task where its rank or peer is none, or where
  /// it comes after one that is not there yet, so that no graph has a cycle.
  absl::StatusOr<int> Add(OverlapTask task);

  int ranks() const { return ranks_; }
  const std::vector<OverlapTask>& tasks() const { return tasks_; }
  /// Tasks of a rank that are on one of the resources, in order.
  std::vector<int> TasksOf(int rank, bool communication) const;
  /// Tasks that a rank has to outlive: its own, and others' that use its memory.
  std::vector<int> TasksThatUse(int rank) const;

 private:
  int ranks_;
  std::vector<OverlapTask> tasks_;
};

}  // namespace quantgate
