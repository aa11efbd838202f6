// Tensor and sequence parallelism of a layer: how its weights are divided, and what one step must
// know about the ranks (docs/ranks.md section 2).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/comm/group/process_group.h"
#include "kernels/comm/overlap/overlap_method.h"
#include "kernels/comm/parallel_spec.h"
#include "kernels/comm/quantized_gather.h"
#include "kernels/comm/reduction_profile.h"

namespace quantgate {

class Overlap;

/// How a weight [O][K] is divided over a tensor-parallel group.
enum class ParallelMode {
  kNone,
  kColumn,  ///< [O / N][K]: y and the bias are divided along O, dx is a sum over the ranks.
  kRow,  ///< [O][K / N]: x is divided along K, y is a sum over the ranks, then the bias is added.
};
std::string_view ParallelModeName(ParallelMode mode);  ///< "none", "column", "row".
absl::StatusOr<ParallelMode> ParseParallelMode(std::string_view name);

/// The ranks of one step. It is an argument of the step, so backward uses the group of its own
/// forward.
struct ParallelStep {
  /// This rank's end of the tensor-parallel group, which must live until the step's last backward.
  /// Null if no weight is divided, or in checks before there are ranks.
  ProcessGroup* tp = nullptr;
  /// Tensors between parallel regions are divided along dim 0: x of a column-parallel layer, y of a
  /// row-parallel one.
  bool sequence_parallel = false;
  /// How y of a row-parallel layer and dx of a column-parallel one are summed over the ranks.
  ReductionProfile profile = {};
  /// Dim 0 on each rank under sequence parallelism; 0 is allowed. If empty: every rank has as many
  /// rows of a column-parallel layer's x as this one; a row-parallel layer's y is divided as evenly
  /// as possible, and the first ranks have one row more.
  std::vector<int64_t> rows = {};
  // size() and rank() where `tp` is null.
  int size_without_group = 1;
  int rank_without_group = 0;
  /// How column-parallel and row-parallel units overlap (docs/ranks.md section 10.1).
  OverlapPlan column_overlap = {}, row_overlap = {};
  /// The ranks over which amaxes are reduced, by role.
  AmaxGroups amax_groups = {};
  /// This rank's ends of those groups, by role. Null for a role without a group or with `none`, and
  /// before there are ranks.
  std::array<ProcessGroup*, 3> amax_ends = {};
  /// This rank's end of calls that communicate over `tp` and multiply at the same time; lives as
  /// long as `tp`. Null if both overlap plans are none, or in checks before there are ranks.
  /// Overlap::Create chooses whether there are timelines.
  Overlap* overlap = nullptr;

  int size() const { return tp != nullptr ? tp->size() : size_without_group; }
  int rank() const { return tp != nullptr ? tp->rank() : rank_without_group; }
  ProcessGroup* amax_end(TensorRole role) const { return amax_ends[static_cast<size_t>(role)]; }
  bool divides_rows() const { return sequence_parallel && size() > 1; }
};

/// The step that `parallel` describes under `recipe`, without groups and Overlap.
ParallelStep StepOf(const ParallelSpec& parallel, const Recipe& recipe);

/// One linear unit's part in a step of several ranks.
struct LinearParallel {
  ParallelMode mode = ParallelMode::kNone;
  /// How the weight is divided: as `mode`, except in a grouped_linear, whose units do not
  /// communicate and have mode kNone.
  ParallelMode weight_mode = ParallelMode::kNone;
  int size = 1, rank = 0;
  /// Rows of the flattened M on each rank; empty if M is not divided.
  std::vector<int64_t> rows;
  int64_t first_dim = 0;  ///< Dim 0 of y as this rank has it: of all ranks, or this rank's.
  GatherMethod x_gather = GatherMethod::kSource;
  GatherMethod grad_output_gather = GatherMethod::kSource;
  bool returns_x = false;  ///< The whole x is returned, so it is gathered in high precision.
  /// The part of the step's plan that this unit carries out (ResolveOverlap of
  /// kernels/layer/linear/linear_overlap.h).
  OverlapPlan overlap = {};

  bool is_parallel() const { return mode != ParallelMode::kNone; }
  bool is_column() const { return mode == ParallelMode::kColumn; }
  bool is_row() const { return mode == ParallelMode::kRow; }
  bool gathers_x() const { return is_column() && !rows.empty(); }
  bool gathers_grad_output() const { return is_row() && !rows.empty(); }
  /// The number of rows on earlier ranks.
  int64_t first_row() const;
};

}  // namespace quantgate
