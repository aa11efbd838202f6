#include "kernels/compare/error_summary.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/compare/element_codes.h"
#include "kernels/compare/element_values.h"

namespace quantgate {
namespace {

constexpr int kWorstBlocksMax = 5;
using ErrorTerms = SeriesTerms<kErrorSeriesCount>;

std::vector<HeatMapCell> WorstOf(const HeatMap& heat_map) {
  std::vector<HeatMapCell> worst;
  for (const HeatMapCell& cell : heat_map.cells) {
    const bool is_full = worst.size() == kWorstBlocksMax;
    if (!(cell.rms_error > (is_full ? worst.back().rms_error : 0))) continue;
    if (is_full) worst.pop_back();
    // Inserted after equal cells, which have lower indices.
    const auto place = std::upper_bound(
        worst.begin(), worst.end(), cell.rms_error,
        [](double error, const HeatMapCell& other) { return error > other.rms_error; });
    worst.insert(place, cell);
  }
  return worst;
}

double Mean(double sum, int64_t count) { return count == 0 ? 0 : sum / static_cast<double>(count); }

void AddBlock(const BlockErrors& block, BlockErrors& total) {
  total.sums = total.sums + block.sums;
  if (block.max_abs.index >= 0) total.max_abs.Offer(block.max_abs.value, block.max_abs.index);
  if (block.max_rel.index >= 0) total.max_rel.Offer(block.max_rel.value, block.max_rel.index);
  total.finite_count += block.finite_count;
  total.relative_count += block.relative_count;
  total.saturated_count += block.saturated_count;
  total.flushed_to_zero_count += block.flushed_to_zero_count;
  total.subnormal_count += block.subnormal_count;
}

}  // namespace

SubjectRange RangeOfSubject(DType dtype) {
  return WithCodes(dtype, []<class Codes>(Codes) -> SubjectRange {
    if constexpr (requires { typename Codes::C; }) {
      using C = typename Codes::C;
      constexpr int kMantissa = Codes::Format::kMantissaBits;
      const int top = static_cast<int>(C::kMaxFinite >> kMantissa) - Codes::Format::kBias;
      const auto significand =
          static_cast<double>((C::kMaxFinite & C::kMantissaMask) | (uint64_t(1) << kMantissa));
      return {std::ldexp(significand, top - kMantissa), std::ldexp(1.0, C::kExponentMin)};
    }
    // E8M0: 2^127, and no subnormals.
    return {0x1p127, 0};
  });
}

absl::Status CheckErrorSides(const Tensor& subject, const Tensor& reference) {
  QG_RETURN_IF_ERROR(CheckSameShape(subject, reference));
  QG_RETURN_IF_ERROR(CheckFloating(subject, "subject"));
  return CheckFloating(reference, "reference");
}

absl::Status CheckNearerSides(const Tensor& subject, const Tensor& reference, const Tensor& truth) {
  QG_RETURN_IF_ERROR(CheckFloating(subject, "subject"));
  QG_RETURN_IF_ERROR(CheckFloating(reference, "reference"));
  QG_RETURN_IF_ERROR(CheckFloating(truth, "truth"));
  QG_RETURN_IF_ERROR(CheckSameShape(subject, reference));
  if (truth.shape() == subject.shape() && truth.dtype() == DType::kF32) return absl::OkStatus();
  return Refuse("truth", TensorText(truth),
                absl::StrCat("must be f32[", ShapeText(subject.shape()), "]"));
}

HeatMap HeatMapOf(const BlockGrid& grid) {
  HeatMap heat_map;
  heat_map.rows = grid.rows;
  heat_map.columns = grid.columns;
  heat_map.cells.reserve(grid.count());
  // The edges of cells take divisions, so they are computed once a row and once a column.
  for (int row = 0; row < grid.rows; ++row) {
    const HeatMapCell first = grid.Cell(row * grid.columns);
    for (int column = 0; column < grid.columns; ++column) {
      HeatMapCell cell = row == 0 ? grid.Cell(column) : heat_map.cells[column];
      cell.row_begin = first.row_begin;
      cell.row_end = first.row_end;
      heat_map.cells.push_back(cell);
    }
  }
  return heat_map;
}

ErrorReport SummarizeErrors(const BlockGrid& grid, HeatMap heat_map,
                            const std::vector<BlockErrors>& blocks,
                            absl::FunctionRef<ElementPair(int64_t)> pair_at) {
  ScopedIeeeEnvironment ieee;
  BlockErrors total;
  total.sums = ErrorTerms(0);
  for (size_t i = 0; i < blocks.size(); ++i) {
    const BlockErrors& block = blocks[i];
    AddBlock(block, total);
    HeatMapCell& cell = heat_map.cells[i];
    cell.rms_error = std::sqrt(Mean(block.sums.values[kSquaredError], block.finite_count));
    cell.max_abs_error = std::max(block.max_abs.value, 0.0);
  }
  return SummarizeTotal(grid, std::move(heat_map), total, pair_at);
}

ErrorReport SummarizeTotal(const BlockGrid& grid, HeatMap heat_map, const BlockErrors& total,
                           absl::FunctionRef<ElementPair(int64_t)> pair_at) {
  ScopedIeeeEnvironment ieee;
  ErrorReport report;
  const ErrorTerms& sums = total.sums;
  const Largest &max_abs = total.max_abs, &max_rel = total.max_rel;
  const int64_t finite_count = total.finite_count, relative_count = total.relative_count;
  report.saturated_count = total.saturated_count;
  report.flushed_to_zero_count = total.flushed_to_zero_count;
  report.subnormal_count = total.subnormal_count;
  report.element_count = grid.row_count * grid.column_count;
  report.non_finite_count = report.element_count - finite_count;
  report.mean_abs = Mean(sums.values[kAbsError], finite_count);
  report.rms = std::sqrt(Mean(sums.values[kSquaredError], finite_count));
  report.bias = Mean(sums.values[kSignedError], finite_count);
  report.mean_rel = Mean(sums.values[kRelativeError], relative_count);
  report.sum_reference_squared = sums.values[kSquaredReference];
  report.sum_error_squared = sums.values[kSquaredError];
  if (max_abs.index >= 0) {
    report.max_abs = max_abs.value;
    report.max_abs_at = pair_at(max_abs.index);
  }
  if (max_rel.index >= 0) {
    report.max_rel = max_rel.value;
    report.max_rel_at = pair_at(max_rel.index);
  }
  const double norms =
      std::sqrt(sums.values[kSquaredSubject]) * std::sqrt(sums.values[kSquaredReference]);
  const bool both_zero = sums.values[kSquaredSubject] == 0 && sums.values[kSquaredReference] == 0;
  report.cosine = both_zero ? 1 : norms == 0 ? 0 : sums.values[kProduct] / norms;
  const double error_norm = std::sqrt(report.sum_error_squared);
  report.relative_frobenius =
      error_norm == 0 ? 0 : error_norm / std::sqrt(report.sum_reference_squared);
  report.worst_blocks = WorstOf(heat_map);
  report.heat_map = std::move(heat_map);
  return report;
}

NearerReport NearerReportOf(const NearerSums& total) {
  NearerReport report;
  report.subject_nearer = total.subject_nearer;
  report.reference_nearer = total.reference_nearer;
  report.tied = total.tied;
  if (total.finite_count > 0) {
    const auto count = static_cast<double>(total.finite_count);
    report.subject_rms = std::sqrt(total.sums.values[kSubjectDistance] / count);
    report.reference_rms = std::sqrt(total.sums.values[kReferenceDistance] / count);
  }
  return report;
}

}  // namespace quantgate
