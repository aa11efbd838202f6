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

}  // namespace quantgate
