// The names of codes and scales in messages and files (docs/file-formats.md section 2), and
// conversions of their descriptions between messages and domain types.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/tensor/files/tensor_file.h"
#include "kernels/validate/quantized_plan.h"
#include "quantgate/v1/tensor.pb.h"
#include "server/wire/tensor_reference.h"

namespace quantgate {

/// A part of a QuantizedCopy.
struct QuantizedPart {
  const char* name;
  Usage usage;
  Tensor QuantizedCopy::*member;
};
inline constexpr std::array<QuantizedPart, 10> kQuantizedParts = {{
    {"rowwise_data", Usage::kRowwise, &QuantizedCopy::data},
    {"rowwise_scale_inv", Usage::kRowwise, &QuantizedCopy::scale_inv},
    {"columnwise_data", Usage::kColumnwise, &QuantizedCopy::data},
    {"columnwise_scale_inv", Usage::kColumnwise, &QuantizedCopy::scale_inv},
    {"rowwise_zero_point", Usage::kRowwise, &QuantizedCopy::zero_point},
    {"columnwise_zero_point", Usage::kColumnwise, &QuantizedCopy::zero_point},
    {"amax_rowwise", Usage::kRowwise, &QuantizedCopy::amax},
    {"amax_columnwise", Usage::kColumnwise, &QuantizedCopy::amax},
    {"rowwise_scale", Usage::kRowwise, &QuantizedCopy::scale},
    {"columnwise_scale", Usage::kColumnwise, &QuantizedCopy::scale},
}};
/// The scale of every copy that has one, in place of rowwise_scale and columnwise_scale.
inline constexpr char kScalePart[] = "scale";
inline constexpr char kAmaxHistoryPart[] = "amax_history";

/// The slot of QuantizedPlan that holds a part, `tensors["rowwise_data"]`, and the part in a slot.
std::string SlotOfPart(const std::string& part);
std::string PartOfSlot(const std::string& slot);

/// Every part that the tensor has, under its name.
std::vector<NamedTensor> PartsOf(const QuantizedTensor& quantized);

v1::QuantizedDescription QuantizedDescriptionToProto(const QuantizedTensor& quantized,
                                                     ScaleLayout scale_layout);

/// Of a name that ParseScaleLayout takes; empty is logical.
absl::StatusOr<ScaleLayout> ScaleLayoutFromName(const std::string& name, const std::string& field);

/// Converts the description of the direction that is read; the other one is ignored.
absl::StatusOr<QuantizedDescription> QuantizedDescriptionFromProto(
    const v1::QuantizedDescription& proto, Usage usage);

/// References to the parts of a quantized tensor, by the slots of QuantizedPlan. `field`: where the
/// request has them; empty for a call that has nothing else. Leaves out amax_history, which is for
/// the next cast, and scales unless they are asked for. INVALID_ARGUMENT for an unknown name.
absl::StatusOr<SlotReferences> PartReferencesFromProto(
    const google::protobuf::Map<std::string, v1::TensorSource>& proto, const std::string& field,
    bool with_scale, int64_t tensor_bytes_max);

/// A quantized tensor as a request names it, checked as far as it can be without looking into the
/// stores.
struct QuantizedReference {
  std::string field;  ///< Where the request names it: "spec.step.x.quantized".
  SlotReferences parts;
  QuantizedDescription rowwise, columnwise;
  std::optional<DType> source_dtype;
};

/// `needs_source_dtype`: whether the dtype of what the codes were made from must be given.
absl::StatusOr<QuantizedReference> QuantizedReferenceFromProto(const v1::QuantizedSource& proto,
                                                               const std::string& field,
                                                               bool needs_source_dtype,
                                                               int64_t tensor_bytes_max);

/// The plan of a quantized tensor whose parts are outlines; their types must be known. Errors name
/// fields below that of the reference.
absl::StatusOr<QuantizedPlan> OutlineOf(const QuantizedReference& reference);
/// The bytes that it takes once it is loaded (LoadedCodes): its parts, its scales in the logical
/// layout where they are given in another one, and its values. Errors as OutlineOf.
absl::StatusOr<int64_t> LoadedBytesOf(const QuantizedReference& reference);

}  // namespace quantgate
