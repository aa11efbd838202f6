#include "kernels/layer/parallel_step.h"

#include <numeric>

#include "kernels/base/parse_name.h"

namespace quantgate {
namespace {

constexpr std::string_view kModeNames[] = {"none", "column", "row"};

}  // namespace

std::string_view ParallelModeName(ParallelMode mode) {
  return kModeNames[static_cast<size_t>(mode)];
}

absl::StatusOr<ParallelMode> ParseParallelMode(std::string_view name) {
  return ParseName<ParallelMode>(kModeNames, "parallel_mode", name);
}

ParallelStep StepOf(const ParallelSpec& parallel, const Recipe& recipe) {
  ParallelStep step;
  step.sequence_parallel = parallel.sequence_parallel;
  step.profile = parallel.profile;
  step.amax_groups = WithGroupsOfCall(parallel.amax_groups, {});
  if (!parallel.overlap.has_value()) return step;
  step.column_overlap = OverlapPlanOf(*parallel.overlap, OverlapSide::kColumn, recipe);
  step.row_overlap = OverlapPlanOf(*parallel.overlap, OverlapSide::kRow, recipe);
  return step;
}

int64_t LinearParallel::first_row() const {
  return std::accumulate(rows.begin(), rows.begin() + rank, int64_t{0});
}

}  // namespace quantgate
