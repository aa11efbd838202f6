// MeasureNearer: which of two sides lies nearer the truth.
#include <cmath>

#include "kernels/base/status_macros.h"
#include "kernels/compare/block_grid.h"
#include "kernels/compare/element_values.h"
#include "kernels/compare/error_summary.h"
#include "kernels/numerics/pairwise.h"

namespace quantgate {
namespace {

constexpr int64_t kSegment = 1024;
using DistanceTerms = SeriesTerms<kDistanceSeriesCount>;

struct BlockDistances {
  PairwiseAccumulator<DistanceTerms> accumulator;
  int64_t finite_count = 0;
  int64_t subject_nearer = 0;
  int64_t reference_nearer = 0;
  int64_t tied = 0;
};

enum class Kind { kFinite, kNegativeInfinity, kPositiveInfinity, kNan };
Kind KindOf(double x) {
  if (std::isnan(x)) return Kind::kNan;
  if (std::isfinite(x)) return Kind::kFinite;
  return x < 0 ? Kind::kNegativeInfinity : Kind::kPositiveInfinity;
}

void AddElement(double s, double r, double t, BlockDistances& block) {
  DistanceTerms terms;
  for (double& term : terms.values) term = -0.0;
  // 0: tied; below 0: the subject is nearer.
  int order = 0;
  if (std::isfinite(s) && std::isfinite(r) && std::isfinite(t)) {
    ++block.finite_count;
    const double subject_error = std::fabs(s - t);
    const double reference_error = std::fabs(r - t);
    terms.values[kSubjectDistance] = subject_error * subject_error;
    terms.values[kReferenceDistance] = reference_error * reference_error;
    order = (subject_error > reference_error) - (subject_error < reference_error);
  } else {
    order = (KindOf(r) == KindOf(t)) - (KindOf(s) == KindOf(t));
  }
  block.subject_nearer += order < 0;
  block.reference_nearer += order > 0;
  block.tied += order == 0;
  block.accumulator.Add(terms);
}

void AddDistances(const Tensor& subject, const Tensor& reference, const Tensor& truth,
                  const HeatMapCell& cell, BlockDistances& block) {
  double s[kSegment];
  double r[kSegment];
  double t[kSegment];
  for (int64_t row = cell.row_begin; row < cell.row_end; ++row) {
    for (int64_t at = cell.column_begin; at < cell.column_end; at += kSegment) {
      const int64_t count = std::min(kSegment, cell.column_end - at);
      const int64_t index = row * subject.columns() + at;
      DecodeValues(subject, index, count, s);
      DecodeValues(reference, index, count, r);
      DecodeValues(truth, index, count, t);
      for (int64_t i = 0; i < count; ++i) AddElement(s[i], r[i], t[i], block);
    }
  }
}

}  // namespace

absl::StatusOr<NearerReport> MeasureNearer(const Tensor& subject, const Tensor& reference,
                                           const Tensor& truth, const ExecutionContext& context) {
  QG_RETURN_IF_ERROR(CheckNearerSides(subject, reference, truth));
  const BlockGrid grid(subject);
  std::vector<BlockDistances> blocks(grid.count());
  ParallelFor(context, grid.count(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      AddDistances(subject, reference, truth, grid.Cell(static_cast<int>(i)), blocks[i]);
    }
  });
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  ScopedIeeeEnvironment ieee;
  NearerSums total;
  for (const BlockDistances& block : blocks) {
    total.sums = total.sums + block.accumulator.Sum();
    total.finite_count += block.finite_count;
    total.subject_nearer += block.subject_nearer;
    total.reference_nearer += block.reference_nearer;
    total.tied += block.tied;
  }
  return NearerReportOf(total);
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
