#include "kernels/ops/norm/norm_cuda.h"

#include "kernels/base/cuda_status.h"
#include "kernels/base/status_macros.h"
#include "kernels/numerics/norm.h"
#include "kernels/ops/float_operands.h"
#include "kernels/ops/norm/norm_kernels.h"
#include "kernels/tensor/device/tensor_cuda.h"

namespace quantgate {
namespace {

/// Null for RMSNorm, which has no mean.
const float* MeanOf(const NormBackwardDesc& desc) {
  return desc.mean.has_value() ? desc.mean.as<float>() : nullptr;
}

absl::StatusOr<Tensor> RowGradients(CudaDevice& device, const NormBackwardDesc& desc) {
  QG_ASSIGN_OR_RETURN(Tensor dx, device.Allocate(desc.x.dtype(), desc.x.shape()));
  const NormBackwardParameters parameters = {
      .dz = FloatsOf(desc.dz),
      .x = FloatsOf(desc.x),
      .gamma = FloatsOf(desc.gamma),
      .residual = FloatsOf(desc.residual),
      .mean = MeanOf(desc),
      .rstd = desc.rstd.as<float>(),
      .dx = WritableFloatsOf(dx),
      .rows = desc.x.rows(),
      .columns = desc.x.columns(),
      .inverse_count = NormInverseCount(desc.x.columns()),
      .zero_centered_gamma = desc.options.zero_centered_gamma};
  QG_CUDA_RETURN_IF_ERROR(LaunchNormBackward(parameters, KernelPath::kTuned, device.stream()));
  return dx;
}

/// dgamma and dbeta, those that are wanted: sums of groups of rows, then the rest of the same tree.
absl::Status AddColumnGradients(CudaDevice& device, const NormBackwardDesc& desc,
                                NormGradients& gradients) {
  const int64_t rows = desc.x.rows(), columns = desc.x.columns();
  const int64_t groups = (rows + kColumnSumRows - 1) / kColumnSumRows;
  NormColumnParameters parameters = {.dz = FloatsOf(desc.dz),
                                     .x = FloatsOf(desc.x),
                                     .mean = MeanOf(desc),
                                     .rstd = desc.rstd.as<float>(),
                                     .rows = rows,
                                     .columns = columns};
  Tensor dgamma, dbeta;
  if (desc.wanted.dgamma) {
    QG_ASSIGN_OR_RETURN(dgamma, device.Allocate(DType::kF32, {groups, columns}));
    parameters.dgamma = dgamma.as<float>();
  }
  if (desc.wanted.dbeta) {
    QG_ASSIGN_OR_RETURN(dbeta, device.Allocate(DType::kF32, {groups, columns}));
    parameters.dbeta = dbeta.as<float>();
  }
  QG_CUDA_RETURN_IF_ERROR(LaunchNormColumns(parameters, KernelPath::kTuned, device.stream()));
  const DType out = desc.gamma.dtype();
  if (desc.wanted.dgamma) {
    QG_ASSIGN_OR_RETURN(gradients.dgamma, ColumnSumsCuda(device, dgamma, out));
  }
  if (desc.wanted.dbeta) {
    QG_ASSIGN_OR_RETURN(gradients.dbeta, ColumnSumsCuda(device, dbeta, out));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<NormForwardResult> NormForwardCuda(CudaDevice& device, const NormForwardDesc& desc) {
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  QG_RETURN_IF_ERROR(CheckNorm(desc));
  const int64_t rows = desc.x.rows(), columns = desc.x.columns();
  NormForwardResult result;
  QG_ASSIGN_OR_RETURN(result.y, device.Allocate(desc.out, desc.x.shape()));
  QG_ASSIGN_OR_RETURN(result.rstd, device.Allocate(DType::kF32, {rows}));
  NormForwardParameters parameters = {.x = FloatsOf(desc.x),
                                      .gamma = FloatsOf(desc.gamma),
                                      .beta = FloatsOf(desc.beta),
                                      .y = WritableFloatsOf(result.y),
                                      .rstd = result.rstd.as<float>(),
                                      .rows = rows,
                                      .columns = columns,
                                      .inverse_count = NormInverseCount(columns),
                                      .epsilon = desc.options.epsilon,
                                      .zero_centered_gamma = desc.options.zero_centered_gamma};
  if (desc.options.kind == NormKind::kLayerNorm) {
    QG_ASSIGN_OR_RETURN(result.mean, device.Allocate(DType::kF32, {rows}));
    parameters.mean = result.mean.as<float>();
  }
  QG_CUDA_RETURN_IF_ERROR(LaunchNormForward(parameters, KernelPath::kTuned, device.stream()));
  return result;
}

absl::StatusOr<NormGradients> NormBackwardCuda(CudaDevice& device, const NormBackwardDesc& desc) {
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  QG_RETURN_IF_ERROR(CheckNorm(desc));
  NormGradients gradients;
  if (desc.wanted.dx) {
    QG_ASSIGN_OR_RETURN(gradients.dx, RowGradients(device, desc));
  }
  if (desc.wanted.dgamma || desc.wanted.dbeta) {
    QG_RETURN_IF_ERROR(AddColumnGradients(device, desc, gradients));
  }
  return gradients;
}

}  // namespace quantgate
