// The fp64 dot products of one tile of outputs, by packed panels in the manner of Goto and van de
// Geijn ("Anatomy of High-Performance Matrix Multiplication", 2008).
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "kernels/gemm/exact/exact_kernels.h"

namespace quantgate {

/// Rows [m_begin, m_end) by columns [n_begin, n_end) of the output.
struct ExactTile {
  int64_t m_begin, m_end, n_begin, n_end;
};

/// Cuts m x n into nearly equal tiles of at most 768 x 768, about `tiles_min` or more of them where
/// the output is large enough to divide among threads.
std::vector<ExactTile> CutIntoTiles(int64_t m, int64_t n, int64_t tiles_min,
                                    const ExactKernels& kernels);

/// The most fp64 roundings that a term of a dot product of length k goes through in MultiplyTile.
int64_t ExactRoundingDepth(int64_t k);

/// fp64 memory, aligned to cache lines and not initialised.
class AlignedDoubles {
 public:
  /// Memory for `count` numbers, valid until the next call that asks for more.
  double* Resize(int64_t count);

 private:
  struct Free {
    void operator()(double* p) const { ::operator delete[](p, std::align_val_t(64)); }
  };
  std::unique_ptr<double[], Free> doubles_;
  int64_t count_ = 0;
};

/// The working memory of one thread for a tile.
struct ExactTileMemory {
  AlignedDoubles a_panels;
  AlignedDoubles b_panels;
  AlignedDoubles sums;
  std::vector<double> a_row, b_row;  ///< Decoded rows for a dot product in wide integers.
  int64_t decoded_row = -1;          ///< The row that is in a_row.
  std::vector<double> addend;
  std::vector<uint32_t> codes;
  std::vector<uint32_t> amax;
  std::vector<uint8_t> doubt;
};

/// Passes working memory from one tile to the next. Thread-safe.
class ExactTileMemoryPool {
 public:
  std::unique_ptr<ExactTileMemory> Take();
  void Return(std::unique_ptr<ExactTileMemory> memory);

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<ExactTileMemory>> free_;
};

struct ExactSums {
  const double* sums;
  int64_t stride;
};

/// Computes the dot products of a tile, which are in `memory` until its next use.
ExactSums MultiplyTile(const ExactSource& a, const ExactSource& b, const ExactTile& tile,
                       const ExactKernels& kernels, ExactTileMemory& memory);

}  // namespace quantgate
