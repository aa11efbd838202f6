#include "kernels/compare/error_report.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/compare/block_grid.h"
#include "kernels/compare/element_codes.h"
#include "kernels/compare/element_values.h"
#include "kernels/numerics/pairwise.h"

namespace quantgate {
namespace {

constexpr int kWorstBlocksMax = 5;
/// Elements decoded at a time.
constexpr int64_t kSegment = 1024;

enum Series { kAbs, kSquared, kSigned, kRelative, kReference, kSubject, kProduct, kSeriesCount };
using Terms = SeriesTerms<kSeriesCount>;

/// The largest of a quantity, and the lowest index that has it.
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

/// What one block adds to the report.
struct BlockErrors {
  PairwiseAccumulator<Terms> accumulator;
  Largest max_abs, max_rel;
  int64_t finite_count = 0;
  int64_t relative_count = 0;
  int64_t saturated_count = 0;
  int64_t flushed_to_zero_count = 0;
  int64_t subnormal_count = 0;
};

/// Facts of the subject's type, as values.
struct SubjectRange {
  double largest_finite = 0;
  double smallest_normal = 0;
};

SubjectRange RangeOf(DType dtype) {
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

// Elements left out of a sum stand in it as -0, which changes nothing, so that the tree of
// additions depends on the shape alone.
void AddElement(double s, double r, int64_t index, const SubjectRange& range, BlockErrors& block) {
  const double magnitude = std::fabs(s);
  const double reference_magnitude = std::fabs(r);
  block.saturated_count += magnitude == range.largest_finite && reference_magnitude > magnitude;
  block.flushed_to_zero_count += s == 0 && reference_magnitude > 0;
  block.subnormal_count += magnitude != 0 && magnitude < range.smallest_normal;
  Terms terms;
  for (double& term : terms.values) term = -0.0;
  if (std::isfinite(s) && std::isfinite(r)) {
    ++block.finite_count;
    const double error = s - r;
    const double abs_error = std::fabs(error);
    terms.values[kAbs] = abs_error;
    terms.values[kSquared] = error * error;
    terms.values[kSigned] = error;
    terms.values[kReference] = r * r;
    terms.values[kSubject] = s * s;
    terms.values[kProduct] = s * r;
    block.max_abs.Offer(abs_error, index);
    if (r != 0) {
      ++block.relative_count;
      terms.values[kRelative] = abs_error / reference_magnitude;
      block.max_rel.Offer(terms.values[kRelative], index);
    }
  }
  block.accumulator.Add(terms);
}

void AddBlock(const Tensor& subject, const Tensor& reference, const HeatMapCell& cell,
              BlockErrors& block) {
  const SubjectRange range = RangeOf(subject.dtype());
  const int64_t columns = subject.columns();
  double s[kSegment];
  double r[kSegment];
  for (int64_t row = cell.row_begin; row < cell.row_end; ++row) {
    for (int64_t at = cell.column_begin; at < cell.column_end; at += kSegment) {
      const int64_t count = std::min(kSegment, cell.column_end - at);
      const int64_t index = row * columns + at;
      DecodeValues(subject, index, count, s);
      DecodeValues(reference, index, count, r);
      for (int64_t i = 0; i < count; ++i) AddElement(s[i], r[i], index + i, range, block);
    }
  }
}

std::vector<HeatMapCell> WorstOf(const HeatMap& heat_map) {
  std::vector<HeatMapCell> worst;
  for (const HeatMapCell& cell : heat_map.cells) {
    if (cell.rms_error > 0) worst.push_back(cell);
  }
  std::stable_sort(worst.begin(), worst.end(), [](const HeatMapCell& a, const HeatMapCell& b) {
    return a.rms_error > b.rms_error;
  });
  if (worst.size() > kWorstBlocksMax) worst.resize(kWorstBlocksMax);
  return worst;
}

double Mean(double sum, int64_t count) { return count == 0 ? 0 : sum / static_cast<double>(count); }

/// Adds the blocks in index order and forms the ratios.
ErrorReport Summarize(const std::vector<BlockErrors>& blocks, const Tensor& subject,
                      const Tensor& reference, HeatMap heat_map) {
  ErrorReport report;
  Terms sums(0);
  Largest max_abs, max_rel;
  int64_t finite_count = 0, relative_count = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const BlockErrors& block = blocks[i];
    const Terms block_sums = block.accumulator.Sum();
    sums = sums + block_sums;
    if (block.max_abs.index >= 0) max_abs.Offer(block.max_abs.value, block.max_abs.index);
    if (block.max_rel.index >= 0) max_rel.Offer(block.max_rel.value, block.max_rel.index);
    finite_count += block.finite_count;
    relative_count += block.relative_count;
    report.saturated_count += block.saturated_count;
    report.flushed_to_zero_count += block.flushed_to_zero_count;
    report.subnormal_count += block.subnormal_count;
    HeatMapCell& cell = heat_map.cells[i];
    cell.rms_error = std::sqrt(Mean(block_sums.values[kSquared], block.finite_count));
    cell.max_abs_error = std::max(block.max_abs.value, 0.0);
  }
  report.element_count = subject.element_count();
  report.non_finite_count = report.element_count - finite_count;
  report.mean_abs = Mean(sums.values[kAbs], finite_count);
  report.rms = std::sqrt(Mean(sums.values[kSquared], finite_count));
  report.bias = Mean(sums.values[kSigned], finite_count);
  report.mean_rel = Mean(sums.values[kRelative], relative_count);
  report.sum_reference_squared = sums.values[kReference];
  report.sum_error_squared = sums.values[kSquared];
  if (max_abs.index >= 0) {
    report.max_abs = max_abs.value;
    report.max_abs_at = PairAt(subject, reference, max_abs.index);
  }
  if (max_rel.index >= 0) {
    report.max_rel = max_rel.value;
    report.max_rel_at = PairAt(subject, reference, max_rel.index);
  }
  const double norms = std::sqrt(sums.values[kSubject]) * std::sqrt(sums.values[kReference]);
  const bool both_zero = sums.values[kSubject] == 0 && sums.values[kReference] == 0;
  report.cosine = both_zero ? 1 : norms == 0 ? 0 : sums.values[kProduct] / norms;
  const double error_norm = std::sqrt(report.sum_error_squared);
  report.relative_frobenius =
      error_norm == 0 ? 0 : error_norm / std::sqrt(report.sum_reference_squared);
  report.worst_blocks = WorstOf(heat_map);
  report.heat_map = std::move(heat_map);
  return report;
}

}  // namespace

absl::StatusOr<ErrorReport> MeasureError(const Tensor& subject, const Tensor& reference,
                                         const ExecutionContext& context) {
  QG_RETURN_IF_ERROR(CheckSameShape(subject, reference));
  QG_RETURN_IF_ERROR(CheckFloating(subject, "subject"));
  QG_RETURN_IF_ERROR(CheckFloating(reference, "reference"));
  const BlockGrid grid(subject);
  HeatMap heat_map;
  heat_map.rows = grid.rows;
  heat_map.columns = grid.columns;
  for (int i = 0; i < grid.count(); ++i) heat_map.cells.push_back(grid.Cell(i));
  std::vector<BlockErrors> blocks(grid.count());
  ParallelFor(context, grid.count(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      AddBlock(subject, reference, heat_map.cells[i], blocks[i]);
    }
  });
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  ScopedIeeeEnvironment ieee;
  return Summarize(blocks, subject, reference, std::move(heat_map));
}

}  // namespace quantgate
