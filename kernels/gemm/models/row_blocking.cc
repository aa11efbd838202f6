#include "kernels/gemm/models/row_blocking.h"

#include <algorithm>

#include "kernels/base/round_up.h"

namespace quantgate {
namespace {

constexpr int64_t kTileRowsMax = 512;  // Amortises the packing of b; 128 KiB of accumulators.
constexpr int64_t kTileRowsMin = 32;

// Bytes of packed a in a block. Several threads wait for one another at the end of a block, so
// theirs is large. A single thread's block fits its share of a cache that all cores use in the same
// way, as virtual ranks do, but has enough rows to make up for packing b for each block.
constexpr int64_t kBlockBytesMax = 48 << 20;
constexpr int64_t kBlockBytesOfOneThread = 6 << 20;
constexpr int64_t kBlockRowsOfOneThread = 256;

/// Adds tiles for `rows` rows of a panel from `row` on, cut into `parts` as equal as possible.
void AddParts(BlockTile tile, int64_t parts, std::vector<BlockTile>& tiles) {
  const int64_t part_rows = std::max(kTileRowsMin, RoundUp(DivideUp(tile.rows, parts), 2));
  for (int64_t row = 0; row < tile.rows; row += part_rows) {
    tiles.push_back({tile.row + row, std::min(part_rows, tile.rows - row), tile.column_tile});
  }
}

}  // namespace

int64_t RowsPerBlock(int64_t rows, int64_t row_bytes, int threads) {
  int64_t fitting = std::max(kTileRowsMin, kBlockBytesMax / row_bytes);
  if (threads <= 1) {
    const int64_t of_one = std::max(kBlockRowsOfOneThread, kBlockBytesOfOneThread / row_bytes);
    fitting = std::min(fitting, of_one);
  }
  return RoundUp(DivideUp(rows, DivideUp(rows, fitting)), 2);
}

int64_t TileRowsMax(int64_t rows, int64_t column_tiles, int threads) {
  const int64_t wanted = DivideUp(4 * threads, column_tiles);
  const int64_t parts = std::max(wanted, DivideUp(rows, kTileRowsMax));
  return std::max(kTileRowsMin, RoundUp(DivideUp(rows, parts), 2));
}

std::vector<BlockTile> TilesOf(int64_t rows, int64_t column_tiles, int threads) {
  const int64_t tile_rows = TileRowsMax(rows, column_tiles, threads);
  std::vector<BlockTile> whole;
  // Consecutive tiles of a thread are of the same rows, whose pages are then in its TLB.
  for (int64_t row = 0; row < rows; row += tile_rows) {
    for (int64_t column = 0; column < column_tiles; ++column) {
      whole.push_back({row, std::min(tile_rows, rows - row), column});
    }
  }
  if (threads <= 1) return whole;
  const size_t halved = std::min(whole.size(), 2 * static_cast<size_t>(threads));
  std::vector<BlockTile> tiles(whole.begin(), whole.end() - static_cast<std::ptrdiff_t>(halved));
  for (size_t i = whole.size() - halved; i < whole.size(); ++i) AddParts(whole[i], 2, tiles);
  return tiles;
}

}  // namespace quantgate
