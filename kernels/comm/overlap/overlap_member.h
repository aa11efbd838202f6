// What one rank brings to an overlapped call, and the results that the call's tasks leave with it.
// Private to kernels/comm/overlap.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/comm/overlap/overlap_buffer.h"
#include "kernels/comm/overlap/overlap_runner.h"
#include "kernels/comm/overlap/overlap_schedule.h"
#include "kernels/comm/reduction_profile.h"

namespace quantgate {

/// The one OverlapRun that all members of a call share.
class SharedRun {
 public:
  using Run = std::shared_ptr<OverlapRun>;

  /// The result of `make`, which the first caller runs; the others wait for it, DEADLINE_EXCEEDED
  /// after `deadline`.
  absl::StatusOr<Run> Get(absl::Duration deadline, absl::FunctionRef<absl::StatusOr<Run>()> make);

 private:
  std::mutex mutex_;
  std::condition_variable is_made_;
  bool is_being_made_ = false;
  std::optional<absl::StatusOr<Run>> run_;
};

struct OverlapMember {
  // Brought by the rank.
  OverlapLanes lanes = {};
  std::string owner;                      ///< The buffer's owner while the call lasts.
  std::shared_ptr<OverlapBuffer> buffer;  ///< Receives what arrives; null where nothing does.
  /// The GEMM; in an all-gather whose result it multiplies, its `a` is this rank's shard.
  GemmDesc gemm;
  /// What is gathered: codes and scales, each cut along its first dim. In a ring the first
  /// `operand_parts` of them are those of `a`, with equal rows.
  std::vector<Tensor> shard;
  size_t operand_parts = 0;
  Tensor partial;  ///< What a bulk reduce-scatter sums.
  const Cancellation* cancellation = nullptr;
  BeforeCopies before_copies;  ///< May be null.

  // Made once all members have met.
  std::vector<Tensor> gathered;  ///< The shards of all ranks, end to end: views of the buffer.
  Tensor d;                      ///< Output of a GEMM that multiplies what is gathered.
  /// What the rank adds to the sum: one product, or one for each split of the columns. Not in the
  /// buffer.
  std::vector<Tensor> partials;
  Tensor y;  ///< This rank's rows of the sum, where they are summed piece by piece.
  /// For each of `partials`, this rank's rows as received from the ranks r - 1, r - 2, ...
  std::vector<std::vector<Tensor>> received;

  // Left by the tasks.
  std::vector<GemmResult> gemms;
  std::vector<Tensor> sums;  ///< This rank's rows of the sum by split of the columns; empty with y.

  SharedRun run;  ///< That of member 0 serves all members.

  Engine& engine() const { return *lanes[0]; }
};

using OverlapMembers = std::vector<std::shared_ptr<OverlapMember>>;

/// How a call is cut; the same for every rank.
struct OverlapCut {
  bool aggregate = false;
  int pieces = 1;
  int splits = 1;
  int64_t row_multiple = 1;
  std::vector<int64_t> rows;  ///< The rows of each owner in a reduce-scatter.
  ReductionProfile profile;
};

/// Adds a task that multiplies and leaves its result with the member. A member's GEMMs alternate
/// between its two compute queues: they write disjoint memory, so no kernel need wait for the last
/// blocks of the kernel before it.
absl::StatusOr<int> AddGemm(TaskGraph& graph, std::string name, int rank, OverlapMember& member,
                            GemmDesc desc, std::vector<int> after);
/// Adds each member's GEMM as one task.
absl::Status AddWholeGemms(TaskGraph& graph, const OverlapMembers& members);

/// Build the task graphs of the methods (docs/ranks.md section 10.2). Each fills the members'
/// buffers.
absl::StatusOr<TaskGraph> BuildRingAllGatherGemm(const OverlapMembers& members,
                                                 const OverlapCut& cut);
absl::StatusOr<TaskGraph> BuildPointToPointReduceScatterGemm(const OverlapMembers& members,
                                                             const OverlapCut& cut);
absl::StatusOr<TaskGraph> BuildPipelinedReduceScatterGemm(const OverlapMembers& members,
                                                          const OverlapCut& cut);
absl::StatusOr<TaskGraph> BuildBulkAllGather(const OverlapMembers& members, const OverlapCut& cut);
absl::StatusOr<TaskGraph> BuildBulkReduceScatter(const OverlapMembers& members,
                                                 const OverlapCut& cut);

}  // namespace quantgate
