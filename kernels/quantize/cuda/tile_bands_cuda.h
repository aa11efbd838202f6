// The order in which blocks of threads take tiles. Included by .cu files only.
#pragma once

#include "kernels/quantize/cuda/code_tally_cuda.h"

namespace quantgate {

/// The tiles of kSide x kSide of a matrix, in bands of kTilesDown rows of tiles: they go down a
/// band before they go right, so that what is written columnwise at a time stands next to each
/// other.
template <int kSide, uint32_t kTilesDown>
struct TileBands {
  /// In tiles.
  struct Place {
    uint32_t down, right;

    __device__ int64_t row() const { return int64_t{down} * kSide; }
    __device__ int64_t column() const { return int64_t{right} * kSide; }
  };

  uint32_t across = 0, down = 0;
  uint32_t whole_across = 0, whole_down = 0;  ///< Without those at the edges.
  Divisor band;                               ///< Tiles in a band.

  static TileBands Of(int64_t rows, int64_t columns) {
    TileBands order;
    order.across = static_cast<uint32_t>((columns + kSide - 1) / kSide);
    order.down = static_cast<uint32_t>((rows + kSide - 1) / kSide);
    order.whole_across = static_cast<uint32_t>(columns / kSide);
    order.whole_down = static_cast<uint32_t>(rows / kSide);
    if (order.count() != 0) order.band = Divisor::Of(kTilesDown * order.across);
    return order;
  }
  __host__ __device__ uint32_t count() const { return across * down; }
  __device__ bool IsWhole(Place place) const {
    return place.down < whole_down && place.right < whole_across;
  }
  __device__ Place At(uint32_t index) const {
    const uint32_t of_band = band.Quotient(index), within = index - of_band * band.value;
    const uint32_t top = of_band * kTilesDown, height = min(kTilesDown, down - top);
    if (height == kTilesDown) return {top + within % kTilesDown, within / kTilesDown};
    return {top + within % height, within / height};
  }
};

}  // namespace quantgate
