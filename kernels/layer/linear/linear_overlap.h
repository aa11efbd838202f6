// A linear unit's GEMMs that communicate at the same time (docs/ranks.md section 10.1), as its plan
// says. Every rank of the group makes the same calls in the same order. Nothing that comes back
// lies in a communication buffer: buffers are another call's as soon as one of these has returned.
#pragma once

#include <span>
#include <vector>

#include "kernels/comm/overlap/overlap.h"
#include "kernels/layer/linear/linear_operands.h"

namespace quantgate {

/// What of the step's plan a unit carries out: nothing where it gathers and scatters nothing, and
/// no method whose GEMM, or whose communication, the step does not have. A wgrad that is deferred
/// hides nothing in this backward.
OverlapPlan OverlapOf(const ParallelStep& step, const LinearUnit& unit, bool defers_wgrad);

/// The direction in which what is kept of a shard travels for wgrad: per-tensor FP8 rowwise.
inline Usage TravellingUsage(const KeptOperand& shard) {
  return shard.codes.columnwise.has_value() ? Usage::kColumnwise : Usage::kRowwise;
}
/// The tensors of one direction of a shard that travel as they are: codes and, in blocks, scales;
/// what was given where there are no codes.
std::vector<Tensor> TravellingParts(const KeptOperand& shard, Usage usage);
/// The direction of all ranks, of `rows` rows, from what all those tensors are together.
KeptOperand JoinedOperand(const KeptOperand& shard, Usage usage, std::span<const Tensor> parts,
                          int64_t rows);

struct OverlappedGather {
  Tensor d;
  std::vector<Tensor> parts;  ///< Of all ranks.
};
struct OverlappedReduction {
  Tensor d;    ///< Of the GEMM.
  Tensor sum;  ///< This rank's rows.
};

/// The calls of one unit in one step. Each is a stage, named after the record's role, and leaves a
/// record with operands and product as the GEMM alone would, and a timeline where those are kept.
class LinearOverlap {
 public:
  LinearOverlap(StepRecorder& recorder, const LinearUnit& unit, const StepOptions& options)
      : recorder_(recorder), unit_(unit), step_(*options.parallel) {}

  /// The record's operand a is this rank's rows, and becomes that of all ranks: the first of the
  /// parts. The others: `beside`.
  absl::StatusOr<OverlappedGather> AllGatherGemm(GemmRecord record, std::vector<Tensor> beside);
  /// This rank's rows of the sum of the ranks' products.
  absl::StatusOr<Tensor> ReduceScatterGemm(GemmRecord record);
  /// Gathers `shard` beside a GEMM that does not read it.
  absl::StatusOr<OverlappedGather> BulkAllGather(GemmRecord record, std::vector<Tensor> shard);
  /// Sums the ranks' `partial` beside a GEMM.
  absl::StatusOr<OverlappedReduction> BulkReduceScatter(GemmRecord record, const Tensor& partial);

 private:
  const OverlapPlan& plan() const { return unit_.parallel.overlap; }
  OverlapName NameOf(const GemmRecord& record) const;
  /// The call as the stage that its name has.
  template <typename Call, typename Result>
  absl::StatusOr<Result> Run(absl::StatusOr<Result> (Overlap::*run)(const Call&),
                             const Call& call) {
    return recorder_.Timed({StageKind::kGemm, call.name.owner},
                           [&] { return (step_.overlap->*run)(call); });
  }
  absl::Status Record(GemmRecord record, const OverlapName& name, GemmResult result,
                      OverlapTimeline timeline);

  StepRecorder& recorder_;
  const LinearUnit& unit_;
  const ParallelStep& step_;
};

}  // namespace quantgate
