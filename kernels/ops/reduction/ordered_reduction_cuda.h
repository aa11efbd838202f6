// Reductions over the tensors of several ranks (ordered_reduction.h) on a GPU: the same bytes.
// Operands are in device memory; results are, and are written once the device's stream gets there.
// Errors as on the CPU, and those of CudaDevice.
#pragma once

#include <span>

#include "absl/status/statusor.h"
#include "kernels/ops/reduction/ordered_reduction.h"
#include "kernels/tensor/device/cuda_device.h"

namespace quantgate {

absl::StatusOr<Tensor> OrderedSumCuda(CudaDevice& device, std::span<const Tensor> parts_in_order,
                                      SumAccumulation accumulation, DType out);
absl::Status OrderedSumToCuda(CudaDevice& device, std::span<const Tensor> parts_in_order,
                              SumAccumulation accumulation, const Tensor& to);
absl::StatusOr<Tensor> MaximumCuda(CudaDevice& device, std::span<const Tensor> parts);

}  // namespace quantgate
