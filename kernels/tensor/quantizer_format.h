// QuantizerFormat: the kinds of codes and scales, and the properties that follow from the kind. One
// table has all formats; code that depends on a property asks the table and does not compare
// formats.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "kernels/numerics/scale_rule.h"
#include "kernels/tensor/dtype.h"

namespace quantgate {

/// The kind of codes and scales, however the scales were chosen.
enum class QuantizerFormat {
  kIdentity,     ///< Not quantized: high precision, optionally cast.
  kFp8Tensor,    ///< FP8, one f32 scale per tensor: current and delayed scaling.
  kFp8Block,     ///< FP8, one f32 scale per 128 elements or per 128x128 tile.
  kMxfp8,        ///< FP8 (or FP6, FP4), one E8M0 scale per 32 elements or per 32x32 tile.
  kNvfp4,        ///< FP4 E2M1, one E4M3 scale per 16 elements or per 16x16 tile, and an f32 amax.
  kFp8Rowwise,   ///< FP8, one f32 scale per row; of a columnwise copy per column.
  kFp8Block32,   ///< fp8_block of 32 elements or 32x32 tiles.
  kFp8Block64,   ///< The same of 64.
  kFp8Block256,  ///< The same of 256.
  // Codes that number levels (level_rule.h); one f32 scale per group of elements.
  kInt8,    ///< Integers, with or without a zero point.
  kInt4,    ///< Integers of four bits, likewise.
  kNf4,     ///< Places in the table of NF4.
  kBnbFp4,  ///< Places in the table that bitsandbytes calls FP4.
};

/// The elements under one scale of ScaleKind::kLevels, where they are no number of neighbours along
/// the contracted dim.
inline constexpr int kTensorGroup = -1;  ///< The whole tensor.
inline constexpr int kLineGroup = -2;    ///< A line along the contracted dim: row, or column.

/// How scale_inv applies to the codes of a GEMM's operand. Block scales have the data's layout with
/// the contracted dim (and, for tiles, both dims) divided by the block and rounded up; shapes below
/// are those of a row-major [rows][k] operand.
enum class ScaleMode {
  kNone,     ///< High precision, or codes taken at face value.
  kTensor,   ///< f32 [1].
  kOuter,    ///< f32 [m] for a, [n] for b.
  k1x128,    ///< f32 [rows][ceil(k/128)].
  k128x128,  ///< f32 [ceil(rows/128)][ceil(k/128)].
  kMx32,     ///< f8_e8m0 [rows][k/32].
  kNv16,     ///< f8_e4m3 [rows][k/16], with `amax`.
  k1x32,     ///< As k1x128 of 32 elements.
  k32x32,    ///< As k128x128 of 32 on a side.
  k1x64,
  k64x64,
  k1x256,
  k256x256,
  kGroup,  ///< f32 [rows][ceil(k/group)], of runs [ceil(rows * k/group)]; codes of levels.
};

/// The dtype of a mode's scales, and the rows and elements along k that one is for; 1 and 1 for
/// modes without blocks.
struct ScaleBlock {
  DType dtype = DType::kF32;
  int rows = 1, k = 1;
};
ScaleBlock ScaleBlockOf(ScaleMode mode);

/// The properties of one format.
struct ScalingTraits {
  QuantizerFormat format;
  std::string_view name;
  ScaleKind scales;
  /// The length of a block in elements: a power of two up to 256; 1 for formats whose scales are of
  /// no blocks: identity, fp8_tensor and fp8_rowwise.
  int block_length;
  /// Both dims must be whole blocks, the scale of a tile is stored once for each line of the tile,
  /// and tensor cores read the scales swizzled. Otherwise the last block may be shorter and the
  /// scale of a tile is stored once.
  bool is_micro;
  /// Columnwise codes and scales are stored transposed, [K][M]; otherwise in the source's layout.
  bool turns_columnwise;
  /// How a GEMM reads the codes, by block_dim - 1.
  ScaleMode scale_modes[2];
  std::span<const DType> elements;   ///< The default first; empty for identity.
  std::span<const ScaleRule> rules;  ///< Transformer Engine's first; empty for identity.
  int group = 0;                     ///< kLevels: the usual group.
  /// kLevels: groups are runs of the row-major tensor, which may go from one row into the next;
  /// there are no columnwise copies.
  bool has_runs = false;

  bool has_blocks() const { return block_length > 1; }
  bool has_levels() const { return scales == ScaleKind::kLevels; }
  /// Whether a tensor has scales of parts of it: of blocks or of lines. What is made of a shard's
  /// rows alone, is sent to other ranks or is counted then includes them.
  bool has_many_scales() const {
    return has_blocks() || scales == ScaleKind::kLine || has_levels();
  }
};

const ScalingTraits& TraitsOf(QuantizerFormat format);
/// In the order of the enumerators.
std::span<const ScalingTraits> AllQuantizerFormats();
/// All names, for error texts: "identity, fp8_tensor, ...".
std::string QuantizerFormatNames();

inline std::string_view QuantizerFormatName(QuantizerFormat format) {
  return TraitsOf(format).name;
}
inline int BlockLength(QuantizerFormat format) { return TraitsOf(format).block_length; }

/// "tensor", "row" or the number.
std::string GroupText(int group);

/// The dtype of stored scales: f8_e8m0, f8_e4m3 or f32.
DType ScaleDType(ScaleKind scales);

}  // namespace quantgate
