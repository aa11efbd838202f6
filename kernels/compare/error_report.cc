#include "kernels/compare/error_report.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/compare/block_grid.h"
#include "kernels/compare/element_codes.h"
#include "kernels/compare/element_values.h"
#include "kernels/compare/error_kernels.h"
#include "kernels/numerics/pairwise.h"

namespace quantgate {
namespace {

constexpr int kWorstBlocksMax = 5;
using Terms = SeriesTerms<kErrorSeriesCount>;

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

/// Finds the elements that the new maxima of a stretch belong to.
void OfferLargest(const BlockReader& reader, const StretchErrors& errors, BlockErrors& block) {
  const bool seek_abs = errors.max_abs > block.max_abs.value;
  const bool seek_rel = errors.max_rel > block.max_rel.value;
  if (!seek_abs && !seek_rel) return;
  for (int i = kErrorStretch - 1; i >= 0; --i) {
    const double r = reader.reference[i];
    const double error = std::fabs(reader.subject[i] - r);
    if (seek_abs && error == errors.max_abs) block.max_abs = {error, reader.ElementIndex(i)};
    if (seek_rel && r != 0 && error / std::fabs(r) == errors.max_rel) {
      block.max_rel = {errors.max_rel, reader.ElementIndex(i)};
    }
  }
}

void AddBlock(const Tensor& subject, const Tensor& reference, const HeatMapCell& cell,
              MeasureStretch measure, BlockErrors& block) {
  const SubjectRange range = RangeOf(subject.dtype());
  BlockReader reader(subject, reference, cell);
  while (reader.Next()) {
    StretchErrors errors;
    measure(reader.subject, reader.reference, range, errors);
    Terms terms;
    std::copy_n(errors.sums, kErrorSeriesCount, terms.values);
    block.accumulator.Add(terms);
    OfferLargest(reader, errors, block);
    block.finite_count += errors.finite_count;
    block.relative_count += errors.relative_count;
    block.saturated_count += errors.saturated_count;
    block.flushed_to_zero_count += errors.flushed_to_zero_count;
    block.subnormal_count += errors.subnormal_count;
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
    cell.rms_error = std::sqrt(Mean(block_sums.values[kSquaredError], block.finite_count));
    cell.max_abs_error = std::max(block.max_abs.value, 0.0);
  }
  report.element_count = subject.element_count();
  report.non_finite_count = report.element_count - finite_count;
  report.mean_abs = Mean(sums.values[kAbsError], finite_count);
  report.rms = std::sqrt(Mean(sums.values[kSquaredError], finite_count));
  report.bias = Mean(sums.values[kSignedError], finite_count);
  report.mean_rel = Mean(sums.values[kRelativeError], relative_count);
  report.sum_reference_squared = sums.values[kSquaredReference];
  report.sum_error_squared = sums.values[kSquaredError];
  if (max_abs.index >= 0) {
    report.max_abs = max_abs.value;
    report.max_abs_at = PairAt(subject, reference, max_abs.index);
  }
  if (max_rel.index >= 0) {
    report.max_rel = max_rel.value;
    report.max_rel_at = PairAt(subject, reference, max_rel.index);
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
  const MeasureStretch measure = MeasureStretchFor(context.isa);
  ParallelFor(context, grid.count(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      AddBlock(subject, reference, heat_map.cells[i], measure, blocks[i]);
    }
  });
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  ScopedIeeeEnvironment ieee;
  return Summarize(blocks, subject, reference, std::move(heat_map));
}

}  // namespace quantgate
