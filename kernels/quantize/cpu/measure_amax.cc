// The maxima of a tensor ahead of its quantization, for whoever reduces them over a group.
#include "kernels/base/status_macros.h"
#include "kernels/quantize/format_quantizers.h"
#include "kernels/quantize/nvfp4/nvfp4_direction.h"

namespace quantgate {
namespace {

absl::StatusOr<HadamardAmaxes> BothAmaxes(const Tensor& source, const ExecutionContext& context) {
  if (const auto amaxes = FindHadamardAmaxes(source, context); amaxes.has_value()) return *amaxes;
  HadamardAmaxes amaxes = {.source = TensorAmax(source, context), .transformed = 0.0f};
  QG_RETURN_IF_ERROR(TransformColumns(source, context, amaxes.transformed).status());
  return amaxes;
}

}  // namespace

absl::StatusOr<TensorAmaxes> MeasureAmaxCpu(const Tensor& source, const Quantizer& quantizer,
                                            Usages usages, const ExecutionContext& context) {
  const ScopedIeeeEnvironment ieee;
  QG_ASSIGN_OR_RETURN(const AmaxPlan plan, PlanAmaxes(source, quantizer, usages));
  HadamardAmaxes found = {};
  if (plan.columnwise && plan.is_transformed) {
    QG_ASSIGN_OR_RETURN(found, BothAmaxes(source, context));
  } else if (plan.rowwise || plan.columnwise) {
    found.source = found.transformed = TensorAmax(source, context);
  }
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  TensorAmaxes amaxes;
  if (plan.rowwise) {
    QG_ASSIGN_OR_RETURN(amaxes.rowwise, Tensor::FromScalar(found.source));
  }
  if (plan.columnwise) {
    QG_ASSIGN_OR_RETURN(amaxes.columnwise, Tensor::FromScalar(found.transformed));
  }
  return amaxes;
}

}  // namespace quantgate
