// How the sums and the findings of blocks become reports (error_report.h): shared by the engines,
// so that their reports have the same bits.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/compare/block_grid.h"
#include "kernels/compare/error_kernels.h"
#include "kernels/compare/error_report.h"

namespace quantgate {

/// The largest value of a quantity and the lowest index that has it.
struct Largest {
  double value = -1;
  int64_t index = -1;
  void Offer(double candidate, int64_t at) {
    if (candidate > value || (candidate == value && at < index)) {
      value = candidate;
      index = at;
    }
  }
};

/// What one block of the heat map adds to the report.
struct BlockErrors {
  SeriesTerms<kErrorSeriesCount> sums;
  Largest max_abs, max_rel;
  int64_t finite_count = 0;
  int64_t relative_count = 0;
  int64_t saturated_count = 0;
  int64_t flushed_to_zero_count = 0;
  int64_t subnormal_count = 0;
};

/// The range of a floating-point dtype.
SubjectRange RangeOfSubject(DType dtype);

/// INVALID_ARGUMENT unless MeasureError takes these tensors.
absl::Status CheckErrorSides(const Tensor& subject, const Tensor& reference);
/// INVALID_ARGUMENT unless MeasureNearer takes these tensors.
absl::Status CheckNearerSides(const Tensor& subject, const Tensor& reference, const Tensor& truth);

/// A heat map with the cells of the blocks, without errors yet.
HeatMap HeatMapOf(const BlockGrid& grid);

/// Adds the blocks in index order and forms the report's ratios. `heat_map` is HeatMapOf(grid);
/// `pair_at` gives the element at an index with the largest error of some block.
ErrorReport SummarizeErrors(const BlockGrid& grid, HeatMap heat_map,
                            const std::vector<BlockErrors>& blocks,
                            absl::FunctionRef<ElementPair(int64_t)> pair_at);
/// The same for blocks that are added already and a heat map that has its errors.
ErrorReport SummarizeTotal(const BlockGrid& grid, HeatMap heat_map, const BlockErrors& total,
                           absl::FunctionRef<ElementPair(int64_t)> pair_at);

/// What MeasureNearer sums over the whole tensor, the blocks added in index order.
struct NearerSums {
  SeriesTerms<kDistanceSeriesCount> sums{0};
  int64_t finite_count = 0;
  int64_t subject_nearer = 0;
  int64_t reference_nearer = 0;
  int64_t tied = 0;
};

NearerReport NearerReportOf(const NearerSums& total);

}  // namespace quantgate
