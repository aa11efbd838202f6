// What the CPU engine does to single tensors (generate.h, convert.h, column_sums.h, fingerprint.h),
// on a GPU: the same bytes. Inputs are in device memory; results are, and are written once the
// device's stream gets there. Errors as on the CPU, and those of CudaDevice.
#pragma once

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/tensor/device/cuda_device.h"
#include "kernels/tensor/generate/generate.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

absl::StatusOr<Tensor> GenerateCuda(CudaDevice& device, const GeneratorSpec& spec);

/// As CastTensor.
absl::StatusOr<Tensor> CastTensorCuda(CudaDevice& device, const Tensor& tensor, DType out);

/// As Transpose2d.
absl::StatusOr<Tensor> Transpose2dCuda(CudaDevice& device, const Tensor& tensor);

/// As ColumnSums.
absl::StatusOr<Tensor> ColumnSumsCuda(CudaDevice& device, const Tensor& tensor, DType out);

/// Of each tensor i64 [2] in device memory: Fingerprint::high and ::low. All are in one block of
/// memory, in order.
absl::StatusOr<std::vector<Tensor>> FingerprintsCuda(CudaDevice& device,
                                                     std::span<const Tensor> tensors);

}  // namespace quantgate
