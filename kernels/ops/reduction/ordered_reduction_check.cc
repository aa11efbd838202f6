#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/ops/operand_checks.h"
#include "kernels/ops/reduction/ordered_reduction.h"

namespace quantgate {
namespace {

/// That there are parts and that all are like the first one.
absl::Status CheckAlike(std::span<const Tensor> parts) {
  if (parts.empty()) return Refuse("parts", "empty", "must be at least one");
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string field = absl::StrCat("parts[", i, "]");
    QG_RETURN_IF_ERROR(CheckHighPrecision(parts[i], field));
    QG_RETURN_IF_ERROR(CheckDType(parts[i], parts[0].dtype(), field));
    QG_RETURN_IF_ERROR(CheckShape(parts[i], parts[0].shape(), field, "that of parts[0]"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckOrderedSum(std::span<const Tensor> parts_in_order, DType out) {
  QG_RETURN_IF_ERROR(CheckAlike(parts_in_order));
  return CheckHighPrecision(out, "out dtype");
}

absl::Status CheckOrderedSumTo(std::span<const Tensor> parts_in_order, const Tensor& to) {
  QG_RETURN_IF_ERROR(CheckAlike(parts_in_order));
  QG_RETURN_IF_ERROR(CheckHighPrecision(to, "to"));
  return CheckShape(to, parts_in_order[0].shape(), "to", "that of parts[0]");
}

absl::Status CheckMaximum(std::span<const Tensor> parts) {
  QG_RETURN_IF_ERROR(CheckAlike(parts));
  return CheckDType(parts[0], DType::kF32, "parts[0]");
}

}  // namespace quantgate
