// Codes and scales under their names in messages and files (docs/definitions.md section 8), and
// what they are: wire <-> domain.
#pragma once

#include <array>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/quantize/quantizer.h"
#include "kernels/quantize/scale_layout.h"
#include "quantgate/v1/engine_service.pb.h"

namespace quantgate {

/// A part of a QuantizedCopy.
struct QuantizedPart {
  const char* name;
  Usage usage;
  Tensor QuantizedCopy::*member;
};
inline constexpr std::array<QuantizedPart, 6> kQuantizedParts = {{
    {"rowwise_data", Usage::kRowwise, &QuantizedCopy::data},
    {"rowwise_scale_inv", Usage::kRowwise, &QuantizedCopy::scale_inv},
    {"columnwise_data", Usage::kColumnwise, &QuantizedCopy::data},
    {"columnwise_scale_inv", Usage::kColumnwise, &QuantizedCopy::scale_inv},
    {"amax_rowwise", Usage::kRowwise, &QuantizedCopy::amax},
    {"amax_columnwise", Usage::kColumnwise, &QuantizedCopy::amax},
}};
inline constexpr char kScalePart[] = "scale";
inline constexpr char kAmaxHistoryPart[] = "amax_history";

v1::QuantizedDescription QuantizedDescriptionToProto(const QuantizedTensor& quantized,
                                                     ScaleLayout scale_layout);

/// "logical", "padded", "swizzled"; empty is logical.
absl::StatusOr<ScaleLayout> ScaleLayoutFromName(const std::string& name, const std::string& field);

/// What the block scales of one direction of a tensor of this shape are.
ScaleArray ScaleArrayOf(QuantizerFormat format, int block_dim, Usage usage, const Shape& shape);

/// Scales of codes of more than two dims as scales of their rows: [B][M][K / 32] of codes [B][M][K]
/// become [B M][K / 32], the leading dims flattened as Quantize flattens those of a source. What
/// does not fit so stays as it is: leading dims that differ, and blocks that would reach from one
/// matrix into the next.
Shape FlattenScales(const Shape& scales, const Shape& codes);

/// A copy whose tensors are outlines, and what they say they are. Completes the copy (format,
/// element, block, bound) and the shape of the source from the description, or where there is none
/// for `usage` from dtypes and shapes. U8 codes and scales become what they are. INVALID_ARGUMENT
/// naming the part and what it must be; where dtypes and shapes leave a doubt, the description that
/// is missing.
struct DescribedCopy {
  QuantizedCopy copy;
  Shape shape;
  ScaleLayout scale_layout = ScaleLayout::kLogical;  ///< Of copy.scale_inv.
};
absl::StatusOr<DescribedCopy> DescribeCopy(const v1::QuantizedDescription& description, Usage usage,
                                           QuantizedCopy outlines);

}  // namespace quantgate
