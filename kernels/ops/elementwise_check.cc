#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/operand_checks.h"

namespace quantgate {
namespace {

bool HaveSameRows(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.rank() == b.rank() &&
         Shape(a.shape().begin() + 1, a.shape().end()) ==
             Shape(b.shape().begin() + 1, b.shape().end());
}

}  // namespace

absl::Status CheckAdd(const Tensor& a, const Tensor& b, DType out) {
  QG_RETURN_IF_ERROR(CheckHighPrecision(a, "a"));
  QG_RETURN_IF_ERROR(CheckHighPrecision(b, "b"));
  QG_RETURN_IF_ERROR(CheckShape(b, a.shape(), "b", "that of a"));
  return CheckHighPrecision(out, "out dtype");
}

absl::Status CheckScale(const Tensor& x, DType out) {
  QG_RETURN_IF_ERROR(CheckHighPrecision(x, "x"));
  return CheckHighPrecision(out, "out dtype");
}

absl::StatusOr<Shape> ConcatenatedShape(std::span<const Tensor> parts) {
  if (parts.empty()) return absl::InvalidArgumentError("parts: none; must be at least one");
  Shape shape;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Tensor& part = parts[i];
    if (!part.has_value() || part.rank() < 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "parts[", i, "]: ", part.has_value() ? "a scalar" : "missing", "; must have rows"));
    }
    if (!HaveSameRows(part, parts[0])) {
      return absl::InvalidArgumentError(absl::StrCat("parts[", i, "]: ", TensorText(part),
                                                     "; must have the dtype and the other dims of ",
                                                     TensorText(parts[0])));
    }
    if (i == 0) {
      shape = part.shape();
    } else {
      shape[0] += part.shape()[0];
    }
  }
  return shape;
}

}  // namespace quantgate
