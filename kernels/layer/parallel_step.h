// Tensor and sequence parallelism of a layer: how its weights are divided, and what one step needs
// to know of the ranks (docs/ranks.md section 2).
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

/// The ranks of one step, an argument of it: backward uses the group of its own forward.
struct ParallelStep {
  /// This rank's end of the tensor-parallel group, which must live until the step's last backward.
  /// Null: nothing is divided so, or nothing is computed, as in checks before there are ranks.
  ProcessGroup* tp = nullptr;
  /// What lies between parallel regions is divided along dim 0: x of a column-parallel layer, y of
  /// a row-parallel one.
  bool sequence_parallel = false;
  /// Of y of a row-parallel layer, of dx of a column-parallel one.
  ReductionProfile profile = {};
  /// Under sequence parallelism dim 0 on each rank, 0 included. Empty: of x of a column-parallel
  /// layer as this rank's on every rank, of y of a row-parallel one as even as can be, the first
  /// ranks one more.
  std::vector<int64_t> rows = {};
  // Without a group.
  int size_without_group = 1;
  int rank_without_group = 0;
  /// How units whose weight is cut so overlap (docs/ranks.md section 10.1).
  OverlapPlan column_overlap = {}, row_overlap = {};
  /// Over which ranks amaxes are reduced, by the role of what is quantized, and this rank's ends of
  /// those groups: null of a role without one, of `none`, and before there are ranks.
  AmaxGroups amax_groups = {};
  std::array<ProcessGroup*, 3> amax_ends = {};
  /// This rank's end of calls that communicate and multiply at the same time, on the group `tp`;
  /// lives as long as that. Null: nothing overlaps, so that both plans are none; or, as `tp`, in
  /// checks before there are ranks. Whether timelines come back is a choice of its Create.
  Overlap* overlap = nullptr;

  int size() const { return tp != nullptr ? tp->size() : size_without_group; }
  int rank() const { return tp != nullptr ? tp->rank() : rank_without_group; }
  ProcessGroup* amax_end(TensorRole role) const { return amax_ends[static_cast<size_t>(role)]; }
  bool divides_rows() const { return sequence_parallel && size() > 1; }
};

/// What a spec says of a step under `recipe`, without group and overlap.
ParallelStep StepOf(const ParallelSpec& parallel, const Recipe& recipe);

/// One linear unit's part in a step of several ranks.
struct LinearParallel {
  ParallelMode mode = ParallelMode::kNone;
  /// How the weight is divided: `mode`, but in a grouped_linear, whose units communicate nothing.
  ParallelMode weight_mode = ParallelMode::kNone;
  int size = 1, rank = 0;
  /// Rows of the flattened M on each rank; empty: not divided.
  std::vector<int64_t> rows;
  int64_t first_dim = 0;  ///< Dim 0 of y: of all ranks, or this rank's.
  GatherMethod x_gather = GatherMethod::kSource;
  GatherMethod grad_output_gather = GatherMethod::kSource;
  bool returns_x = false;  ///< x is returned as a whole: it is gathered in high precision.
  /// What of the step's plan this unit carries out (kernels/layer/linear/linear_overlap.h).
  OverlapPlan overlap = {};

  bool is_parallel() const { return mode != ParallelMode::kNone; }
  bool is_column() const { return mode == ParallelMode::kColumn; }
  bool is_row() const { return mode == ParallelMode::kRow; }
  bool gathers_x() const { return is_column() && !rows.empty(); }
  bool gathers_grad_output() const { return is_row() && !rows.empty(); }
  /// Rows before this rank's.
  int64_t first_row() const;
};

}  // namespace quantgate
