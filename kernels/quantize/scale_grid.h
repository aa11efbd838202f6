// The index of a block scale in each layout, and the move of one scale from a layout to another, on
// the CPU and in kernels.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/base/host_device.h"
#include "kernels/numerics/e8m0.h"

namespace quantgate {

/// How block scales lie in memory, and as what they are stored. docs/file-formats.md section 2.1
/// has the formulas. New ones go to the end.
enum class ScaleLayout {
  kLogical,      ///< The shapes of QuantizedCopy, without padding.
  kPadded,       ///< The arrays of Transformer Engine; padding is zero.
  kSwizzled,     ///< mxfp8 and nvfp4: tiles of 128 x 4 scales in 512 bytes; padding is zero. The
                 ///< shape is that of the padded array, the order of the bytes differs.
  kKMajor,       ///< [outer][blocks], also where the logical one is transposed.
  kMnMajor,      ///< [blocks][outer].
  kTmaAligned,   ///< [blocks][outer], lines padded with zeros to 16 bytes, as TMA reads them.
  kUe8m0,        ///< As kKMajor; fp32 scales as E8M0 bytes.
  kPackedUe8m0,  ///< DeepGEMM's i32 [blocks / 4][lines], four E8M0 scales along the blocks from the
                 ///< lowest byte on, lines padded with zeros to 16 bytes; the scale of a tile is
                 ///< stored for each of its lines.
};
inline constexpr int kScaleLayoutCount = 8;

/// Whether scales are stored as E8M0 codes, whatever the format has.
constexpr bool HoldsE8m0(ScaleLayout layout) {
  return layout == ScaleLayout::kUe8m0 || layout == ScaleLayout::kPackedUe8m0;
}

/// Scales as a matrix [outer][blocks]: i counts lines or tiles of lines, j the blocks along the
/// contracted dim. Indices count stored scales, those of kPackedUe8m0 bytes.
struct ScaleGrid {
  static constexpr int64_t kTileRows = 128, kTileBlocks = 4;  ///< A tile of kSwizzled.
  static constexpr int64_t kPackedBlocks = 4;                 ///< The scales in an i32.

  int64_t outer = 0;
  int64_t blocks = 0;
  bool logical_is_transposed = false;  ///< mxfp8 columnwise: [blocks][outer].
  bool padded_is_transposed = false;   ///< mxfp8 columnwise and fp8_block 1-D.
  int64_t padded_rows = 0, padded_columns = 0;
  int64_t aligned_outer = 0;    ///< The length of a line of kTmaAligned.
  int64_t lines = 0;            ///< Of the source; `outer` but for tiles.
  int64_t lines_per_scale = 1;  ///< The side of a tile whose scale is stored once.
  int64_t aligned_lines = 0;    ///< The length of a line of kPackedUe8m0.

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
  /// Of a line of the source.
  QG_HOST_DEVICE constexpr int64_t PackedIndex(int64_t line, int64_t j) const {
    return (j / kPackedBlocks * aligned_lines + line) * kPackedBlocks + j % kPackedBlocks;
  }
  /// The first place of a scale.
  QG_HOST_DEVICE constexpr int64_t Index(ScaleLayout layout, int64_t i, int64_t j) const {
    switch (layout) {
      case ScaleLayout::kLogical:
        return LogicalIndex(i, j);
      case ScaleLayout::kPadded:
        return PaddedIndex(i, j);
      case ScaleLayout::kSwizzled:
        return SwizzledIndex(i, j);
      case ScaleLayout::kKMajor:
      case ScaleLayout::kUe8m0:
        return i * blocks + j;
      case ScaleLayout::kMnMajor:
        return j * outer + i;
      case ScaleLayout::kTmaAligned:
        return j * aligned_outer + i;
      case ScaleLayout::kPackedUe8m0:
        return PackedIndex(i * lines_per_scale, j);
    }
    return 0;
  }
  /// How many places a scale has, kPackedBlocks apart.
  QG_HOST_DEVICE constexpr int64_t Copies(ScaleLayout layout, int64_t i) const {
    if (layout != ScaleLayout::kPackedUe8m0) return 1;
    const int64_t left = lines - i * lines_per_scale;
    return left < lines_per_scale ? left : lines_per_scale;
  }
};

/// What MoveScale met.
enum class ScaleMoveResult { kMoved, kNotE8m0, kCopiesDiffer };

/// Moves the scale of line i, block j. fp32 scales are given by their bits (From or To uint32_t),
/// all others by their bytes. An fp32 scale becomes an E8M0 code where it is a number of E8M0 or
/// NaN, a code its value.
template <class From, class To>
QG_HOST_DEVICE constexpr ScaleMoveResult MoveScale(const ScaleGrid& grid, ScaleLayout from_layout,
                                                   ScaleLayout to_layout, int64_t i, int64_t j,
                                                   const From* from, To* to) {
  const int64_t from_index = grid.Index(from_layout, i, j);
  const From scale = from[from_index];
  const int64_t from_copies = grid.Copies(from_layout, i);
  for (int64_t copy = 1; copy < from_copies; ++copy) {
    if (from[from_index + copy * ScaleGrid::kPackedBlocks] != scale) {
      return ScaleMoveResult::kCopiesDiffer;
    }
  }
  To moved = 0;
  if constexpr (std::is_same_v<From, To>) {
    moved = scale;
  } else if constexpr (sizeof(From) > sizeof(To)) {
    if (!ExactE8m0(scale, moved)) return ScaleMoveResult::kNotE8m0;
  } else {
    moved = std::bit_cast<uint32_t>(DecodeE8m0(scale));
  }
  const int64_t to_index = grid.Index(to_layout, i, j);
  const int64_t to_copies = grid.Copies(to_layout, i);
  for (int64_t copy = 0; copy < to_copies; ++copy) {
    to[to_index + copy * ScaleGrid::kPackedBlocks] = moved;
  }
  return ScaleMoveResult::kMoved;
}

}  // namespace quantgate
