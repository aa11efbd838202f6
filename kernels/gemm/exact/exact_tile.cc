#include "kernels/gemm/exact/exact_tile.h"

#include <algorithm>
#include <utility>

#include "kernels/base/round_up.h"
#include "kernels/gemm/exact/exact_operand.h"

namespace quantgate {
namespace {

constexpr int64_t kTileRowsMax = 768;
constexpr int64_t kTileColumnsMax = 768;
/// Rows of a whose packed panels stay in the L2 cache: 192 * 256 * 8 bytes = 384 KiB.
constexpr int64_t kCachedRows = 192;

void PackPanels(const ExactSource& source, int64_t begin, int64_t end, int panel_rows, int64_t k,
                int64_t count, const ExactKernels& kernels, double* packed) {
  for (int64_t row = begin; row < end; row += panel_rows) {
    PackExactPanel(source, row, panel_rows, k, count, kernels, packed);
    packed += count * panel_rows;
  }
}

}  // namespace

std::vector<ExactTile> CutIntoTiles(int64_t m, int64_t n, int64_t tiles_min,
                                    const ExactKernels& kernels) {
  if (m == 0 || n == 0) return {};
  int64_t m_parts = DivideUp(m, kTileRowsMax);
  int64_t n_parts = DivideUp(n, kTileColumnsMax);
  while (m_parts * n_parts < tiles_min) {
    const bool is_tall = m / m_parts >= n / n_parts;
    int64_t& parts = is_tall ? m_parts : n_parts;
    if ((is_tall ? m : n) / (parts + 1) < 96) break;
    ++parts;
  }
  const int64_t rows = DivideUp(DivideUp(m, m_parts), kernels.a_panel_rows) * kernels.a_panel_rows;
  const int64_t columns =
      DivideUp(DivideUp(n, n_parts), kernels.b_panel_rows) * kernels.b_panel_rows;
  std::vector<ExactTile> tiles;
  for (int64_t row = 0; row < m; row += rows) {
    for (int64_t column = 0; column < n; column += columns) {
      tiles.push_back({row, std::min(m, row + rows), column, std::min(n, column + columns)});
    }
  }
  return tiles;
}

// A term goes through the additions of at most kExactDepth - 1 later terms of its block, and then,
// with its block, through at most one addition for each block; the first addition of either kind is
// to zero and exact.
int64_t ExactRoundingDepth(int64_t k) {
  return std::min(k, kExactDepth) + DivideUp(k, kExactDepth);
}

double* AlignedDoubles::Resize(int64_t count) {
  if (count > count_) {
    void* memory = ::operator new[](count * sizeof(double), std::align_val_t(64));
    doubles_.reset(static_cast<double*>(memory));
    count_ = count;
  }
  return doubles_.get();
}

std::unique_ptr<ExactTileMemory> ExactTileMemoryPool::Take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (free_.empty()) return std::make_unique<ExactTileMemory>();
  std::unique_ptr<ExactTileMemory> memory = std::move(free_.back());
  free_.pop_back();
  return memory;
}

void ExactTileMemoryPool::Return(std::unique_ptr<ExactTileMemory> memory) {
  const std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(std::move(memory));
}

ExactSums MultiplyTile(const ExactSource& a, const ExactSource& b, const ExactTile& tile,
                       const ExactKernels& kernels, ExactTileMemory& memory) {
  const int a_rows = kernels.a_panel_rows;
  const int b_rows = kernels.b_panel_rows;
  const int64_t rows = DivideUp(tile.m_end - tile.m_begin, a_rows) * a_rows;
  const int64_t columns = DivideUp(tile.n_end - tile.n_begin, b_rows) * b_rows;
  double* sums = memory.sums.Resize(rows * columns);
  double* a_panels = memory.a_panels.Resize(std::min(rows, kCachedRows) * kExactDepth);
  double* b_panels = memory.b_panels.Resize(columns * kExactDepth);
  std::fill(sums, sums + rows * columns, 0.0);
  for (int64_t k = 0; k < a.k; k += kExactDepth) {
    const int64_t count = std::min(kExactDepth, a.k - k);
    PackPanels(b, tile.n_begin, tile.n_end, b_rows, k, count, kernels, b_panels);
    for (int64_t block = 0; block < rows; block += kCachedRows) {
      const int64_t block_end = std::min(rows, block + kCachedRows);
      PackPanels(a, tile.m_begin + block, std::min(tile.m_end, tile.m_begin + block_end), a_rows, k,
                 count, kernels, a_panels);
      for (int64_t column = 0; column < columns; column += b_rows) {
        for (int64_t row = block; row < block_end; row += a_rows) {
          kernels.multiply(a_panels + (row - block) * count, b_panels + column * count, count,
                           sums + row * columns + column, columns);
        }
      }
    }
  }
  return {sums, columns};
}

}  // namespace quantgate
