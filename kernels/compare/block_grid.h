// The blocks in which errors are summed: at most 32 x 32 of them, as equal as whole rows and
// columns allow.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/compare/block_edges.h"
#include "kernels/compare/error_report.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

struct BlockGrid {
  explicit BlockGrid(const Tensor& tensor)
      : row_count(tensor.rows()), column_count(tensor.columns()) {
    if (tensor.element_count() == 0) return;
    rows = static_cast<int>(std::min<int64_t>(row_count, kHeatMapRowsMax));
    columns = static_cast<int>(std::min<int64_t>(column_count, kHeatMapColumnsMax));
  }

  int count() const { return rows * columns; }
  /// The cell of block `index`, row-major, without any errors yet.
  HeatMapCell Cell(int index) const {
    const int row = index / columns;
    const int column = index % columns;
    HeatMapCell cell;
    cell.row_begin = BlockEdge(row, rows, row_count);
    cell.row_end = BlockEdge(row + 1, rows, row_count);
    cell.column_begin = BlockEdge(column, columns, column_count);
    cell.column_end = BlockEdge(column + 1, columns, column_count);
    return cell;
  }

  int64_t row_count = 0;
  int64_t column_count = 0;
  int rows = 0;
  int columns = 0;
};

/// Several fp64 series summed side by side by the same pairwise tree (numerics/pairwise.h).
template <int kCount>
struct SeriesTerms {
  double values[kCount];
  SeriesTerms() = default;
  explicit SeriesTerms(int zero) {
    for (double& value : values) value = zero;
  }
  friend SeriesTerms operator+(const SeriesTerms& a, const SeriesTerms& b) {
    SeriesTerms sum;
    for (int i = 0; i < kCount; ++i) sum.values[i] = a.values[i] + b.values[i];
    return sum;
  }
};

}  // namespace quantgate
