#include <cmath>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/parse_name.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/ops/activation/activation.h"
#include "kernels/ops/operand_checks.h"

namespace quantgate {
namespace {

absl::Status CheckVariant(const ActivationOptions& options) {
  const ActivationFunction function = FunctionOf(options.kind);
  const bool fits =
      options.variant == ActivationVariant::kCanonical ||
      (options.variant == ActivationVariant::kFp32Sigmoid ? UsesSigmoid(function)
                                                          : function == ActivationFunction::kGelu);
  if (fits) return absl::OkStatus();
  return Refuse("variant", ActivationVariantName(options.variant),
                absl::StrCat(std::string(ActivationKindName(options.kind)),
                             " does not have it; fp32_sigmoid is for glu, qgelu, qgeglu, silu, "
                             "swiglu and clamped_swiglu, jit_gelu for gelu and geglu"));
}

absl::Status CheckActivationOptions(const ActivationOptions& options) {
  QG_RETURN_IF_ERROR(CheckVariant(options));
  if (!(options.limit > 0)) {
    return Refuse("limit", absl::StrCat(options.limit), "must be above 0");
  }
  if (!std::isfinite(options.alpha)) {
    return Refuse("alpha", absl::StrCat(options.alpha), "must be finite");
  }
  if (!std::isfinite(options.offset)) {
    return Refuse("offset", absl::StrCat(options.offset), "must be finite");
  }
  return absl::OkStatus();
}

absl::Status CheckInput(const Tensor& h, const ActivationOptions& options) {
  QG_RETURN_IF_ERROR(CheckHighPrecision(h, "h"));
  QG_RETURN_IF_ERROR(CheckActivationOptions(options));
  if (!IsGated(options.kind) || (h.rank() >= 1 && h.columns() % 2 == 0)) return absl::OkStatus();
  return Refuse(
      "h", TensorText(h),
      absl::StrCat("its last dim must be even for ", std::string(ActivationKindName(options.kind)),
                   ", an activated and a gate half"));
}

}  // namespace

std::string_view ActivationKindName(ActivationKind kind) {
  return kActivationKindNames[static_cast<size_t>(kind)];
}

absl::StatusOr<ActivationKind> ParseActivationKind(std::string_view name) {
  return ParseName<ActivationKind>(kActivationKindNames, "activation", name);
}

std::string_view ActivationVariantName(ActivationVariant variant) {
  return kActivationVariantNames[static_cast<size_t>(variant)];
}

absl::StatusOr<ActivationVariant> ParseActivationVariant(std::string_view name) {
  return ParseName<ActivationVariant>(kActivationVariantNames, "activation variant", name);
}

Shape ActivationOutputShape(const Shape& h, ActivationKind kind) {
  Shape shape = h;
  if (IsGated(kind)) shape.back() /= 2;
  return shape;
}

absl::Status CheckActivationForward(const Tensor& h, const ActivationOptions& options, DType out) {
  QG_RETURN_IF_ERROR(CheckInput(h, options));
  return CheckHighPrecision(out, "out dtype");
}

absl::Status CheckActivationBackward(const Tensor& dy, const Tensor& h,
                                     const ActivationOptions& options, DType out) {
  QG_RETURN_IF_ERROR(CheckInput(h, options));
  QG_RETURN_IF_ERROR(CheckHighPrecision(dy, "dy"));
  QG_RETURN_IF_ERROR(
      CheckShape(dy, ActivationOutputShape(h.shape(), options.kind), "dy", "that of the output"));
  return CheckHighPrecision(out, "out dtype");
}

}  // namespace quantgate
