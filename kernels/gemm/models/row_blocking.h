// How a fused GEMM is cut: rows of a into blocks, packed one after the other by all threads
// together, and these into tiles, each one thread's work on a panel's columns. No output's bits
// depend on it.
#pragma once

#include <cstdint>
#include <vector>

namespace quantgate {

/// Rows of a block, at least 2 and even: `rows` >= 1 in blocks as equal as can be, a packed row
/// having `row_bytes`.
int64_t RowsPerBlock(int64_t rows, int64_t row_bytes, int threads);

/// Rows [row, row + rows) of a block by one panel's columns.
struct BlockTile {
  int64_t row;  ///< Even.
  int64_t rows;
  int64_t column_tile;
};

/// The tiles of a block of `rows` >= 1 by `column_tiles` panels, each row and panel in one of them,
/// in the order in which threads take them: the last are smaller, so that threads end together.
std::vector<BlockTile> TilesOf(int64_t rows, int64_t column_tiles, int threads);

/// What no tile of a block of `rows` has more rows than; even.
int64_t TileRowsMax(int64_t rows, int64_t column_tiles, int threads);

}  // namespace quantgate
