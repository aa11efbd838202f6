// A linear unit's GEMMs that communicate at the same time (docs/ranks.md section 10.1), as the
// unit's overlap plan says. Every rank of the group must make the same calls in the same order.
// Results never lie in a communication buffer, because the next call may use the buffer.
#pragma once

#include <span>
#include <vector>

#include "kernels/comm/overlap/overlap.h"
#include "kernels/layer/linear/linear_operands.h"

namespace quantgate {

/// The part of `plan`, the step's for units that are cut so, that a unit carries out. Empty if the
/// unit neither gathers nor scatters. Without methods whose GEMM or communication the step does not
/// have; a deferred wgrad cannot hide communication of this backward.
OverlapPlan OverlapOf(const OverlapPlan& plan, const LinearUnit& unit, bool defers_wgrad);

/// Sets the unit's overlap: that of OverlapOf for the step's plan, in which each method that gives
/// way is kNone where CheckOverlapPlan or CheckLinearUnitOverlap refuses it. Methods that the
/// request names stay, and are for the check of the layer to refuse. Returns a sentence for each
/// reason, "fc1: dgrad and wgrad run without overlap: backward_override is ...". The unit's GEMMs
/// and rows must be planned.
std::vector<std::string> ResolveOverlap(const ParallelStep& step, const OverlapFacts& facts,
                                        bool defers_wgrad, LinearUnit& unit);

/// The direction in which a kept shard is gathered for wgrad: rowwise if it has no columnwise
/// codes, as per-tensor FP8.
inline Usage TravellingUsage(const KeptOperand& shard) {
  return shard.codes.columnwise.has_value() ? Usage::kColumnwise : Usage::kRowwise;
}
/// The tensors of a shard that are gathered: the codes of one direction and, if there are several,
/// their scales; the original if there are no codes.
std::vector<Tensor> TravellingParts(const KeptOperand& shard, Usage usage);
/// The whole operand of `rows` rows, made of the gathered tensors that TravellingParts named.
KeptOperand JoinedOperand(const KeptOperand& shard, Usage usage, std::span<const Tensor> parts,
                          int64_t rows);

struct OverlappedGather {
  Tensor d;
  std::vector<Tensor> parts;  ///< The gathered tensors, with the rows of all ranks.
};
struct OverlappedReduction {
  Tensor d;    ///< The GEMM's result.
  Tensor sum;  ///< This rank's rows of the sum.
};

/// The overlapped calls of one unit in one step. Each is a stage named after the record's role.
/// Each records operands and product as the GEMM alone would, and a timeline if the Overlap keeps
/// them.
class LinearOverlap {
 public:
  LinearOverlap(StepRecorder& recorder, const LinearUnit& unit, const StepOptions& options)
      : recorder_(recorder), unit_(unit), step_(*options.parallel) {}

  /// Gathers the record's operand a, which has this rank's rows, for its own GEMM. The result's
  /// parts are the whole operand's tensors and then the gathered `beside`.
  absl::StatusOr<OverlappedGather> AllGatherGemm(GemmRecord record, std::vector<Tensor> beside);
  /// This rank's rows of the sum of all ranks' products.
  absl::StatusOr<Tensor> ReduceScatterGemm(GemmRecord record);
  /// Gathers `shard` while a GEMM runs that does not read it.
  absl::StatusOr<OverlappedGather> BulkAllGather(GemmRecord record, std::vector<Tensor> shard);
  /// Sums the ranks' `partial` while a GEMM runs.
  absl::StatusOr<OverlappedReduction> BulkReduceScatter(GemmRecord record, const Tensor& partial);

 private:
  const OverlapPlan& plan() const { return unit_.parallel.overlap; }
  OverlapName NameOf(const GemmRecord& record) const;
  /// Makes the call as the stage that call.name names.
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
