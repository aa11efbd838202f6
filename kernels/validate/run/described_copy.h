// What codes and scales that somebody made are: their format from a description, or from dtypes and
// shapes where these leave no doubt. Works on outlines, tensors without memory.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/quantize/quantizer.h"
#include "kernels/quantize/scale_layout.h"

namespace quantgate {

/// What requests call a part of a quantized tensor: `tensors["rowwise_data"]`, of parts "data",
/// "scale_inv" and "amax".
std::string PartField(Usage usage, const char* part);

/// What the block scales of one direction of a tensor of this shape are.
ScaleArray ScaleArrayOf(QuantizerFormat format, int block_dim, Usage usage, const Shape& shape);

/// Scales of codes of more than two dims as scales of their rows: [B][M][K / 32] of codes [B][M][K]
/// become [B M][K / 32], the leading dims flattened as Quantize flattens those of a source. What
/// does not fit so stays as it is: leading dims that differ, and blocks that would reach from one
/// matrix into the next.
Shape FlattenScales(const Shape& scales, const Shape& codes);

/// What somebody says of one direction's codes and scales.
struct QuantizedDescription {
  /// As CheckQuantizer accepts it, with the Hadamard transform; absent: dtypes and shapes say it.
  std::optional<QuantizerSpec> spec;
  Shape shape;  ///< Of the source; empty: from the codes.
  ScaleLayout scale_layout = ScaleLayout::kLogical;
};

/// A copy whose tensors are outlines, and what they were found to be.
struct DescribedCopy {
  QuantizedCopy copy;
  Shape shape;
  ScaleLayout scale_layout = ScaleLayout::kLogical;  ///< Of copy.scale_inv.
};

/// Completes the copy (format, element, block, bound) and the shape of the source. U8 codes and
/// scales become what they are. INVALID_ARGUMENT naming the part and what it must be; where dtypes
/// and shapes leave a doubt, the description that is missing.
absl::StatusOr<DescribedCopy> DescribeCopy(const QuantizedDescription& description, Usage usage,
                                           QuantizedCopy outlines);

}  // namespace quantgate
