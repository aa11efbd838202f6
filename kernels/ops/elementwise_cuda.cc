#include "kernels/ops/elementwise_cuda.h"

#include <utility>

#include "kernels/base/cuda_status.h"
#include "kernels/base/status_macros.h"
#include "kernels/ops/elementwise_kernels.h"
#include "kernels/ops/float_operands.h"

namespace quantgate {

absl::StatusOr<Tensor> AddCuda(CudaDevice& device, const Tensor& a, const Tensor& b, DType out) {
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  QG_RETURN_IF_ERROR(CheckAdd(a, b, out));
  QG_ASSIGN_OR_RETURN(Tensor sum, device.Allocate(out, a.shape()));
  const ElementwiseParameters parameters = {
      .a = FloatsOf(a), .b = FloatsOf(b), .to = WritableFloatsOf(sum), .count = a.element_count()};
  QG_CUDA_RETURN_IF_ERROR(LaunchAdd(parameters, KernelPath::kTuned, device.stream()));
  return sum;
}

absl::StatusOr<Tensor> ScaleCuda(CudaDevice& device, const Tensor& x, float factor, DType out) {
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  QG_RETURN_IF_ERROR(CheckScale(x, out));
  QG_ASSIGN_OR_RETURN(Tensor scaled, device.Allocate(out, x.shape()));
  const ElementwiseParameters parameters = {.a = FloatsOf(x),
                                            .to = WritableFloatsOf(scaled),
                                            .factor = factor,
                                            .count = x.element_count()};
  QG_CUDA_RETURN_IF_ERROR(LaunchScale(parameters, KernelPath::kTuned, device.stream()));
  return scaled;
}

absl::StatusOr<Tensor> ConcatenateRowsCuda(CudaDevice& device, std::span<const Tensor> parts) {
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  QG_ASSIGN_OR_RETURN(Shape shape, ConcatenatedShape(parts));
  QG_ASSIGN_OR_RETURN(Tensor whole, device.Allocate(parts[0].dtype(), std::move(shape)));
  std::byte* to = whole.data();
  for (const Tensor& part : parts) {
    if (part.byte_size() == 0) continue;
    QG_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(to, part.data(), part.byte_size(),
                                            cudaMemcpyDeviceToDevice, device.stream()));
    to += part.byte_size();
  }
  return whole;
}

}  // namespace quantgate
