// The blocks of a tensor over which errors are summed, one for each cell of the heat map: at most
// 32 x 32, as equal as whole rows and columns allow.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/compare/block_edges.h"
#include "kernels/compare/error_report.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

/// The blocks of a tensor viewed as [rows()][columns()].
struct BlockGrid {
  explicit BlockGrid(const Tensor& tensor)
      : row_count(tensor.rows()), column_count(tensor.columns()) {
    if (tensor.element_count() == 0) return;
    rows = static_cast<int>(std::min<int64_t>(row_count, kHeatMapRowsMax));
    columns = static_cast<int>(std::min<int64_t>(column_count, kHeatMapColumnsMax));
  }

  int count() const { return rows * columns; }
  /// The extent of block `index`, in row-major order, without errors yet.
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

  int64_t row_count = 0;  ///< Rows of the tensor.
  int64_t column_count = 0;
  int rows = 0;  ///< Blocks along the rows.
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
