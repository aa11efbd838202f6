// The names of codes and scales in messages and files (docs/file-formats.md section 2), and
// conversions of their descriptions between messages and domain types.
#pragma once

#include <array>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/validate/run/described_copy.h"
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

/// Converts the description of the direction that is read; the other one is ignored.
absl::StatusOr<QuantizedDescription> QuantizedDescriptionFromProto(
    const v1::QuantizedDescription& proto, Usage usage);

}  // namespace quantgate
