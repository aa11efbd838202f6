// The maxima of a tensor ahead of its quantization, on a GPU.
#include "kernels/base/cuda_status.h"
#include "kernels/quantize/cuda/quantize_cuda.h"
#include "kernels/quantize/cuda/quantize_tiles_cuda.h"
#include "kernels/quantize/format_quantizers.h"
#include "kernels/quantize/nvfp4/nvfp4_kernels.h"
#include "kernels/tensor/visit_format.h"

namespace quantgate {
namespace {

absl::StatusOr<Tensor> SourceAmax(CudaDevice& device, const Tensor& source) {
  QG_ASSIGN_OR_RETURN(Tensor amax, device.AllocateZeroed(DType::kF32, {1}));
  QG_CUDA_RETURN_IF_ERROR(LaunchAmax(source.data(), FormatOf(source.dtype()),
                                     source.element_count(), amax.as<uint32_t>(),
                                     device.facts().multiprocessors, device.stream()));
  return amax;
}

absl::StatusOr<Tensor> TransformedAmax(CudaDevice& device, const Tensor& source) {
  QG_ASSIGN_OR_RETURN(Tensor amax, device.Allocate(DType::kF32, {1}));
  Nvfp4Parameters parameters;
  parameters.source = source.data();
  parameters.rows = source.rows();
  parameters.columns = source.columns();
  parameters.is_rowwise = false;
  parameters.hadamard = true;
  parameters.amax = amax.as<float>();
  QG_CUDA_RETURN_IF_ERROR(LaunchNvfp4Amax(parameters, device.stream()));
  return amax;
}

}  // namespace

absl::StatusOr<TensorAmaxes> MeasureAmaxCuda(CudaDevice& device, const Tensor& source,
                                             const Quantizer& quantizer, Usages usages) {
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  QG_ASSIGN_OR_RETURN(const AmaxPlan plan, PlanAmaxes(source, quantizer, usages));
  TensorAmaxes amaxes;
  if (plan.rowwise || (plan.columnwise && !plan.is_transformed)) {
    QG_ASSIGN_OR_RETURN(const Tensor amax, SourceAmax(device, source));
    if (plan.rowwise) amaxes.rowwise = amax;
    if (plan.columnwise) amaxes.columnwise = amax;
  }
  if (plan.columnwise && plan.is_transformed) {
    QG_ASSIGN_OR_RETURN(amaxes.columnwise, TransformedAmax(device, source));
  }
  return amaxes;
}

}  // namespace quantgate
