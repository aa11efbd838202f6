// Which GEMM of a tensor-parallel layer communicates how, and which recipes can
// (docs/overlap.md section 1).
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/gemm/gemm.h"
#include "kernels/quantize/recipe/recipe.h"

namespace quantgate {

enum class OverlapMethod {
  kNone,          ///< Gather and then multiply; multiply and then reduce.
  kRingExchange,  ///< Point to point in chunks of rows, inside the GEMM.
  kPipeline,      ///< Reduce-scatter in splits of columns, inside the GEMM.
  kBulk,          ///< All of it beside a GEMM that has nothing to do with it.
  kExternal,      ///< All of it beside a GEMM that gathers something else in a ring.
};
std::string_view OverlapMethodName(OverlapMethod method);  ///< "none", "ring_exchange", ...
absl::StatusOr<OverlapMethod> ParseOverlapMethod(std::string_view name);

enum class OverlapCollective { kAllGather, kReduceScatter };

/// How a unit's weight is cut.
enum class OverlapSide { kColumn, kRow };

/// One row of the table: what of which unit is communicated by default how, beside which GEMM.
struct OverlapAssignment {
  OverlapSide side;  ///< Of the unit's weight.
  GemmRole role;     ///< Names the buffer: "<unit>_fprop".
  std::string_view tensor;
  OverlapCollective collective;
  OverlapMethod method;
  GemmRole beside;     ///< The GEMM that runs meanwhile.
  bool is_mxfp8_only;  ///< Others have what is gathered already.
};
/// Of column fprop, dgrad, wgrad; row fprop, dgrad, wgrad.
const OverlapAssignment& AssignmentOf(OverlapSide side, GemmRole role);

/// Every piece and split is a task, and a report has all tasks of all ranks.
inline constexpr int kOverlapCutsMax = 64;

/// What is chosen for one unit.
struct OverlapPlan {
  OverlapMethod fprop = OverlapMethod::kNone;
  OverlapMethod dgrad = OverlapMethod::kNone;
  OverlapMethod wgrad = OverlapMethod::kNone;
  bool aggregate = false;  ///< Of a ring all-gather: two shards at a time.
  int pieces = 1;          ///< Of each shard in a ring, up to kOverlapCutsMax.
  int splits = 4;          ///< Of the columns in a pipeline, likewise.

  OverlapMethod MethodOf(GemmRole role) const {
    return role == GemmRole::kFprop ? fprop : role == GemmRole::kDgrad ? dgrad : wgrad;
  }
  bool has_any() const;
};
/// The methods of the table.
OverlapPlan DefaultOverlapPlan(OverlapSide side, bool is_mxfp8);

/// What decides whether a unit can overlap.
struct OverlapFacts {
  OverlapSide side = OverlapSide::kColumn;
  int ranks = 1;
  bool sequence_parallel = false;
  bool is_grad_enabled = true;
  bool is_after_norm = false;  ///< The unit's input is a norm's output.
  bool returns_norm_output = false;
};

/// INVALID_ARGUMENT naming field, value and rule unless the plan can be carried out:
/// - methods that the table has for the collective: an all-gather has no pipeline, a reduce-scatter
///   none but ring_exchange, pipeline and bulk;
/// - column dgrad other than bulk is a reduce-scatter of dx inside dgrad and leaves wgrad nothing;
/// - sequence parallelism on; no backward override for dgrad and wgrad;
/// - every role unquantized, per-tensor FP8 or mxfp8, in one format: no composed recipe;
/// - no returned norm output and, after a norm, grad enabled for fprop's all-gather;
/// - aggregate: an even number of ranks, and pieces of 1; splits and pieces in [1,
/// kOverlapCutsMax].
absl::Status CheckOverlapPlan(const OverlapPlan& plan, const OverlapFacts& facts,
                              const Recipe& recipe);

/// What an aggregate ring needs: an even number of ranks and whole shards.
absl::Status CheckAggregate(bool aggregate, int pieces, int ranks);

/// What all dims of an mxfp8 operand that is cut must be multiples of.
inline constexpr int64_t kMxfp8OverlapMultiple = 128;
/// That of an operand; 1 where any dim will do.
int64_t OverlapMultipleOf(const GemmOperand& operand);
/// INVALID_ARGUMENT naming field, value and rule unless an operand can be cut among ranks: in high
/// precision, per-tensor FP8, or mxfp8 with dims that are multiples of 128.
absl::Status CheckOverlapOperand(std::string_view field, const GemmOperand& operand);
/// Likewise one whose rows are cut into shards of `rows`.
absl::Status CheckOverlapShards(std::string_view field, const GemmOperand& operand,
                                std::span<const int64_t> rows);

}  // namespace quantgate
