// Conversions of tensors, digests and generators between messages and domain types. Failures are
// INVALID_ARGUMENT naming the field below `field`, its value and the rule; nothing larger than the
// message is allocated.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "quantgate/v1/tensor.pb.h"
#include "quantgate/v1/tensors_service.pb.h"
#include "server/digest.h"
#include "server/tensor_record.h"
#include "server/wire/tensor_reference.h"

namespace quantgate {

absl::StatusOr<Digest> DigestFromProto(const v1::Digest& proto, const std::string& field);
v1::Digest DigestToProto(const Digest& digest);

/// Refuses a type of more than `tensor_bytes_max` bytes.
absl::StatusOr<TensorType> TensorTypeFromProto(const v1::TensorDescriptor& proto,
                                               const std::string& field, int64_t tensor_bytes_max);
/// Refuses a result, called `field`, of more than `tensor_bytes_max` bytes.
absl::Status CheckResultBytes(const TensorType& type, const std::string& field,
                              int64_t tensor_bytes_max);
v1::TensorDescriptor TensorTypeToProto(const TensorType& type);

absl::StatusOr<GeneratorSpec> GeneratorFromProto(const v1::GeneratorSpec& proto,
                                                 const std::string& field,
                                                 int64_t tensor_bytes_max);

/// An unset source is an absent reference; RequireTensor refuses it. Codes are refused; what may be
/// given as codes is converted by QuantizedReferenceFromProto (quantized_parts.h).
absl::StatusOr<TensorReference> TensorReferenceFromProto(const v1::TensorSource& proto,
                                                         const std::string& field,
                                                         int64_t tensor_bytes_max);
/// Adds a reference to what `proto` names under `slot`, which is also its field; adds nothing for
/// an unset source.
absl::Status AddReference(const std::string& slot, const v1::TensorSource& proto,
                          int64_t tensor_bytes_max, SlotReferences& references);
absl::Status RequireTensor(const TensorReference& reference);
/// RequireTensor of each of `slots`.
absl::Status RequireTensors(const SlotReferences& references,
                            std::initializer_list<const char*> slots);

v1::Fingerprint FingerprintToProto(const Fingerprint& fingerprint);
v1::TensorRecord TensorRecordToProto(const TensorRecord& record);

}  // namespace quantgate
