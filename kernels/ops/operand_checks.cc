#include "kernels/ops/operand_checks.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace quantgate {
namespace {

absl::Status Missing(std::string_view field) {
  return absl::InvalidArgumentError(absl::StrCat(std::string(field), ": missing"));
}

}  // namespace

absl::Status CheckHighPrecision(DType dtype, std::string_view field) {
  if (IsHighPrecision(dtype)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      std::string(field), ": ", std::string(DTypeName(dtype)), "; must be f32, bf16 or f16"));
}

absl::Status CheckHighPrecision(const Tensor& tensor, std::string_view field) {
  return tensor.has_value() ? CheckHighPrecision(tensor.dtype(), field) : Missing(field);
}

absl::Status CheckDType(const Tensor& tensor, DType dtype, std::string_view field) {
  if (!tensor.has_value()) return Missing(field);
  if (tensor.dtype() == dtype) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(std::string(field), ": ",
                                                 std::string(DTypeName(tensor.dtype())),
                                                 "; must be ", std::string(DTypeName(dtype))));
}

absl::Status CheckShape(const Tensor& tensor, const Shape& shape, std::string_view field,
                        std::string_view rule) {
  if (tensor.shape() == shape) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(std::string(field), ": shape ",
                                                 ShapeText(tensor.shape()), "; must be ",
                                                 ShapeText(shape), ", ", std::string(rule)));
}

}  // namespace quantgate
