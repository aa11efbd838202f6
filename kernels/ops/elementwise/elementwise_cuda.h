// Sums, multiples, concatenations and slices (elementwise.h) on a GPU: the same bytes. Operands are
// in device memory; results are, and are written once the device's stream gets there. Errors as on
// the CPU, and those of CudaDevice.
#pragma once

#include <span>

#include "absl/status/statusor.h"
#include "kernels/ops/elementwise/elementwise.h"
#include "kernels/tensor/device/cuda_device.h"

namespace quantgate {

absl::StatusOr<Tensor> AddCuda(CudaDevice& device, const Tensor& a, const Tensor& b, DType out);
absl::StatusOr<Tensor> ScaleCuda(CudaDevice& device, const Tensor& x, float factor, DType out);
absl::StatusOr<Tensor> ConcatenateRowsCuda(CudaDevice& device, std::span<const Tensor> parts);
absl::StatusOr<Tensor> ConcatenateColumnsCuda(CudaDevice& device, std::span<const Tensor> parts);
absl::StatusOr<Tensor> SliceCuda(CudaDevice& device, const Tensor& source, int dim, int64_t begin,
                                 int64_t count);

}  // namespace quantgate
