// Error of a tensor against a reference that is nearer the truth. Sums are fp64, pairwise within
// each heat-map block, blocks in index order (docs/reports.md section 2), so that every
// engine reports the same statistics. What a sum leaves out stands in its place as -0.0.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/compare/parity_report.h"

namespace quantgate {

/// Upper limits of the heat map; a tensor with fewer rows or columns has one cell for each.
inline constexpr int kHeatMapRowsMax = 32;
inline constexpr int kHeatMapColumnsMax = 32;

struct HeatMapCell {
  int64_t row_begin = 0, row_end = 0, column_begin = 0, column_end = 0;
  double rms_error = 0;
  double max_abs_error = 0;
};

struct HeatMap {
  int rows = 0;
  int columns = 0;
  std::vector<HeatMapCell> cells;  ///< Row-major.
};

struct ErrorReport {
  int64_t element_count = 0;
  int64_t non_finite_count =
      0;  ///< Elements where either side is NaN or infinite; left out of every sum below.
  double max_abs = 0;
  ElementPair max_abs_at;
  double mean_abs = 0;
  double rms = 0;
  double max_rel = 0;  ///< |subject - reference| / |reference| over reference != 0.
  ElementPair max_rel_at;
  double mean_rel = 0;
  double bias = 0;  ///< Mean of subject - reference.
  double sum_reference_squared =
      0;  ///< Signal power; SQNR in dB = 10 log10(signal / noise), formed by whoever prints.
  double sum_error_squared = 0;
  double cosine = 0;              ///< 1 when both sides are all zero, 0 when one is.
  double relative_frobenius = 0;  ///< ||subject - reference|| / ||reference||; 0 when both are 0,
                                  ///< +Inf when only the reference is.
  int64_t saturated_count =
      0;  ///< |subject| is the largest finite of its dtype and |reference| is larger.
  int64_t flushed_to_zero_count = 0;  ///< Subject 0, reference not.
  int64_t subnormal_count = 0;        ///< Subject is subnormal in its dtype.
  HeatMap heat_map;
  std::vector<HeatMapCell>
      worst_blocks;  ///< At most 5 with any error, by rms_error, lower index first among equals.
};

/// Both 2-D or viewed as [rows()][columns()]; dtypes may differ (any floating type), shapes must
/// match.
absl::StatusOr<ErrorReport> MeasureError(const Tensor& subject, const Tensor& reference,
                                         const ExecutionContext& context);

/// Who is nearer the truth, element by element.
struct NearerReport {
  int64_t subject_nearer = 0;
  int64_t reference_nearer = 0;
  int64_t tied = 0;
  double subject_rms = 0;  ///< Against the truth.
  double reference_rms = 0;
};

/// `truth` is the exact result rounded once to f32. Elements where any side is not finite count as
/// tied when subject and reference have equal bits; otherwise the side whose class (finite, +Inf,
/// -Inf or NaN) equals the truth's is nearer, and they tie when both or neither does. The RMS is
/// over elements where all three are finite.
absl::StatusOr<NearerReport> MeasureNearer(const Tensor& subject, const Tensor& reference,
                                           const Tensor& truth, const ExecutionContext& context);

}  // namespace quantgate
