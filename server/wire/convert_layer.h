// Conversions of run specifications from messages. Failures are INVALID_ARGUMENT (UNIMPLEMENTED for
// an arithmetic that needs hardware this build cannot drive) naming the field.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "quantgate/v1/layer.pb.h"
#include "server/wire/layer_run.h"

namespace quantgate {

/// Amax groups from a map of roles to groups, both by name.
absl::StatusOr<AmaxGroups> AmaxGroupsFromProto(
    const google::protobuf::Map<std::string, std::string>& proto, const std::string& field);
absl::StatusOr<OverlapSpec> OverlapFromProto(const v1::Overlap& proto, const std::string& field);
absl::StatusOr<ParallelSpec> ParallelFromProto(const v1::Parallel& proto, const std::string& field);
absl::StatusOr<Variant> VariantFromProto(const v1::Variant& proto, const std::string& field);
absl::StatusOr<LayerSpec> LayerFromProto(const v1::Layer& proto, const std::string& field);
/// Requires every source to be present, and names of 1 to 80 letters, digits, '.', '-' and '_'.
/// Sources that are codes are put into `quantized`, by name, or refused if it is null.
absl::StatusOr<std::map<std::string, TensorReference>> NamedTensorsFromProto(
    const google::protobuf::Map<std::string, v1::TensorSource>& proto, const std::string& field,
    int64_t tensor_bytes_max, std::map<std::string, QuantizedReference>* quantized = nullptr);

absl::StatusOr<LayerRun> LayerRunFromProto(const v1::RunSpec& proto, int64_t tensor_bytes_max);

}  // namespace quantgate
