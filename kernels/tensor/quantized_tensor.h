// QuantizedTensor: codes and scales of one tensor, with everything that dequantization and GEMMs
// need, so that they do not need the quantizer. Copying shares the buffers.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "kernels/tensor/quantizer_format.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

/// The direction of the blocks: rowwise ones run along the last dim (K), columnwise ones along the
/// first (M).
enum class Usage { kRowwise, kColumnwise };
constexpr std::string_view UsageName(Usage usage) {
  return usage == Usage::kRowwise ? "rowwise" : "columnwise";
}

/// Which of the two copies exist or are asked for.
struct Usages {
  bool rowwise = true;
  bool columnwise = false;
  friend bool operator==(const Usages&, const Usages&) = default;
};

/// One direction of a quantized tensor, in the logical layouts of docs/file-formats.md section 2:
/// no padding, no swizzle.
///
/// | format     | rowwise data, scale_inv               | columnwise data, scale_inv            |
/// |------------|---------------------------------------|---------------------------------------|
/// | fp8_tensor | [M][K], f32 [1]                       | [K][M], f32 [1]                       |
/// | fp8_block  | [M][K], f32 [M][ceil(K/128)]          | [K][M], f32 [K][ceil(M/128)]          |
/// |   2-D      | [M][K], f32 [ceil(M/128)][ceil(K/128)]| [K][M], the transposed tile grid      |
/// | mxfp8      | [M][K], e8m0 [M][K/32]                | [M][K], e8m0 [M/32][K]                |
/// | nvfp4      | [M][K/2] bytes, e4m3 [M][K/16]        | [K][M/2] bytes, e4m3 [K][M/16]        |
/// | identity   | [M][K], none                          | [M][K] (the same buffer), none        |
/// | fp8_rowwise| [M][K], f32 [M]                       | [K][M], f32 [K]                       |
/// | int8, int4 | [M][K]                                | [K][M]                                |
/// |   by group:|   f32 [1]; [M]; [M][ceil(K/group)]    |   f32 [1]; [K]; [K][ceil(M/group)]    |
/// | nf4, bnb_fp4 | [M][K/2] bytes, f32 [ceil(M K/group)] | none                                |
///
/// int4 has two codes a byte along the last dim, [M][K/2] or [K][M/2]. A zero point has the shape
/// of scale_inv.
///
/// The data of an identity copy are the source, or its cast.
///
/// 2-D scales of mxfp8 and nvfp4 are replicated to the shapes of 1-D ones. Rowwise data keep the
/// source's leading dims.
struct QuantizedCopy {
  QuantizerFormat format = QuantizerFormat::kIdentity;
  DType element = DType::kF8E4M3;  ///< kF4E2M1x2 for nvfp4.
  bool is_cast = false;            ///< identity: the source was cast to `element`.
  int block_dim = 1;               ///< 1: blocks are rows; 2: square tiles.
  int group = 0;                   ///< Formats of levels: elements under one scale.
  Tensor data;
  Tensor scale_inv;
  /// Formats of levels: what zero is, of each group, and absent where it is level 0. Of an integer
  /// dtype (that of the codes, one to a byte) value = (level - zero_point) * scale_inv; of f32
  /// value = level * scale_inv + zero_point.
  Tensor zero_point;
  /// f32 [1], the largest magnitude (NaN elements ignored), from which the scales were made; nvfp4
  /// needs it to dequantize, and has one per row, [M], when row-scaled. Absent for formats whose
  /// amaxes are per block or per line.
  Tensor amax;
  /// f32 [1], per-tensor FP8 only: the factor that multiplied the elements. Absent from a copy
  /// whose maker has not said it.
  Tensor scale;
  int e4m3_max = 448;     ///< nvfp4: the largest block scale, 256 under 4over6.
  bool hadamard = false;  ///< The codes are those of the Hadamard-transformed tensor.

  bool is_row_scaled() const { return amax.has_value() && amax.element_count() != 1; }
};

/// The number of elements of each kind in one copy; the kinds are disjoint.
struct QuantizationCounts {
  int64_t normal = 0;
  int64_t zero = 0;             ///< Zero in the source.
  int64_t subnormal = 0;        ///< Non-zero codes below the smallest normal of the element format.
  int64_t flushed_to_zero = 0;  ///< Non-zero in the source, zero code.
  int64_t saturated = 0;        ///< Finite in the source, rounded beyond the largest finite code.
  int64_t infinite = 0;         ///< Infinite in the source.
  int64_t nan = 0;              ///< NaN in the source.
  friend bool operator==(const QuantizationCounts&, const QuantizationCounts&) = default;
};
/// The number of members of QuantizationCounts.
inline constexpr int kQuantizationCountKinds = 7;

/// Up to two copies of one tensor, and what is known of both.
struct QuantizedTensor {
  DType source_dtype = DType::kBF16;
  Shape shape;  ///< Of the source.
  std::optional<QuantizedCopy> rowwise;
  std::optional<QuantizedCopy> columnwise;
  /// Each direction has a quantizer of its own (hybrid, custom), so neither copy is made from the
  /// other.
  bool is_hybrid = false;
  /// The counts of the rowwise copy, or of the columnwise one if it is the only one.
  QuantizationCounts counts;
  /// Takes the place of `counts` when the codes are in device memory: i64
  /// [kQuantizationCountKinds], also there, in the order of QuantizationCounts. Engine::Summarize
  /// reads it.
  Tensor device_counts;
  /// What Engine::StartSummary gathers on the device for Engine::Summarize to read; absent without
  /// a StartSummary.
  Tensor device_summary;

  /// Whether each copy is per-tensor FP8 with a scale of its own. If not, the copies that have a
  /// scale have one and the same.
  bool has_two_scales() const {
    const auto has_one = [](const std::optional<QuantizedCopy>& copy) {
      return copy.has_value() && TraitsOf(copy->format).scales == ScaleKind::kTensor;
    };
    return is_hybrid && has_one(rowwise) && has_one(columnwise);
  }
  Usages usages() const { return {rowwise.has_value(), columnwise.has_value()}; }
  bool has_codes() const { return rowwise.has_value() || columnwise.has_value(); }
  const std::optional<QuantizedCopy>& copy(Usage usage) const {
    return usage == Usage::kRowwise ? rowwise : columnwise;
  }
  std::optional<QuantizedCopy>& copy(Usage usage) {
    return usage == Usage::kRowwise ? rowwise : columnwise;
  }
};
/// The tensors that move with `quantized` between memory spaces; absent ones are among them. Counts
/// stay where the codes were made.
inline std::vector<Tensor*> TensorsOf(QuantizedTensor& quantized) {
  std::vector<Tensor*> tensors;
  for (std::optional<QuantizedCopy>* const copy : {&quantized.rowwise, &quantized.columnwise}) {
    if (!copy->has_value()) continue;
    tensors.insert(tensors.end(), {&(*copy)->data, &(*copy)->scale_inv, &(*copy)->zero_point,
                                   &(*copy)->amax, &(*copy)->scale});
  }
  return tensors;
}

}  // namespace quantgate
