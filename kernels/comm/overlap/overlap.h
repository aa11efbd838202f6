// Overlap: a rank's end of calls that communicate and multiply at the same time. Every member of
// the group makes the same calls in the same order, as with collectives; the outputs have the bits
// of gathering first or reducing last (docs/ranks.md section 10.5).
//
// On GPUs: GEMM chunks are put on the rank's own stream one after the other and write into rows of
// one output; copies are those of copy engines between peers, on a stream for what a rank receives;
// sums have a stream of their own. Streams wait for events, the host for nothing between chunks,
// and chunk by chunk nothing is staged: a GEMM reads the memory that the copy wrote. So the time of
// a call is that of the GEMM or of the copies, whichever is longer, plus the first or last chunk of
// the other, which more `pieces` make smaller; the sums run beside the GEMM but for the last piece.
//
// Used by one thread of its rank. Tensors are on the host or in the memory of the rank's engine;
// results, like those of the engine, may still be under way.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/comm/group/process_group.h"
#include "kernels/comm/overlap/overlap_buffer.h"
#include "kernels/comm/overlap/overlap_method.h"
#include "kernels/comm/overlap/overlap_timeline.h"

namespace quantgate {

struct OverlapMember;
struct OverlapCut;
class OverlapRun;

/// A call's name: which buffer it uses, and for whom.
struct OverlapName {
  std::string owner;   ///< The layer and operation: "layer1.fc1 fprop".
  std::string buffer;  ///< "fc1_fprop".
  std::string mode;    ///< The quantization mode: "mxfp8", "none".
};

struct AllGatherGemmCall {
  OverlapName name = {};
  /// `a` is this rank's shard, [rows][k]; d has the rows of all ranks, in rank order. No c; d is
  /// not FP8. Per-tensor scales must be the same on all ranks.
  GemmDesc gemm = {};
  OverlapMethod method = OverlapMethod::kRingExchange;  ///< Or none.
  bool aggregate = false;
  int pieces = 1;
  /// kExternal's: other tensors, gathered along their first dim while the GEMM runs.
  std::vector<Tensor> beside = {};
};

struct GatheredGemm {
  GemmResult gemm;  ///< Its note is of every chunk.
  /// a's codes and scales of all ranks, then `beside`. In the buffer until it is released; copy
  /// what has to last.
  BufferView gathered;
  /// This rank's own codes and scales, not in the buffer: what may be kept for backward.
  std::vector<Tensor> local;
  OverlapTimeline timeline;  ///< Empty unless the Overlap keeps timelines; likewise below.
};

struct ReduceScatterGemmCall {
  OverlapName name = {};
  /// The rank's partial product; no bias, which every rank would add, no c; d is not FP8.
  GemmDesc gemm = {};
  std::vector<int64_t> rows = {};                       ///< Of each member; together d's.
  OverlapMethod method = OverlapMethod::kRingExchange;  ///< Or pipeline, or none.
  /// ring_exchange: "ub_p2p", which is its order.
  ReductionProfile profile = {ReductionKind::kUbP2p};
  int pieces = 1;
  int splits = 4;  ///< Of the columns; must divide them.
};

struct ScatteredGemm {
  Tensor y;         ///< This rank's rows of the sum: memory of its own, in no buffer.
  GemmResult gemm;  ///< Without d, unless it is another GEMM than the one that is summed.
  /// The rank's partial product: its columns in one block, or in one for each split. Not of
  /// BulkReduceScatter, whose caller has it.
  std::vector<Tensor> partials;
  OverlapTimeline timeline;
};

struct BulkAllGatherCall {
  OverlapName name = {};
  GemmDesc gemm = {};              ///< Has nothing to do with what is gathered.
  std::vector<Tensor> shard = {};  ///< Gathered along their first dim: codes and scales.
};

struct BulkReduceScatterCall {
  OverlapName name = {};
  GemmDesc gemm = {};
  Tensor partial = {};  ///< bf16, f16 or f32.
  std::vector<int64_t> rows = {};
  ReductionProfile profile = {};
};

struct OverlapOptions {
  /// Results say when each of their tasks ran, for which the host waits until they have. All
  /// members or none.
  bool keeps_timelines = false;
};

/// INVALID_ARGUMENT for the library's own sum, which is no sum of parts as they come.
absl::Status CheckOverlapProfile(const ReductionProfile& profile);
/// What ReduceScatterGemm refuses of a call in a group of `ranks`, from dtypes and shapes alone.
absl::Status CheckReduceScatterGemm(const ReduceScatterGemmCall& call, int ranks);

class Overlap {
 public:
  virtual ~Overlap() = default;
  /// Opens the queues of the group's engine. Engine and group outlive it. `buffers`: of this rank,
  /// shared by all its layers.
  static absl::StatusOr<std::unique_ptr<Overlap>> Create(ProcessGroup& group,
                                                         OverlapBuffers& buffers,
                                                         OverlapOptions options = {});

  /// INVALID_ARGUMENT naming field, value and rule for what cannot be cut; otherwise as the group's
  /// collectives. An error poisons the group.
  virtual absl::StatusOr<GatheredGemm> AllGatherGemm(const AllGatherGemmCall& call);
  virtual absl::StatusOr<ScatteredGemm> ReduceScatterGemm(const ReduceScatterGemmCall& call);
  virtual absl::StatusOr<GatheredGemm> BulkAllGather(const BulkAllGatherCall& call);
  virtual absl::StatusOr<ScatteredGemm> BulkReduceScatter(const BulkReduceScatterCall& call);

  ProcessGroup& group() const { return group_; }

 protected:
  /// Without queues of its own, for who hands calls on.
  Overlap(ProcessGroup& group, OverlapBuffers& buffers, OverlapOptions options)
      : group_(group), buffers_(buffers), options_(options) {}

 private:
  using Build = absl::StatusOr<TaskGraph> (*)(
      const std::vector<std::shared_ptr<OverlapMember>>& members, const OverlapCut& cut);

  absl::StatusOr<std::shared_ptr<OverlapMember>> NewMember(const OverlapName& name,
                                                           const GemmDesc& gemm);
  absl::StatusOr<OverlapTimeline> RunTogether(const std::string& what, const OverlapCut& cut,
                                              std::shared_ptr<OverlapMember> member, Build build);
  std::shared_ptr<OverlapRun> NewRun(
      TaskGraph graph, const std::vector<std::shared_ptr<OverlapMember>>& members) const;
  absl::StatusOr<GatheredGemm> TryAllGatherGemm(const AllGatherGemmCall& call);
  absl::StatusOr<ScatteredGemm> TryReduceScatterGemm(const ReduceScatterGemmCall& call);
  absl::StatusOr<GatheredGemm> TryBulkAllGather(const BulkAllGatherCall& call);
  absl::StatusOr<ScatteredGemm> TryBulkReduceScatter(const BulkReduceScatterCall& call);
  absl::Status AgreeOnScale(OverlapMember& member);
  absl::StatusOr<GatheredGemm> GatherThenMultiply(const AllGatherGemmCall& call);
  absl::StatusOr<ScatteredGemm> MultiplyThenReduce(const ReduceScatterGemmCall& call);

  ProcessGroup& group_;
  OverlapBuffers& buffers_;
  const OverlapOptions options_;
  std::vector<std::unique_ptr<Engine>> queues_;  ///< All but kCompute.
};

}  // namespace quantgate
