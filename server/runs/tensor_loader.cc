#include "server/runs/tensor_loader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "server/errors.h"

namespace quantgate {

absl::Status TensorLoader::Resolve(std::span<TensorReference* const> references) {
  std::vector<Digest> missing;
  std::vector<std::string> fields;
  for (TensorReference* reference : references) {
    if (reference->kind != TensorReference::Kind::kStored) continue;
    if (!blobs_.Contains(reference->digest)) {
      fields.push_back(reference->field);
      if (std::find(missing.begin(), missing.end(), reference->digest) == missing.end()) {
        missing.push_back(reference->digest);
      }
    } else {
      QG_RETURN_IF_ERROR(ResolveType(*reference));
    }
  }
  if (missing.empty()) return absl::OkStatus();
  return error::BlobsMissing(absl::StrJoin(fields, ", "), std::move(missing));
}

absl::Status TensorLoader::Resolve(SlotReferences& references) {
  std::vector<TensorReference*> all;
  for (auto& [slot, reference] : references) all.push_back(&reference);
  return Resolve(all);
}

absl::Status TensorLoader::ResolveType(TensorReference& reference) {
  if (reference.type.has_value()) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(const auto records, tensors_.Find(reference.digest));
  std::vector<TensorType> types;
  for (const TensorRecord& record : records) {
    if (std::find(types.begin(), types.end(), record.type) == types.end()) {
      types.push_back(record.type);
    }
  }
  if (types.size() == 1) {
    reference.type = types.front();
    return absl::OkStatus();
  }
  const std::string field = absl::StrCat(reference.field, ".stored.type");
  if (types.empty()) {
    return RefuseAbsent(field, "the digest is registered under no type; give dtype and shape");
  }
  return RefuseAbsent(field,
                      absl::StrCat("the digest is registered as ",
                                   absl::StrJoin(types, " and ",
                                                 [](std::string* out, const TensorType& type) {
                                                   absl::StrAppend(out, TensorTypeText(type));
                                                 }),
                                   "; give one of them"));
}

absl::StatusOr<Tensor> TensorLoader::Load(const TensorReference& reference, Device& device,
                                          const Cancellation* cancellation) {
  switch (reference.kind) {
    case TensorReference::Kind::kAbsent:
      return Tensor();
    case TensorReference::Kind::kInline: {
      QG_ASSIGN_OR_RETURN(const Tensor tensor, LoadToHost(reference, device, cancellation));
      return device.engine->ToDevice(tensor, cancellation);
    }
    case TensorReference::Kind::kStored: {
      // The bytes are kept resident once, whatever types they are read as.
      const auto load = [&]() -> absl::StatusOr<Tensor> {
        QG_ASSIGN_OR_RETURN(auto buffer, blobs_.Load(reference.digest));
        const auto size = static_cast<int64_t>(buffer->size());
        return Tensor::View(DType::kU8, {size}, std::move(buffer));
      };
      QG_ASSIGN_OR_RETURN(const Tensor bytes, device.resident.Get(reference.digest.Text(),
                                                                  ResidentTensors::Source::kStored,
                                                                  load, cancellation));
      return bytes.Reinterpret(reference.type->dtype, reference.type->shape);
    }
    case TensorReference::Kind::kGenerated:
      return device.resident.Get(
          GeneratorText(reference.generator), ResidentTensors::Source::kGenerated,
          [&] { return device.engine->Generate(reference.generator, cancellation); }, cancellation);
  }
  return absl::InternalError("unknown kind of tensor reference");
}

absl::StatusOr<Tensor> TensorLoader::LoadToHost(const TensorReference& reference, Device& device,
                                                const Cancellation* cancellation) {
  switch (reference.kind) {
    case TensorReference::Kind::kAbsent:
      return Tensor();
    case TensorReference::Kind::kInline:
      return Tensor::FromBytes(reference.type->dtype, reference.type->shape,
                               std::as_bytes(std::span(reference.bytes)));
    case TensorReference::Kind::kStored: {
      QG_ASSIGN_OR_RETURN(auto buffer, blobs_.Load(reference.digest));
      return Tensor::View(reference.type->dtype, reference.type->shape, std::move(buffer));
    }
    case TensorReference::Kind::kGenerated: {
      QG_ASSIGN_OR_RETURN(const Tensor tensor, Load(reference, device, cancellation));
      return device.engine->ToHost(tensor, cancellation);
    }
  }
  return absl::InternalError("unknown kind of tensor reference");
}

absl::StatusOr<TensorRecord> TensorLoader::Register(const TensorReference& reference,
                                                    const std::string& name,
                                                    const std::string& request_id,
                                                    const Sha256& content, Device& device,
                                                    const Cancellation* cancellation) {
  QG_ASSIGN_OR_RETURN(const Tensor tensor, Load(reference, device, cancellation));
  TensorRecord record;
  record.digest = reference.digest;
  if (reference.kind != TensorReference::Kind::kStored) {
    QG_ASSIGN_OR_RETURN(const Tensor host, device.engine->ToHost(tensor, cancellation));
    QG_ASSIGN_OR_RETURN(record.digest, blobs_.Put(host.bytes()));
  }
  QG_ASSIGN_OR_RETURN(record.fingerprint, device.engine->FingerprintOf(tensor, cancellation));
  record.type = *reference.type;
  record.name = name;
  return tensors_.Put(record, request_id, content);
}

}  // namespace quantgate
