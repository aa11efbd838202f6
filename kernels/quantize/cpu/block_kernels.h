// Vector loops of the block formats, one set per instruction set, for the default casts and scale
// rules and for whole tiles of finite elements. Scalar code (block_lines.h) is the definition and
// does the rest; every loop is tested against it. Private to kernels/quantize.
#pragma once

#include <cstdint>

#include "kernels/quantize/element_count.h"
#include "kernels/quantize/quantizer.h"

namespace quantgate {

/// What the loops count of the rowwise codes of a tile, or of the columnwise ones if only those are
/// made.
struct TileTally {
  int64_t source_zero = 0;
  int64_t code_zero = 0;
  int64_t code_below_normal = 0;  ///< Zero included.
  int64_t saturated = 0;
};

/// A tile of mxfp8, 32 rows by 32 or 64 columns (FP4: up to 128, a multiple of 32), or of the FP8
/// formats with fp32 scales, 128 by 128.
struct TileJob {
  const void* source;     ///< The first element.
  int64_t source_stride;  ///< Elements from row to row.
  /// The first code of each direction; null if not asked for. Columnwise codes lie as the source
  /// does for mxfp8, and transposed for the others.
  uint8_t* rowwise;
  uint8_t* columnwise;
  int64_t rowwise_stride, columnwise_stride;  ///< Bytes from line to line.
  /// The first scale of each direction, uint8_t or float; strides count scales from line to line.
  /// fp8_rowwise: the given factors of the tile's rows and columns, which are read.
  void* row_scales;
  void* column_scales;
  int64_t row_scale_stride, column_scale_stride;
  /// fp8_rowwise: the amaxes, fp32 magnitude bits, of the whole lines that cross the tile.
  const uint32_t* row_amax;
  const uint32_t* column_amax;
  int block_dim;
  /// Whether full cache lines of codes are written past the caches; they then begin at multiples of
  /// 64 bytes. `streams` is for both directions of mxfp8 and for rowwise codes of the others.
  bool streams;
  bool columnwise_streams;
};

/// Quantizes a tile. Returns false if the tile holds an infinity or a NaN; what was written is then
/// invalid.
using Mxfp8TileFunction = bool (*)(const TileJob& job, int columns, TileTally& tally);
/// The loop for round-up scales that keep subnormals, nearest even, saturating. Null if there is
/// none for these types.
Mxfp8TileFunction Avx2Mxfp8Tile(DType source, DType element);
Mxfp8TileFunction Avx512Mxfp8Tile(DType source, DType element);

/// As ScaleOptions.
struct Fp8BlockOptions {
  bool power_2;
  float amax_epsilon;
  float value_for_infinity;
};
/// The loop for scale_rule=divide that keeps subnormals, nearest even, saturating. Returns false as
/// Mxfp8TileFunction.
using Fp8BlockTileFunction = bool (*)(const TileJob& job, const Fp8BlockOptions& options,
                                      TileTally& tally);
Fp8BlockTileFunction Avx2Fp8BlockTile(DType source, DType element);
Fp8BlockTileFunction Avx512Fp8BlockTile(DType source, DType element);

/// fp8_tensor: writes both copies of a tile of 128 x 128, nearest even, saturating. Returns false
/// as Mxfp8TileFunction.
using Fp8TensorTileFunction = bool (*)(const TileJob& job, float scale, TileTally& tally);
Fp8TensorTileFunction Avx2Fp8TensorTile(DType source, DType element);
Fp8TensorTileFunction Avx512Fp8TensorTile(DType source, DType element);

/// fp8_rowwise: raises the amaxes of 128 rows and `columns` columns, a multiple of 128 and at most
/// 2048, fp32 magnitude bits, to those of this part of the source. Returns false as
/// Mxfp8TileFunction, with the amaxes as they were.
using Fp8LineAmaxFunction = bool (*)(const void* source, int64_t stride, int columns,
                                     uint32_t* row_amax, uint32_t* column_amax);
Fp8LineAmaxFunction Avx2Fp8LineAmax(DType source);
Fp8LineAmaxFunction Avx512Fp8LineAmax(DType source);

/// fp8_rowwise: writes the copies of a tile of 128 x 128 finite elements, the columnwise one or
/// both, under the factors of its lines, nearest even, saturating; `power_2` says that all are
/// powers of two.
using Fp8LineTileFunction = void (*)(const TileJob& job, bool power_2, TileTally& tally);
Fp8LineTileFunction Avx2Fp8LineTile(DType source, DType element);
Fp8LineTileFunction Avx512Fp8LineTile(DType source, DType element);

// ---- levels

/// Runs of `length` elements, one after the other.
struct LevelRuns {
  const void* source;
  int64_t runs, length;
  /// Of each run: what its elements are multiplied by. Finite, and so are the products.
  const float* factors;
  uint8_t* codes;  ///< As they are stored: of four bits two a byte, and then `length` is even.
};
/// The loops of a source and of levels. Codes of integers are the nearest, ties to even, clamped;
/// those of tables have as many midpoints of neighbours below as level_steps::RankedPlace counts.
struct LevelFunctions {
  /// The amaxes of runs as magnitude codes of the source's dtype, NaN above all others. It does not
  /// read factors and codes.
  void (*amaxes)(const LevelRuns& runs, uint32_t* amaxes) = nullptr;
  /// Elements are finite. code_zero counts codes of the value 0; code_below_normal the same.
  void (*encode)(const LevelRuns& runs, TileTally& tally) = nullptr;
};
/// The functions are null if there are no loops for these types.
LevelFunctions Avx2Levels(DType source, Levels levels);
LevelFunctions Avx512Levels(DType source, Levels levels);

// ---- nvfp4, scale_rule=two_level

/// The random bytes of stochastic rounding: StochasticStream (stochastic_rounding.h) in words.
struct Nvfp4Random {
  bool is_used = false;  ///< Stochastic rounding; otherwise to nearest even.
  uint32_t key[2] = {};
  uint32_t call_id = 0, usage = 0;
};

/// A job of 16 blocks of a row.
struct Nvfp4RowJob {
  const void* source;
  uint8_t* codes;   ///< 128 bytes.
  uint8_t* scales;  ///< 16 bytes.
  const uint32_t*
      amax;  ///< The amaxes of tiles as magnitude bits; null to find those of the blocks.
  float encode_sixth, decode;
  Nvfp4Random random;
  uint32_t line, block;  ///< The place of the first block, for the random bytes.
};

/// A job of 16 lines of `groups` blocks, at most 8: of columns, or of rows.
struct Nvfp4LineJob {
  const void* source;
  int64_t source_stride;  ///< Elements from row to row.
  bool is_rowwise;        ///< Lines are rows.
  const void* ahead;      ///< The source of the next job, to be prefetched; may be invalid.
  int64_t ahead_stride;   ///< Bytes from row to row there.
  uint8_t* codes;
  uint8_t* scales;
  int64_t code_stride, scale_stride;  ///< Bytes from line to line.
  int groups;
  int block_dim;
  bool picks, squares;  ///< 4over6; it compares the squares of errors.
  float code_max;       ///< 6 * e4m3_max.
  alignas(64) float encode[16], encode_sixth[16], decode[16], amax[16];  ///< Of each line.
  Nvfp4Random random;
  uint32_t line, block;
  bool transforms;  ///< bf16 only: quantizes the Hadamard transform, which transformed_amax has
                    ///< found possible.
  bool counts;      ///< Whether the tally is wanted.
  bool streams;     ///< As in TileJob.
};

/// The loops of nvfp4.
struct Nvfp4Functions {
  /// Quantizes 16 blocks. Returns false if an element is not finite; what was written is then
  /// invalid.
  bool (*row)(const Nvfp4RowJob& job, TileTally& tally);
  /// Quantizes 16 lines. Returns a mask with bit i set if group i holds an element that is not
  /// finite; the codes of that group are not written.
  uint32_t (*lines)(const Nvfp4LineJob& job, TileTally& tally);
  /// Finds the amaxes of 16 tiles of 16 x 16 side by side, as magnitude bits, in which NaN is
  /// larger than every number.
  void (*tile_amaxes)(const void* source, int64_t stride, uint32_t* amaxes);
  /// The two functions below are for bf16 only, else null. They return false if scalar code must do
  /// the work because of infinities, NaN or tiny exponents. This one transforms 16 columns of 16
  /// rows into the same layout; `amax` is the largest transformed magnitude as fp32 bits.
  bool (*transform)(const uint16_t* in, uint16_t* out, int64_t stride, uint32_t* amax);
  /// Takes 16 rows and a multiple of 32 columns; raises amaxes[0] to the amax of the source and
  /// amaxes[1] to that of the transform. Returns false also if the latter is infinite.
  bool (*transformed_amax)(const uint16_t* in, int64_t stride, int64_t columns, uint32_t* amaxes);
};
/// The functions are null if there are no loops for this type.
Nvfp4Functions Avx2Nvfp4(DType source);
Nvfp4Functions Avx512Nvfp4(DType source);

}  // namespace quantgate
