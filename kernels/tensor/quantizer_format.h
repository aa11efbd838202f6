// QuantizerFormat: what codes and scales are, and what follows from that alone. One table has all
// formats; whoever needs to know a property asks for it, not for the format's name.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "kernels/numerics/scale_rule.h"
#include "kernels/tensor/dtype.h"

namespace quantgate {

/// What codes and scales are, whoever chose the scales.
enum class QuantizerFormat {
  kIdentity,   ///< Not quantized: high precision, optionally cast.
  kFp8Tensor,  ///< FP8, one f32 scale per tensor: current and delayed scaling.
  kFp8Block,   ///< FP8, f32 scales of 128 elements or of 128x128 tiles.
  kMxfp8,      ///< FP8 (or FP6, FP4), E8M0 scales of 32 elements or of 32x32 tiles.
  kNvfp4,      ///< FP4 E2M1, E4M3 scales of 16 elements or of 16x16 tiles, under an f32 amax.
};

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
};

struct ScalingTraits {
  QuantizerFormat format;
  std::string_view name;
  ScaleKind scales;
  /// Elements along a block: 1 for identity and per-tensor FP8. A power of two up to 128.
  int block_length;
  /// Both dims must be whole blocks, a tile's scale stands at each of its lines, and tensor cores
  /// read the scales swizzled. Otherwise the last block may be shorter and a tile has one scale.
  bool is_micro;
  /// Columnwise codes and scales are stored transposed, [K][M]; otherwise as the source lies.
  bool turns_columnwise;
  /// How a GEMM reads the codes, by block_dim - 1.
  ScaleMode scale_modes[2];
  std::span<const DType> elements;   ///< The usual one first; none for identity.
  std::span<const ScaleRule> rules;  ///< Transformer Engine's first; none for identity.

  bool has_blocks() const { return block_length > 1; }
};

const ScalingTraits& TraitsOf(QuantizerFormat format);
/// In the order of the enumerators.
std::span<const ScalingTraits> AllQuantizerFormats();
/// "identity, fp8_tensor, ...": all names, for error texts.
std::string QuantizerFormatNames();

inline std::string_view QuantizerFormatName(QuantizerFormat format) {
  return TraitsOf(format).name;
}
inline int BlockLength(QuantizerFormat format) { return TraitsOf(format).block_length; }

/// Of scales: f8_e8m0, f8_e4m3 or f32.
DType ScaleDType(ScaleKind scales);

}  // namespace quantgate
