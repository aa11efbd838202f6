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

/// A tile of mxfp8, 32 rows by 32 or 64 columns, or of fp8_block and fp8_tensor, 128 by 128.
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

/// fp8_tensor: both copies of a tile of 128 x 128; nearest even, saturating.
using Fp8TensorTileFunction = bool (*)(const TileJob& job, float scale, TileTally& tally);
Fp8TensorTileFunction Avx2Fp8TensorTile(DType source, DType element);
Fp8TensorTileFunction Avx512Fp8TensorTile(DType source, DType element);

// ---- nvfp4, scale_rule=two_level

struct Nvfp4Random {
  bool is_used = false;  ///< Stochastic rounding; otherwise to nearest even.
  uint32_t key[2] = {};
  uint32_t call_id = 0, usage = 0;
};

/// 16 blocks of a row.
struct Nvfp4RowJob {
  const void* source;
  uint8_t* codes;        ///< 128 bytes;
  uint8_t* scales;       ///< 16.
  const uint32_t* amax;  ///< Those of tiles, magnitude bits; null: of the blocks themselves.
  float encode_sixth, decode;
  Nvfp4Random random;
  uint32_t line, block;  ///< Of the first block, for the random bytes.
};

/// 16 columns of `groups` blocks, at most 8.
struct Nvfp4ColumnJob {
  const void* source;
  int64_t source_stride;
  const void* ahead;     ///< What will be copied next; need not be valid.
  int64_t ahead_stride;  ///< Bytes.
  uint8_t* codes;
  uint8_t* scales;
  int64_t code_stride, scale_stride;  ///< Bytes from column to column.
  int groups;
  int block_dim;
  float encode_sixth, decode;
  Nvfp4Random random;
  uint32_t line, block;
  bool transforms;  ///< bf16 alone: the blocks are of the Hadamard transform, which
                    ///< transformed_amax has found possible.
  bool counts;      ///< Whether the tally is wanted.
  bool streams;     ///< As TileJob's.
};

struct Nvfp4Functions {
  /// False, with nothing of use written, where an element is not finite.
  bool (*row)(const Nvfp4RowJob& job, TileTally& tally);
  /// Bit i is set where group i holds what is not finite; its codes are then not written.
  uint32_t (*columns)(const Nvfp4ColumnJob& job, TileTally& tally);
  /// The amaxes of 16 tiles of 16 x 16 side by side, as magnitude bits; NaN are among the largest.
  void (*tile_amaxes)(const void* source, int64_t stride, uint32_t* amaxes);
  /// Hadamard transforms of bf16, null for others. False where scalar code must do it: infinities,
  /// NaN, tiny exponents. `amax` is the largest transformed magnitude as fp32 bits.
  /// 16 columns of 16 rows, into the same layout:
  bool (*transform)(const uint16_t* in, uint16_t* out, int64_t stride, uint32_t* amax);
  /// 16 rows, columns in multiples of 32: raises amaxes[0] to the source's and amaxes[1] to the
  /// transform's; false too where that is infinite:
  bool (*transformed_amax)(const uint16_t* in, int64_t stride, int64_t columns, uint32_t* amaxes);
};
/// Null functions where there is no loop for this type.
Nvfp4Functions Avx2Nvfp4(DType source);
Nvfp4Functions Avx512Nvfp4(DType source);

}  // namespace quantgate
