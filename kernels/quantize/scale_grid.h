// The index of a block scale in each layout, on the CPU and in kernels.
#pragma once

#include <cstdint>

#include "kernels/base/host_device.h"

namespace quantgate {

/// How block scales lie in memory.
enum class ScaleLayout {
  kLogical,   ///< The shapes of QuantizedCopy, without padding.
  kPadded,    ///< The arrays of Transformer Engine; padding is zero.
  kSwizzled,  ///< mxfp8 and nvfp4: tiles of 128 x 4 scales in 512 bytes; padding is zero. The
              ///< shape is that of the padded array, the order of the bytes differs.
};

/// Scales as a matrix [outer][blocks]: i counts lines, j the blocks along the contracted dim.
struct ScaleGrid {
  static constexpr int64_t kTileRows = 128, kTileBlocks = 4;  ///< A tile of kSwizzled.

  int64_t outer = 0;
  int64_t blocks = 0;
  bool logical_is_transposed = false;  ///< mxfp8 columnwise: [blocks][outer].
  bool padded_is_transposed = false;   ///< mxfp8 columnwise and fp8_block 1-D.
  int64_t padded_rows = 0, padded_columns = 0;

  QG_HOST_DEVICE constexpr int64_t LogicalIndex(int64_t i, int64_t j) const {
    return logical_is_transposed ? j * outer + i : i * blocks + j;
  }
  QG_HOST_DEVICE constexpr int64_t PaddedIndex(int64_t i, int64_t j) const {
    return padded_is_transposed ? j * padded_columns + i : i * padded_columns + j;
  }
  /// docs/quantizers.md section 5.
  QG_HOST_DEVICE constexpr int64_t SwizzledIndex(int64_t i, int64_t j) const {
    const int64_t tiles = (blocks + kTileBlocks - 1) / kTileBlocks;
    return (i / kTileRows * tiles + j / kTileBlocks) * kTileRows * kTileBlocks + i % 32 * 16 +
           i % kTileRows / 32 * 4 + j % kTileBlocks;
  }
  QG_HOST_DEVICE constexpr int64_t Index(ScaleLayout layout, int64_t i, int64_t j) const {
    switch (layout) {
      case ScaleLayout::kLogical:
        return LogicalIndex(i, j);
      case ScaleLayout::kPadded:
        return PaddedIndex(i, j);
      case ScaleLayout::kSwizzled:
        return SwizzledIndex(i, j);
    }
    return 0;
  }
};

}  // namespace quantgate
