// How a fused GEMM is cut. The rows of a are cut into blocks, which all threads together pack one
// after the other, and a block into tiles, each of which is one thread's work on the columns of a
// panel. No output's bits depend on it.
#pragma once

#include <cstdint>
#include <vector>

namespace quantgate {

/// The rows of a block, at least 2 and even, where `rows` >= 1 are cut into blocks as equal as
/// possible. A packed row has `row_bytes`.
int64_t RowsPerBlock(int64_t rows, int64_t row_bytes, int threads);

/// A tile: rows [row, row + rows) of a block by the columns of panel `column_tile`.
struct BlockTile {
  int64_t row;  ///< Even.
  int64_t rows;
  int64_t column_tile;
};

/// The tiles of a block of `rows` >= 1 by `column_tiles` panels, which cover each row and panel
/// once, in the order in which threads take them. The last tiles are smaller, so that threads end
/// together.
std::vector<BlockTile> TilesOf(int64_t rows, int64_t column_tiles, int threads);

/// The most rows that a tile of a block of `rows` has; even.
int64_t TileRowsMax(int64_t rows, int64_t column_tiles, int threads);

}  // namespace quantgate
