// The methods by which the GEMMs of a tensor-parallel layer overlap with communication, and the
// recipes that can (docs/ranks.md section 10.1).
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/gemm/gemm.h"
#include "kernels/quantize/recipe/recipe.h"

namespace quantgate {

enum class OverlapMethod {
  kNone,          ///< No overlap: gather, then multiply; or multiply, then reduce.
  kRingExchange,  ///< Point to point in chunks of rows, during the GEMM of the data.
  kPipeline,      ///< Reduce-scatter in splits of columns, during the GEMM of the data.
  kBulk,          ///< The whole collective beside a GEMM of other data.
  kExternal,      ///< The whole collective beside a GEMM that gathers other data in a ring.
};
std::string_view OverlapMethodName(OverlapMethod method);  ///< "none", "ring_exchange", ...
absl::StatusOr<OverlapMethod> ParseOverlapMethod(std::string_view name);

enum class OverlapCollective { kAllGather, kReduceScatter };

/// How the weight of a unit (a linear layer) is cut: by its output or by its input features.
enum class OverlapSide { kColumn, kRow };

/// One row of the table of defaults: which tensor of a unit is communicated, how, and beside which
/// GEMM.
struct OverlapAssignment {
  OverlapSide side;  ///< How the unit's weight is cut.
  GemmRole role;     ///< Names the buffer: "<unit>_fprop".
  std::string_view tensor;
  OverlapCollective collective;
  OverlapMethod method;
  GemmRole beside;     ///< The GEMM that runs meanwhile.
  bool is_mxfp8_only;  ///< Under other recipes the rank has the tensor already.
};
/// The row of the table for a GEMM of a unit whose weight is cut so.
const OverlapAssignment& AssignmentOf(OverlapSide side, GemmRole role);

/// The most pieces and splits: each is a task, and a report lists the tasks of all ranks.
inline constexpr int kOverlapCutsMax = 64;

/// How the GEMMs of one unit overlap.
struct OverlapPlan {
  OverlapMethod fprop = OverlapMethod::kNone;
  OverlapMethod dgrad = OverlapMethod::kNone;
  OverlapMethod wgrad = OverlapMethod::kNone;
  bool aggregate = false;  ///< A ring all-gather moves and multiplies two shards at a time.
  int pieces = 1;          ///< Into which a ring cuts each shard; up to kOverlapCutsMax.
  int splits = 4;          ///< Into which a pipeline cuts the columns; up to kOverlapCutsMax.
  /// By GemmRole: the method is one that the request leaves open, and gives way to kNone where the
  /// unit cannot carry it out.
  std::array<bool, 3> gives_way = {};

  OverlapMethod MethodOf(GemmRole role) const {
    return role == GemmRole::kFprop ? fprop : role == GemmRole::kDgrad ? dgrad : wgrad;
  }
  void SetMethod(GemmRole role, OverlapMethod method) {
    (role == GemmRole::kFprop ? fprop : role == GemmRole::kDgrad ? dgrad : wgrad) = method;
  }
  bool GivesWay(GemmRole role) const { return gives_way[static_cast<size_t>(role)]; }
  bool has_any() const;
  friend bool operator==(const OverlapPlan&, const OverlapPlan&) = default;
};
/// The methods of the table.
OverlapPlan DefaultOverlapPlan(OverlapSide side, bool is_mxfp8);

/// The properties of a unit and its ranks that decide whether it can overlap.
struct OverlapFacts {
  OverlapSide side = OverlapSide::kColumn;
  int ranks = 1;
  bool sequence_parallel = false;
  bool is_grad_enabled = true;
  bool is_after_norm = false;  ///< The unit's input is a norm's output.
  bool returns_norm_output = false;
};

/// The method that a refusal of a GEMM's overlap names: that of wgrad for dgrad's ring where wgrad
/// is external, which asks for the ring.
GemmRole RoleToName(const OverlapPlan& plan, GemmRole role);

/// INVALID_ARGUMENT naming field, value and rule unless the plan can be carried out:
/// - the collective has the method: an all-gather has no pipeline, and a reduce-scatter has only
///   none, ring_exchange, pipeline and bulk;
/// - column dgrad by ring_exchange or pipeline scatters dx inside its own GEMM and leaves wgrad
///   nothing to scatter;
/// - sequence parallelism is on; dgrad and wgrad have no backward override, unless nothing is
///   quantized and it has no effect;
/// - every role is unquantized, per-tensor FP8 or mxfp8, in one format, and the recipe is not
///   composed;
/// - fprop gathers a norm's output only where that is not returned and grad is enabled;
/// - aggregate needs an even number of ranks and 1 piece;
/// - splits and pieces are in [1, kOverlapCutsMax].
absl::Status CheckOverlapPlan(const OverlapPlan& plan, const OverlapFacts& facts,
                              const Recipe& recipe);

/// Checks what a plan asks for by name, and what holds for the open methods too: sequence
/// parallelism and an aggregate ring. Errors as CheckOverlapPlan.
absl::Status CheckNamedOverlap(OverlapPlan plan, const OverlapFacts& facts, const Recipe& recipe);

/// INVALID_ARGUMENT unless activations are cut by rows, without which nothing overlaps.
absl::Status CheckSequenceParallel(const OverlapFacts& facts);

/// INVALID_ARGUMENT unless an aggregate ring has what it needs: an even number of ranks and 1
/// piece.
absl::Status CheckAggregate(bool aggregate, int pieces, int ranks);

/// All dims of an mxfp8 operand that is cut among ranks must be multiples of this.
inline constexpr int64_t kMxfp8OverlapMultiple = 128;
/// The multiple that an operand's dims must have; 1 where any dim will do.
int64_t OverlapMultipleOf(const GemmOperand& operand);
/// INVALID_ARGUMENT naming field, value and rule unless an operand can be cut among ranks: in high
/// precision, per-tensor FP8, or mxfp8 with dims that are multiples of 128.
absl::Status CheckOverlapOperand(std::string_view field, const GemmOperand& operand);
/// As CheckOverlapOperand, for an operand whose rows are cut into shards of `rows`.
absl::Status CheckOverlapShards(std::string_view field, const GemmOperand& operand,
                                std::span<const int64_t> rows);

}  // namespace quantgate
