#include "server/wire/tensor_reference.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace quantgate {

std::string TensorTypeText(const TensorType& type) {
  return absl::StrCat(std::string(DTypeName(type.dtype)), "[", ShapeText(type.shape), "]");
}

std::string GeneratorText(const GeneratorSpec& spec) {
  std::string text =
      absl::StrCat("gen:", std::string(DistributionName(spec.distribution)), ",seed=", spec.seed,
                   ",shape=", ShapeText(spec.shape), ",dtype=", std::string(DTypeName(spec.dtype)));
  // Nine digits bring back every fp32 value.
  if (spec.scale != 1.0f) absl::StrAppendFormat(&text, ",scale=%.9g", spec.scale);
  return text;
}

std::string ReferenceText(const TensorReference& reference) {
  if (reference.kind == TensorReference::Kind::kGenerated) {
    return GeneratorText(reference.generator);
  }
  return absl::StrCat("digest:", reference.digest.Text(),
                      ",dtype=", std::string(DTypeName(reference.type->dtype)),
                      ",shape=", ShapeText(reference.type->shape));
}

Tensor OutlineOf(const TensorReference& reference) {
  if (!reference.has_value()) return Tensor();
  const TensorType& type = *reference.type;
  // Checked when the reference was made, so neither the count nor the view can fail.
  const int64_t count = CheckedElementCount(type.shape, type.dtype, reference.field).value();
  const size_t bytes = static_cast<size_t>(count) * DTypeBytes(type.dtype);
  return Tensor::View(type.dtype, type.shape, Buffer::Wrap(nullptr, bytes, nullptr)).value();
}

Tensor OutlineOf(const SlotReferences& references, const std::string& slot) {
  const auto found = references.find(slot);
  return found == references.end() ? Tensor() : OutlineOf(found->second);
}

}  // namespace quantgate
