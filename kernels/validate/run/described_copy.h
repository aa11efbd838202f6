// Finding out what given codes and scales are: their format comes from a description, or from
// dtypes and shapes where these leave no doubt. Works on outlines, tensors without memory.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/quantize/quantizer.h"
#include "kernels/quantize/scale_layout.h"

namespace quantgate {

/// The name of a part of a quantized tensor, "rowwise_data" or "amax_rowwise". `part`: "data",
/// "scale_inv", "amax" or "scale".
std::string PartName(Usage usage, const char* part);
/// The name that requests have for it, `tensors["rowwise_data"]`.
std::string PartField(Usage usage, const char* part);

/// The array of block scales of one direction of a tensor of this shape.
ScaleArray ScaleArrayOf(QuantizerFormat format, int block_dim, Usage usage, const Shape& shape);

/// The shape of scales after the leading dims of codes and scales are flattened as Quantize
/// flattens those of a source: scales [B][M][K / 32] of codes [B][M][K] become [B M][K / 32].
/// Shapes that do not fit are returned as they are: differing leading dims, and blocks that would
/// reach from one matrix into the next, and layouts that do not keep the lines in their order.
Shape FlattenScales(const Shape& scales, const Shape& codes,
                    ScaleLayout layout = ScaleLayout::kLogical);

/// What the user says about one direction's codes and scales.
struct QuantizedDescription {
  /// A rule that CheckQuantizer accepts, with the Hadamard transform. Absent: found from dtypes and
  /// shapes.
  std::optional<QuantizerSpec> spec;
  Shape shape;  ///< The source's; empty: found from the codes.
  ScaleLayout scale_layout = ScaleLayout::kLogical;
  /// Of codes of levels; absent: found from the dtype of their zero points.
  std::optional<ZeroPoint> zero_point = std::nullopt;
};

/// A copy whose tensors are outlines, completed by what they were found to be.
struct DescribedCopy {
  QuantizedCopy copy;
  Shape shape;                                       ///< The source's.
  ScaleLayout scale_layout = ScaleLayout::kLogical;  ///< The layout of copy.scale_inv.
};

/// Completes the copy (format, element, block, bound) and the shape of the source; U8 codes and
/// scales get their dtypes. INVALID_ARGUMENT naming the part and what it must be or, if dtypes and
/// shapes leave a doubt, the description that is missing.
absl::StatusOr<DescribedCopy> DescribeCopy(const QuantizedDescription& description, Usage usage,
                                           QuantizedCopy outlines);

}  // namespace quantgate
