#include "server/wire/convert_tensor.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/visit_format.h"
#include "server/limits.h"
#include "server/wire/request_fields.h"

namespace quantgate {
namespace {

absl::StatusOr<int64_t> CheckedByteCount(const TensorType& type, const std::string& field) {
  QG_ASSIGN_OR_RETURN(const int64_t count, CheckedElementCount(type.shape, type.dtype, field));
  return count * DTypeBytes(type.dtype);
}

absl::StatusOr<TensorReference> InlineFromProto(const v1::InlineTensor& proto,
                                                const std::string& field,
                                                int64_t tensor_bytes_max) {
  const int64_t size = static_cast<int64_t>(proto.data().size());
  if (size > kInlineBytesMax) {
    return Refuse(
        field + ".data", absl::StrCat(size, " bytes"),
        absl::StrCat("an inline tensor has at most ", kInlineBytesMax, "; upload larger ones"));
  }
  TensorReference reference;
  reference.kind = TensorReference::Kind::kInline;
  QG_ASSIGN_OR_RETURN(reference.type,
                      TensorTypeFromProto(proto.type(), field + ".type", tensor_bytes_max));
  QG_ASSIGN_OR_RETURN(const int64_t expected, CheckedByteCount(*reference.type, field));
  if (size != expected) {
    return Refuse(field + ".data", absl::StrCat(size, " bytes"),
                  absl::StrCat(TensorTypeText(*reference.type), " has ", expected, " bytes"));
  }
  reference.bytes = proto.data();
  reference.digest = Digest::Of(std::as_bytes(std::span(reference.bytes)));
  return reference;
}

absl::StatusOr<TensorReference> StoredFromProto(const v1::StoredTensor& proto,
                                                const std::string& field,
                                                int64_t tensor_bytes_max) {
  TensorReference reference;
  reference.kind = TensorReference::Kind::kStored;
  QG_ASSIGN_OR_RETURN(reference.digest, DigestFromProto(proto.digest(), field + ".digest"));
  if (reference.digest.size > tensor_bytes_max) {
    return Refuse(field + ".digest.size", absl::StrCat(reference.digest.size),
                  absl::StrCat("a tensor has at most ", tensor_bytes_max, " bytes"));
  }
  if (!proto.has_type()) return reference;
  QG_ASSIGN_OR_RETURN(reference.type,
                      TensorTypeFromProto(proto.type(), field + ".type", tensor_bytes_max));
  QG_ASSIGN_OR_RETURN(const int64_t expected, CheckedByteCount(*reference.type, field));
  if (reference.digest.size != expected) {
    return Refuse(field + ".digest.size", absl::StrCat(reference.digest.size),
                  absl::StrCat(TensorTypeText(*reference.type), " has ", expected, " bytes"));
  }
  return reference;
}

}  // namespace

absl::StatusOr<Digest> DigestFromProto(const v1::Digest& proto, const std::string& field) {
  Digest digest;
  if (proto.sha256().size() != digest.sha256.bytes.size()) {
    return Refuse(field + ".sha256", absl::StrCat(proto.sha256().size(), " bytes"),
                  "a SHA-256 has 32 bytes");
  }
  std::memcpy(digest.sha256.bytes.data(), proto.sha256().data(), proto.sha256().size());
  digest.size = proto.size();
  if (digest.size < 0) {
    return Refuse(field + ".size", absl::StrCat(digest.size), "a size is not negative");
  }
  if (digest.size == 0 && digest != Digest::Of({})) {
    return Refuse(field + ".sha256", digest.sha256.Hex(),
                  "a blob of 0 bytes has the SHA-256 of nothing");
  }
  return digest;
}

v1::Digest DigestToProto(const Digest& digest) {
  v1::Digest proto;
  proto.set_sha256(digest.sha256.bytes.data(), digest.sha256.bytes.size());
  proto.set_size(digest.size);
  return proto;
}

absl::StatusOr<TensorType> TensorTypeFromProto(const v1::TensorDescriptor& proto,
                                               const std::string& field, int64_t tensor_bytes_max) {
  TensorType type;
  const auto dtype = ParseDType(proto.dtype());
  if (!dtype.ok()) {
    const auto known = absl::StrJoin(
        AllDTypes(), ", ", [](std::string* out, const DTypeTraits& t) { out->append(t.name); });
    return Refuse(field + ".dtype", Printable(proto.dtype()),
                  absl::StrCat("known dtypes are ", known));
  }
  type.dtype = *dtype;
  const std::string shape_field = field + ".shape";
  if (proto.shape_size() > kRankMax) {
    return Refuse(shape_field, absl::StrCat("of rank ", proto.shape_size()),
                  absl::StrCat("the rank is at most ", kRankMax));
  }
  for (int i = 0; i < proto.shape_size(); ++i) {
    if (proto.shape(i) < 0) {
      return Refuse(absl::StrCat(shape_field, "[", i, "]"), absl::StrCat(proto.shape(i)),
                    "a dim is not negative");
    }
    type.shape.push_back(proto.shape(i));
  }
  const auto bytes = CheckedByteCount(type, shape_field);
  if (!bytes.ok()) {
    return Refuse(shape_field, ShapeText(type.shape),
                  "the element count and size in bytes must fit 63 bits");
  }
  if (*bytes > tensor_bytes_max) {
    return Refuse(shape_field, absl::StrCat(ShapeText(type.shape), " (", *bytes, " bytes)"),
                  absl::StrCat("a tensor has at most ", tensor_bytes_max, " bytes"));
  }
  return type;
}

absl::Status CheckResultBytes(const TensorType& type, const std::string& field,
                              int64_t tensor_bytes_max) {
  const auto bytes = CheckedByteCount(type, field);
  if (bytes.ok() && *bytes <= tensor_bytes_max) return absl::OkStatus();
  return Refuse(field, TensorTypeText(type),
                absl::StrCat("a tensor has at most ", tensor_bytes_max, " bytes"));
}

v1::TensorDescriptor TensorTypeToProto(const TensorType& type) {
  v1::TensorDescriptor proto;
  proto.set_dtype(std::string(DTypeName(type.dtype)));
  proto.mutable_shape()->Add(type.shape.begin(), type.shape.end());
  return proto;
}

absl::StatusOr<GeneratorSpec> GeneratorFromProto(const v1::GeneratorSpec& proto,
                                                 const std::string& field,
                                                 int64_t tensor_bytes_max) {
  GeneratorSpec spec;
  const auto distribution = ParseDistribution(proto.distribution());
  if (!distribution.ok()) {
    const auto known =
        absl::StrJoin(AllDistributions(), ", ",
                      [](std::string* out, Distribution d) { out->append(DistributionName(d)); });
    return Refuse(field + ".distribution", Printable(proto.distribution()),
                  absl::StrCat("known distributions are ", known));
  }
  QG_ASSIGN_OR_RETURN(const TensorType type,
                      TensorTypeFromProto(proto.type(), field + ".type", tensor_bytes_max));
  spec.distribution = *distribution;
  spec.seed = proto.seed();
  spec.dtype = type.dtype;
  spec.shape = type.shape;
  if (!IsElementFormat(spec.dtype)) {
    return Refuse(field + ".type.dtype", std::string(DTypeName(spec.dtype)),
                  absl::StrCat("tensors of ", ElementFormatNames(), " can be generated"));
  }
  if (proto.has_scale()) spec.scale = proto.scale();
  if (!std::isfinite(spec.scale)) {
    return Refuse(field + ".scale", absl::StrCat(spec.scale), "a scale is finite");
  }
  return spec;
}

absl::StatusOr<TensorReference> TensorReferenceFromProto(const v1::TensorSource& proto,
                                                         const std::string& field,
                                                         int64_t tensor_bytes_max) {
  TensorReference reference;
  switch (proto.source_case()) {
    case v1::TensorSource::kInline: {
      QG_ASSIGN_OR_RETURN(reference,
                          InlineFromProto(proto.inline_(), field + ".inline", tensor_bytes_max));
      break;
    }
    case v1::TensorSource::kStored: {
      QG_ASSIGN_OR_RETURN(reference,
                          StoredFromProto(proto.stored(), field + ".stored", tensor_bytes_max));
      break;
    }
    case v1::TensorSource::kGenerate: {
      reference.kind = TensorReference::Kind::kGenerated;
      QG_ASSIGN_OR_RETURN(
          reference.generator,
          GeneratorFromProto(proto.generate(), field + ".generate", tensor_bytes_max));
      reference.type = TensorType{reference.generator.dtype, reference.generator.shape};
      break;
    }
    case v1::TensorSource::kQuantized:
      return Refuse(field, "quantized",
                    "only x, grad_output and weights of runs and sessions are taken as codes");
    case v1::TensorSource::SOURCE_NOT_SET:
      break;
  }
  reference.field = field;
  return reference;
}

absl::Status AddReference(const std::string& slot, const v1::TensorSource& proto,
                          int64_t tensor_bytes_max, SlotReferences& references) {
  QG_ASSIGN_OR_RETURN(TensorReference reference,
                      TensorReferenceFromProto(proto, slot, tensor_bytes_max));
  if (reference.has_value()) references.emplace(slot, std::move(reference));
  return absl::OkStatus();
}

absl::Status RequireTensor(const TensorReference& reference) {
  if (reference.has_value()) return absl::OkStatus();
  return RefuseAbsent(reference.field, "give inline, stored or generate");
}

absl::Status RequireTensors(const SlotReferences& references,
                            std::initializer_list<const char*> slots) {
  for (const char* const slot : slots) {
    if (!references.contains(slot)) {
      return RefuseAbsent(slot, "give inline, stored or generate");
    }
  }
  return absl::OkStatus();
}

v1::Fingerprint FingerprintToProto(const Fingerprint& fingerprint) {
  v1::Fingerprint proto;
  proto.set_high(fingerprint.high);
  proto.set_low(fingerprint.low);
  return proto;
}

v1::TensorRecord TensorRecordToProto(const TensorRecord& record) {
  v1::TensorRecord proto;
  proto.set_name(record.name);
  *proto.mutable_type() = TensorTypeToProto(record.type);
  *proto.mutable_digest() = DigestToProto(record.digest);
  *proto.mutable_fingerprint() = FingerprintToProto(record.fingerprint);
  return proto;
}

}  // namespace quantgate
