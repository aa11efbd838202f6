#include "kernels/compare/error_report.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/status_macros.h"
#include "kernels/compare/block_grid.h"
#include "kernels/compare/element_values.h"
#include "kernels/compare/error_kernels.h"
#include "kernels/compare/error_summary.h"
#include "kernels/numerics/pairwise.h"

namespace quantgate {
namespace {

using ErrorTerms = SeriesTerms<kErrorSeriesCount>;

MeasureStretch MeasureStretchFor(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return MeasureStretchAvx512;
    case Isa::kAvx2:
      return MeasureStretchAvx2;
    case Isa::kScalar:
      break;
  }
  return MeasureStretchScalar;
}

/// What one block adds to the report, while its sums are still growing.
struct GrowingBlock : BlockErrors {
  PairwiseAccumulator<ErrorTerms> accumulator;
};

/// The elements of one block in row-major order, a stretch at a time.
class BlockReader {
 public:
  BlockReader(const Tensor& subject, const Tensor& reference, const HeatMapCell& cell)
      : subject_(subject), reference_(reference), cell_(cell) {}

  /// Decodes the next stretch, padded with NaN; false when there is none.
  bool Next() {
    first_ = next_;
    const int64_t width = cell_.column_end - cell_.column_begin;
    const int64_t total = width * (cell_.row_end - cell_.row_begin);
    int filled = 0;
    while (filled < kErrorStretch && next_ < total) {
      const int64_t count = std::min<int64_t>(kErrorStretch - filled, width - next_ % width);
      DecodeValues(subject_, IndexOf(next_), count, subject + filled);
      DecodeValues(reference_, IndexOf(next_), count, reference + filled);
      filled += static_cast<int>(count);
      next_ += count;
    }
    const bool any = filled > 0;
    for (; filled < kErrorStretch; ++filled) {
      subject[filled] = reference[filled] = std::numeric_limits<double>::quiet_NaN();
    }
    return any;
  }

  /// Index in the tensor of element i of the stretch.
  int64_t ElementIndex(int i) const { return IndexOf(first_ + i); }

  alignas(64) double subject[kErrorStretch];
  alignas(64) double reference[kErrorStretch];

 private:
  int64_t IndexOf(int64_t position) const {
    const int64_t width = cell_.column_end - cell_.column_begin;
    return (cell_.row_begin + position / width) * subject_.columns() + cell_.column_begin +
           position % width;
  }

  const Tensor& subject_;
  const Tensor& reference_;
  const HeatMapCell& cell_;
  int64_t first_ = 0;
  int64_t next_ = 0;
};

/// Finds the elements that have the new maxima of a stretch.
void OfferLargest(const BlockReader& reader, const StretchErrors& errors, BlockErrors& block) {
  const bool seek_abs = errors.max_abs > block.max_abs.value;
  const bool seek_rel = errors.max_rel > block.max_rel.value;
  if (!seek_abs && !seek_rel) return;
  for (int i = kErrorStretch - 1; i >= 0; --i) {
    const double r = reader.reference[i];
    // The maximum is infinite where finite values differ by more than the largest number.
    if (!std::isfinite(reader.subject[i]) || !std::isfinite(r)) continue;
    const double error = std::fabs(reader.subject[i] - r);
    if (seek_abs && error == errors.max_abs) block.max_abs = {error, reader.ElementIndex(i)};
    if (seek_rel && r != 0 && error / std::fabs(r) == errors.max_rel) {
      block.max_rel = {errors.max_rel, reader.ElementIndex(i)};
    }
  }
}

void MeasureBlock(const Tensor& subject, const Tensor& reference, const HeatMapCell& cell,
                  MeasureStretch measure, BlockErrors& result) {
  const SubjectRange range = RangeOfSubject(subject.dtype());
  GrowingBlock block;
  BlockReader reader(subject, reference, cell);
  while (reader.Next()) {
    StretchErrors errors;
    measure(reader.subject, reader.reference, range, errors);
    ErrorTerms terms;
    std::copy_n(errors.sums, kErrorSeriesCount, terms.values);
    block.accumulator.Add(terms);
    OfferLargest(reader, errors, block);
    block.finite_count += errors.finite_count;
    block.relative_count += errors.relative_count;
    block.saturated_count += errors.saturated_count;
    block.flushed_to_zero_count += errors.flushed_to_zero_count;
    block.subnormal_count += errors.subnormal_count;
  }
  block.sums = block.accumulator.Sum();
  result = block;
}

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

absl::StatusOr<ErrorReport> MeasureError(const Tensor& subject, const Tensor& reference,
                                         const ExecutionContext& context) {
  QG_RETURN_IF_ERROR(CheckErrorSides(subject, reference));
  const BlockGrid grid(subject);
  std::vector<BlockErrors> blocks(grid.count());
  const MeasureStretch measure = MeasureStretchFor(context.isa);
  ParallelFor(context, grid.count(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      MeasureBlock(subject, reference, grid.Cell(static_cast<int>(i)), measure, blocks[i]);
    }
  });
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  return SummarizeErrors(grid, HeatMapOf(grid), blocks,
                         [&](int64_t index) { return PairAt(subject, reference, index); });
}

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

}  // namespace quantgate
