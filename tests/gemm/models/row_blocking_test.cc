// How a fused GEMM is cut: everything is in one tile, and what the cutting is for.
#include "kernels/gemm/models/row_blocking.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace quantgate {
namespace QG_TEST_FILE {

TEST(RowsPerBlock, CoversTheRowsInEvenBlocksOfOneSize) {
  for (const int threads : {1, 2, 8}) {
    for (const int64_t row_bytes : {320, 5 * 2048, 10 * 2048, 10 * 65536, 10 << 20}) {
      for (const int64_t rows : {1, 2, 3, 255, 512, 2048, 2050, 100001}) {
        const int64_t block = RowsPerBlock(rows, row_bytes, threads);
        const int64_t blocks = (rows + block - 1) / block;
        EXPECT_GE(block, 2);
        EXPECT_EQ(block % 2, 0);
        EXPECT_LT(blocks * block - rows, 2 * blocks) << "the last block is as large as the others";
        EXPECT_LE(block, rows + 1);
      }
    }
  }
}

// 2048 rows of 2048 bf16 numbers, 10 bytes each as packed.
TEST(RowsPerBlock, OneThreadTakesSmallBlocksButNotOfFewRows) {
  EXPECT_EQ(RowsPerBlock(2048, 10 * 2048, 8), 2048);
  EXPECT_LE(RowsPerBlock(2048, 10 * 2048, 1) * 10 * 2048, 6 << 20);
  EXPECT_EQ(RowsPerBlock(2048, 10 * 65536, 8), 76);  // 2048 in 27 blocks of at most 48 MiB.
  EXPECT_EQ(RowsPerBlock(2048, 10 * 16384, 1), 256);
  EXPECT_EQ(RowsPerBlock(2048, 10 * 65536, 1), 76);
}

TEST(TilesOf, HasEveryRowOfEveryPanelOnce) {
  for (const int threads : {1, 2, 8}) {
    for (const int64_t columns : {1, 3, 32}) {
      for (const int64_t rows : {1, 2, 31, 33, 512, 513, 600, 2048}) {
        std::map<int64_t, std::vector<int>> times;  // By panel, then row.
        for (const BlockTile& tile : TilesOf(rows, columns, threads)) {
          EXPECT_EQ(tile.row % 2, 0);
          ASSERT_GE(tile.rows, 1);
          EXPECT_LE(tile.rows, TileRowsMax(rows, columns, threads));
          std::vector<int>& of_panel = times[tile.column_tile];
          of_panel.resize(static_cast<size_t>(rows));
          for (int64_t r = 0; r < tile.rows; ++r) ++of_panel.at(static_cast<size_t>(tile.row + r));
        }
        EXPECT_EQ(times.size(), static_cast<size_t>(columns));
        EXPECT_EQ(times.begin()->first, 0);
        EXPECT_EQ(times.rbegin()->first, columns - 1);
        for (const auto& [panel, of_panel] : times) {
          EXPECT_EQ(of_panel, std::vector<int>(static_cast<size_t>(rows), 1)) << panel;
        }
      }
    }
  }
}

// 1024 x 1024 by panels of 64 columns.
TEST(TilesOf, SeveralThreadsEndWithSmallTiles) {
  EXPECT_EQ(TilesOf(1024, 16, 1).size(), 32u);
  const std::vector<BlockTile> tiles = TilesOf(1024, 16, 2);
  ASSERT_EQ(tiles.size(), 36u);
  for (size_t i = 0; i < tiles.size(); ++i) EXPECT_EQ(tiles[i].rows, i < 28 ? 512 : 256);
}

TEST(TilesOf, ManyThreadsCutRowsOfFewPanels) {
  EXPECT_GE(TilesOf(2048, 1, 8).size(), 32u);
  EXPECT_EQ(TilesOf(16, 1, 8).size(), 1u);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
