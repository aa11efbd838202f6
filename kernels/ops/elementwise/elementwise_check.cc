#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/ops/elementwise/elementwise.h"
#include "kernels/ops/operand_checks.h"

namespace quantgate {
namespace {

/// Whether dtypes are equal and dims too, but for `dim`.
bool AreAlikeBut(const Tensor& a, const Tensor& b, int dim) {
  if (a.dtype() != b.dtype() || a.rank() != b.rank()) return false;
  Shape shape = a.shape();
  shape[dim] = b.shape()[dim];
  return shape == b.shape();
}

/// The shape of the parts joined along the first dim, or the last one.
absl::StatusOr<Shape> JoinedShape(std::span<const Tensor> parts, bool is_along_last) {
  if (parts.empty()) return Refuse("parts", "empty", "must be at least one");
  Shape shape;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Tensor& part = parts[i];
    if (!part.has_value() || part.rank() < 1) {
      return Refuse(absl::StrCat("parts[", i, "]"), part.has_value() ? "a scalar" : "absent",
                    is_along_last ? "must have columns" : "must have rows");
    }
    const int dim = is_along_last ? part.rank() - 1 : 0;
    if (!AreAlikeBut(part, parts[0], dim)) {
      return Refuse(
          absl::StrCat("parts[", i, "]"), TensorText(part),
          absl::StrCat("must have the dtype and the other dims of ", TensorText(parts[0])));
    }
    if (i == 0) {
      shape = part.shape();
    } else {
      shape[dim] += part.shape()[dim];
    }
  }
  return shape;
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
  return JoinedShape(parts, false);
}

absl::StatusOr<Shape> ConcatenatedColumnsShape(std::span<const Tensor> parts) {
  return JoinedShape(parts, true);
}

absl::StatusOr<SlicePlan> PlanSlice(const Tensor& source, int dim, int64_t begin, int64_t count) {
  if (!source.has_value()) return RefuseAbsent("source", "it must be given");
  if (dim < 0 || dim >= source.rank()) {
    return Refuse(
        "dim", absl::StrCat(dim),
        absl::StrCat("must be one of the ", source.rank(), " dims of ", TensorText(source)));
  }
  SlicePlan plan = {.shape = source.shape(), .rows = 1};
  const int64_t size = plan.shape[dim];
  if (begin < 0 || count < 0 || begin > size || count > size - begin) {
    return Refuse(
        "slice", absl::StrCat(count, " from ", begin),
        absl::StrCat("must lie within the ", size, " of dim ", dim, " of ", TensorText(source)));
  }
  int64_t inner = DTypeBytes(source.dtype());
  for (int i = dim + 1; i < source.rank(); ++i) inner *= plan.shape[i];
  for (int i = 0; i < dim; ++i) plan.rows *= plan.shape[i];
  plan.begin = begin * inner;
  plan.pitch = size * inner;
  plan.width = count * inner;
  plan.shape[dim] = count;
  return plan;
}

}  // namespace quantgate
