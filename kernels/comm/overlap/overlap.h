// Overlap: a rank's handle on calls that communicate and multiply at the same time. Every member of
// the group makes the same calls in the same order, as with collectives. The outputs have the bits
// of gathering first or reducing last (docs/ranks.md section 10.5).
//
// On GPUs the chunks of a GEMM are put on the rank's own stream one after the other and write into
// rows of one output. Copies between peers use copy engines, on a stream for what the rank
// receives; sums have a stream of their own. Streams wait for events, the host waits for nothing
// between chunks, and no chunk is staged: a GEMM reads the memory that the copy wrote. So the time
// of a call is that of the GEMM or of the copies, whichever is longer, plus the first or last chunk
// of the other, which more `pieces` make smaller. The sums run beside the GEMM except for the last
// piece.
//
// An Overlap is used by one thread of its rank. Tensors are on the host or in the memory of the
// rank's engine; results, like those of the engine, may still be under way.
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

/// Names the buffer that a call uses and its owner.
struct OverlapName {
  std::string owner;   ///< The layer and operation: "layer1.fc1 fprop".
  std::string buffer;  ///< "fc1_fprop".
  std::string mode;    ///< The quantization mode: "mxfp8", "none".
};

/// Gathers the rows of operand a from all ranks and multiplies them.
struct AllGatherGemmCall {
  OverlapName name = {};
  /// Its `a` is this rank's shard, [rows][k]; d gets the rows of all ranks, in rank order. It has
  /// no c, and d is not FP8. Per-tensor scales must be the same on all ranks.
  GemmDesc gemm = {};
  OverlapMethod method = OverlapMethod::kRingExchange;  ///< kRingExchange or kNone.
  bool aggregate = false;                               ///< As in OverlapPlan.
  int pieces = 1;                                       ///< As in OverlapPlan.
  /// Other tensors, gathered along their first dim while the GEMM runs (kExternal).
  std::vector<Tensor> beside = {};
};

struct GatheredGemm {
  GemmResult gemm;  ///< The note joins those of all chunks.
  /// The codes and scales of `a` of all ranks, then `beside`. They are in the buffer until it is
  /// released; copy what has to last.
  BufferView gathered;
  /// This rank's own codes and scales, which are not in the buffer and may be kept for backward.
  std::vector<Tensor> local;
  OverlapTimeline timeline;  ///< Empty unless OverlapOptions::keeps_timelines.
};

/// Multiplies and gives each rank its rows of the sum of all ranks' products.
struct ReduceScatterGemmCall {
  OverlapName name = {};
  /// The rank's partial product. It has no bias, which every rank would add, and no c; d is not
  /// FP8.
  GemmDesc gemm = {};
  std::vector<int64_t> rows = {};  ///< How many rows each member gets, in rank order.
  /// kRingExchange, kPipeline or kNone.
  OverlapMethod method = OverlapMethod::kRingExchange;
  /// The order of the sum; kRingExchange takes only its own, "ub_p2p".
  ReductionProfile profile = {ReductionKind::kUbP2p};
  int pieces = 1;
  int splits = 4;  ///< Blocks of columns in kPipeline; must divide the columns.
};

struct ScatteredGemm {
  Tensor y;         ///< This rank's rows of the sum, in memory of its own and in no buffer.
  GemmResult gemm;  ///< Has d only after BulkReduceScatter, whose GEMM is not the one summed.
  /// The rank's partial product: its columns in one block, or in one for each split. Empty after
  /// BulkReduceScatter, whose caller has it.
  std::vector<Tensor> partials;
  OverlapTimeline timeline;  ///< Empty unless OverlapOptions::keeps_timelines.
};

/// Gathers tensors beside a GEMM that does not read them.
struct BulkAllGatherCall {
  OverlapName name = {};
  GemmDesc gemm = {};              ///< Independent of what is gathered.
  std::vector<Tensor> shard = {};  ///< Codes and scales, gathered along their first dim.
};

/// Sums a tensor over the ranks beside a GEMM that does not make it.
struct BulkReduceScatterCall {
  OverlapName name = {};
  GemmDesc gemm = {};              ///< Independent of `partial`.
  Tensor partial = {};             ///< What is summed: bf16, f16 or f32.
  std::vector<int64_t> rows = {};  ///< How many rows each member gets, in rank order.
  ReductionProfile profile = {};
};

struct OverlapOptions {
  /// Results state when each of their tasks ran, so the host waits until all tasks have run. Must
  /// be equal on all members.
  bool keeps_timelines = false;
};

/// INVALID_ARGUMENT for the library's own sum (kNccl), which cannot be taken part by part.
absl::Status CheckOverlapProfile(const ReductionProfile& profile);
/// The same for sums by `method`: a ring_exchange has the order of ub_p2p and no other.
absl::Status CheckOverlapProfile(OverlapMethod method, const ReductionProfile& profile);
/// The checks of ReduceScatterGemm in a group of `ranks` that need only dtypes and shapes.
absl::Status CheckReduceScatterGemm(const ReduceScatterGemmCall& call, int ranks);

class Overlap {
 public:
  virtual ~Overlap() = default;
  /// Opens the queues of the group's engine. Engine, group and `buffers` outlive the Overlap.
  /// `buffers` are this rank's, shared by all its layers.
  static absl::StatusOr<std::unique_ptr<Overlap>> Create(ProcessGroup& group,
                                                         OverlapBuffers& buffers,
                                                         OverlapOptions options = {});

  /// Each call gives INVALID_ARGUMENT naming field, value and rule for operands that cannot be cut,
  /// and otherwise the errors of the group's collectives. An error poisons the group.
  virtual absl::StatusOr<GatheredGemm> AllGatherGemm(const AllGatherGemmCall& call);
  virtual absl::StatusOr<ScatteredGemm> ReduceScatterGemm(const ReduceScatterGemmCall& call);
  virtual absl::StatusOr<GatheredGemm> BulkAllGather(const BulkAllGatherCall& call);
  virtual absl::StatusOr<ScatteredGemm> BulkReduceScatter(const BulkReduceScatterCall& call);

  ProcessGroup& group() const { return group_; }

 protected:
  /// Without queues, for subclasses that forward the calls.
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
  std::vector<std::unique_ptr<Engine>> queues_;  ///< By OverlapQueue, without kCompute.
};

}  // namespace quantgate
