#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/parse_name.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/ops/norm/norm.h"
#include "kernels/ops/operand_checks.h"

namespace quantgate {
namespace {

constexpr std::string_view kNormKindNames[] = {"layernorm", "rmsnorm"};

absl::Status CheckNormOptions(const NormOptions& options) {
  if (options.epsilon >= 0 && std::isfinite(options.epsilon)) return absl::OkStatus();
  return Refuse("epsilon", absl::StrCat(options.epsilon), "must be finite and at least 0");
}

absl::Status CheckOperands(const Tensor& x, const Tensor& gamma) {
  QG_RETURN_IF_ERROR(CheckHighPrecision(x, "x"));
  if (x.rank() < 1 || x.columns() < 1) {
    return Refuse("x", TensorText(x), "its last dim must be at least 1");
  }
  QG_RETURN_IF_ERROR(CheckHighPrecision(gamma, "gamma"));
  return CheckShape(gamma, {x.columns()}, "gamma", "the last dim of x");
}

absl::Status CheckStatistic(const Tensor& statistic, int64_t rows, std::string_view field) {
  QG_RETURN_IF_ERROR(CheckDType(statistic, DType::kF32, field));
  return CheckShape(statistic, {rows}, field, "one for each row of x");
}

absl::Status NotOfRmsNorm(std::string_view field) {
  return Refuse(field, "given", "the norm is rmsnorm, and layernorm alone has it");
}

}  // namespace

std::string_view NormKindName(NormKind kind) { return kNormKindNames[static_cast<size_t>(kind)]; }

absl::StatusOr<NormKind> ParseNormKind(std::string_view name) {
  return ParseName<NormKind>(kNormKindNames, "norm kind", name);
}

absl::Status CheckNorm(const NormForwardDesc& desc) {
  QG_RETURN_IF_ERROR(CheckNormOptions(desc.options));
  QG_RETURN_IF_ERROR(CheckOperands(desc.x, desc.gamma));
  QG_RETURN_IF_ERROR(CheckHighPrecision(desc.out, "out dtype"));
  if (!desc.beta.has_value()) return absl::OkStatus();
  if (desc.options.kind == NormKind::kRmsNorm) return NotOfRmsNorm("beta");
  QG_RETURN_IF_ERROR(CheckHighPrecision(desc.beta, "beta"));
  return CheckShape(desc.beta, {desc.x.columns()}, "beta", "the last dim of x");
}

absl::Status CheckNorm(const NormBackwardDesc& desc) {
  QG_RETURN_IF_ERROR(CheckNormOptions(desc.options));
  QG_RETURN_IF_ERROR(CheckOperands(desc.x, desc.gamma));
  QG_RETURN_IF_ERROR(CheckHighPrecision(desc.dz, "dz"));
  QG_RETURN_IF_ERROR(CheckShape(desc.dz, desc.x.shape(), "dz", "that of x"));
  QG_RETURN_IF_ERROR(CheckStatistic(desc.rstd, desc.x.rows(), "rstd"));
  if (desc.options.kind == NormKind::kLayerNorm) {
    QG_RETURN_IF_ERROR(CheckStatistic(desc.mean, desc.x.rows(), "mean"));
  } else {
    if (desc.mean.has_value()) return NotOfRmsNorm("mean");
    if (desc.wanted.dbeta) return NotOfRmsNorm("wanted.dbeta");
  }
  if (!desc.residual.has_value()) return absl::OkStatus();
  if (!desc.wanted.dx) {
    return Refuse("residual", "given", "it is added to dx, which is not wanted");
  }
  QG_RETURN_IF_ERROR(CheckHighPrecision(desc.residual, "residual"));
  return CheckShape(desc.residual, desc.x.shape(), "residual", "that of x");
}

}  // namespace quantgate
