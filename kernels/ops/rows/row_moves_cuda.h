// The operations of row_moves.h on a GPU; errors as there.
#pragma once

#include "kernels/ops/rows/row_moves.h"
#include "kernels/tensor/device/cuda_device.h"

namespace quantgate {

absl::StatusOr<Tensor> GatherRowsCuda(CudaDevice& device, const Tensor& source,
                                      std::span<const int64_t> rows);
absl::StatusOr<Tensor> ScaleRowsCuda(CudaDevice& device, const Tensor& source,
                                     const Tensor& factors);
absl::StatusOr<Tensor> SumRowsCuda(CudaDevice& device, const RowSums& sums);

}  // namespace quantgate
