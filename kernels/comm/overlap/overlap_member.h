// What one rank brings to an overlapped call, and what the tasks of the call leave with it: private
// to kernels/comm/overlap*.
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

/// The run of all members of a call.
class SharedRun {
 public:
  using Run = std::shared_ptr<OverlapRun>;

  /// What `make` gives, which the first member to come calls. DEADLINE_EXCEEDED to the others where
  /// that takes longer.
  absl::StatusOr<Run> Get(absl::Duration deadline, absl::FunctionRef<absl::StatusOr<Run>()> make);

 private:
  std::mutex mutex_;
  std::condition_variable is_made_;
  bool is_being_made_ = false;
  std::optional<absl::StatusOr<Run>> run_;
};

struct OverlapMember {
  // Brought.
  OverlapLanes lanes = {};
  std::string owner;                      ///< Of the buffer while the call lasts.
  std::shared_ptr<OverlapBuffer> buffer;  ///< Where what arrives goes; null: nothing does.
  /// The GEMM; of an all-gather that it consumes, `a` is this rank's shard.
  GemmDesc gemm;
  /// What is gathered, codes and scales, each cut along its first dim. Of the ring the first
  /// `operand_parts` are those of `a`, of equal rows.
  std::vector<Tensor> shard;
  size_t operand_parts = 0;
  Tensor partial;  ///< What a bulk reduce-scatter sums.
  const Cancellation* cancellation = nullptr;
  BeforeCopies before_copies;  ///< Or none.

  // Made when all have met.
  std::vector<Tensor> gathered;  ///< `shard` of all ranks, end to end: views of the buffer.
  Tensor d;                      ///< Of the GEMM that consumes what is gathered.
  /// What is summed: one, or one for each split of the columns. Not in the buffer.
  std::vector<Tensor> partials;
  Tensor y;  ///< The sum, where its pieces are rows.
  /// Of each of `partials`, this rank's rows of the ranks r - 1, r - 2, ...
  std::vector<std::vector<Tensor>> received;

  // Left by tasks.
  std::vector<GemmResult> gemms;
  std::vector<Tensor> sums;  ///< Of this rank's rows, by split of the columns; not where y is.

  SharedRun run;  ///< Member 0's is that of all of them.

  Engine& engine() const { return *lanes[0]; }
};

using OverlapMembers = std::vector<std::shared_ptr<OverlapMember>>;

/// How a call is cut; the same for every rank.
struct OverlapCut {
  bool aggregate = false;
  int pieces = 1;
  int splits = 1;
  int64_t row_multiple = 1;
  std::vector<int64_t> rows;  ///< Of each owner of a reduce-scatter.
  ReductionProfile profile;
};

/// A task that multiplies and leaves its result with the member. A member's GEMMs take turns on its
/// two queues: they write other memory, and no kernel waits for the last blocks of the one before.
absl::StatusOr<int> AddGemm(TaskGraph& graph, std::string name, int rank, OverlapMember& member,
                            GemmDesc desc, std::vector<int> after);
/// Each member's GEMM as one task.
absl::Status AddWholeGemms(TaskGraph& graph, const OverlapMembers& members);

/// Graphs of the methods (docs/ranks.md section 10.2). Each fills the members' buffers.
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
