#include "kernels/ops/elementwise/elementwise_cuda.h"

#include <cstdint>
#include <utility>

#include "kernels/base/cuda_status.h"
#include "kernels/base/status_macros.h"
#include "kernels/ops/elementwise/elementwise_kernels.h"
#include "kernels/ops/float_operands.h"

namespace quantgate {
namespace {

/// The first `width` bytes of each of `rows` rows, which are `from_pitch` and `to_pitch` apart.
absl::Status CopyRows(CudaDevice& device, const std::byte* from, int64_t from_pitch, std::byte* to,
                      int64_t to_pitch, int64_t width, int64_t rows) {
  if (width == 0 || rows == 0) return absl::OkStatus();
  if (rows == 1 || (width == from_pitch && width == to_pitch)) {
    return QG_CUDA_STATUS(cudaMemcpyAsync(to, from, static_cast<size_t>(width * rows),
                                          cudaMemcpyDeviceToDevice, device.stream()));
  }
  constexpr int64_t kPitchMax = INT32_MAX;  // cudaDevAttrMaxPitch of every device.
  if (from_pitch > kPitchMax || to_pitch > kPitchMax) {
    for (int64_t row = 0; row < rows; ++row) {
      QG_RETURN_IF_ERROR(CopyRows(device, from + row * from_pitch, from_pitch, to + row * to_pitch,
                                  to_pitch, width, 1));
    }
    return absl::OkStatus();
  }
  return QG_CUDA_STATUS(cudaMemcpy2DAsync(to, static_cast<size_t>(to_pitch), from,
                                          static_cast<size_t>(from_pitch),
                                          static_cast<size_t>(width), static_cast<size_t>(rows),
                                          cudaMemcpyDeviceToDevice, device.stream()));
}

}  // namespace

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

absl::StatusOr<Tensor> ConcatenateColumnsCuda(CudaDevice& device, std::span<const Tensor> parts) {
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  QG_ASSIGN_OR_RETURN(Shape shape, ConcatenatedColumnsShape(parts));
  QG_ASSIGN_OR_RETURN(Tensor whole, device.Allocate(parts[0].dtype(), std::move(shape)));
  const int64_t element = DTypeBytes(whole.dtype());
  std::byte* to = whole.data();
  for (const Tensor& part : parts) {
    const int64_t width = part.columns() * element;
    QG_RETURN_IF_ERROR(
        CopyRows(device, part.data(), width, to, whole.columns() * element, width, part.rows()));
    to += width;
  }
  return whole;
}

absl::StatusOr<Tensor> SliceCuda(CudaDevice& device, const Tensor& source, int dim, int64_t begin,
                                 int64_t count) {
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  QG_ASSIGN_OR_RETURN(const SlicePlan plan, PlanSlice(source, dim, begin, count));
  QG_ASSIGN_OR_RETURN(Tensor slice, device.Allocate(source.dtype(), plan.shape));
  QG_RETURN_IF_ERROR(CopyRows(device, source.data() + plan.begin, plan.pitch, slice.data(),
                              plan.width, plan.width, plan.rows));
  return slice;
}

}  // namespace quantgate
