// From sums of squared distances to the truth to a report: shared by the engines.
#pragma once

#include <cstdint>

#include "kernels/compare/block_grid.h"
#include "kernels/compare/distance_series.h"
#include "kernels/compare/error_report.h"

namespace quantgate {

/// Over the whole tensor, the blocks added in index order.
struct NearerSums {
  SeriesTerms<kDistanceSeriesCount> sums{0};
  int64_t finite_count = 0;
  int64_t subject_nearer = 0;
  int64_t reference_nearer = 0;
  int64_t tied = 0;
};

NearerReport ReportOf(const NearerSums& total);

}  // namespace quantgate
