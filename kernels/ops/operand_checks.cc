#include "kernels/ops/operand_checks.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"

namespace quantgate {
namespace {

absl::Status Missing(std::string_view field) { return RefuseAbsent(field, "it must be given"); }

}  // namespace

absl::Status CheckHighPrecision(DType dtype, std::string_view field) {
  if (IsHighPrecision(dtype)) return absl::OkStatus();
  return Refuse(field, DTypeName(dtype), "must be f32, bf16 or f16");
}

absl::Status CheckHighPrecision(const Tensor& tensor, std::string_view field) {
  return tensor.has_value() ? CheckHighPrecision(tensor.dtype(), field) : Missing(field);
}

absl::Status CheckDType(const Tensor& tensor, DType dtype, std::string_view field) {
  if (!tensor.has_value()) return Missing(field);
  if (tensor.dtype() == dtype) return absl::OkStatus();
  return Refuse(field, TensorText(tensor), absl::StrCat("must be ", std::string(DTypeName(dtype))));
}

absl::Status CheckShape(const Tensor& tensor, const Shape& shape, std::string_view field,
                        std::string_view rule) {
  if (tensor.shape() == shape) return absl::OkStatus();
  return Refuse(field, TensorText(tensor),
                absl::StrCat("its shape must be ", ShapeText(shape), ", ", std::string(rule)));
}

}  // namespace quantgate
