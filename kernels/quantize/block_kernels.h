// Vector loops of the block formats, a set per instruction set: the usual casts and scale rules, on
// whole tiles of finite elements. Scalar code (block_lines.h) is the definition and takes the rest;
// every loop is tested against it. Private to kernels/quantize.
#pragma once

#include <cstdint>

#include "kernels/quantize/element_count.h"
#include "kernels/quantize/quantizer.h"

namespace quantgate {

/// Counts of a tile's rowwise codes, or columnwise ones where those alone are made, as the loops
/// find them.
struct TileTally {
  int64_t source_zero = 0;
  int64_t code_zero = 0;
  int64_t code_below_normal = 0;  ///< Zero included.
  int64_t saturated = 0;
};

/// A tile of mxfp8, 32 rows by 32 or 64 columns, or of fp8_block, 128 by 128.
struct TileJob {
  const void* source;     ///< Its first element;
  int64_t source_stride;  ///< elements from row to row.
  /// Null where not asked for. mxfp8: columnwise codes in the source's layout; fp8_block:
  /// transposed.
  uint8_t* rowwise;
  uint8_t* columnwise;
  int64_t rowwise_stride, columnwise_stride;  ///< Bytes from line to line.
  /// The first scale of each direction; strides from line to line. uint8_t or float.
  void* row_scales;
  void* column_scales;
  int64_t row_scale_stride, column_scale_stride;
  int block_dim;
  /// Full cache lines of codes bypass the caches; they begin at multiples of 64 bytes.
  bool streams;             ///< mxfp8: of both directions; fp8_block: rowwise,
  bool columnwise_streams;  ///< columnwise.
};

/// False, with nothing of use written, where the tile holds an infinity or a NaN.
using Mxfp8TileFunction = bool (*)(const TileJob& job, int columns, TileTally& tally);
/// Round-up scales, nearest even, saturating. Null where there is no loop for these types.
Mxfp8TileFunction Avx2Mxfp8Tile(DType source, DType element);
Mxfp8TileFunction Avx512Mxfp8Tile(DType source, DType element);

struct Fp8BlockOptions {
  bool power_2;
  float amax_epsilon;
  float value_for_infinity;
};
/// scale_rule=divide, nearest even, saturating.
using Fp8BlockTileFunction = bool (*)(const TileJob& job, const Fp8BlockOptions& options,
                                      TileTally& tally);
Fp8BlockTileFunction Avx2Fp8BlockTile(DType source, DType element);
Fp8BlockTileFunction Avx512Fp8BlockTile(DType source, DType element);

}  // namespace quantgate
