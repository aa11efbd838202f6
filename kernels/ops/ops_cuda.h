// The operations of this folder on a GPU, which give the same bytes as on the CPU: FooCuda is what
// the named header calls FooCpu. Operands and results are in device memory; results are written
// when the device's stream gets there. Errors are those of the CPU functions and of CudaDevice.
#pragma once

#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/ops/activation/activation.h"
#include "kernels/ops/attention/attention.h"
#include "kernels/ops/elementwise/elementwise.h"
#include "kernels/ops/norm/norm.h"
#include "kernels/ops/optimizer/optimizer.h"
#include "kernels/ops/reduction/ordered_reduction.h"
#include "kernels/ops/rows/row_moves.h"
#include "kernels/tensor/device/cuda_device.h"
#include "kernels/tensor/tensor_kernels_cuda.h"

namespace quantgate {

// As in activation.h:
absl::StatusOr<Tensor> ActivationForwardCuda(CudaDevice& device, const Tensor& h,
                                             const ActivationOptions& options, DType out,
                                             KernelPath path = KernelPath::kTuned);
absl::StatusOr<Tensor> ActivationBackwardCuda(CudaDevice& device, const Tensor& dy, const Tensor& h,
                                              const ActivationOptions& options, DType out,
                                              KernelPath path = KernelPath::kTuned);

// As in attention.h:
absl::StatusOr<Tensor> SwapDimsCuda(CudaDevice& device, const Tensor& source);
absl::StatusOr<Tensor> RotateCuda(CudaDevice& device, const RotaryDesc& desc);
absl::StatusOr<SoftmaxResult> SoftmaxForwardCuda(CudaDevice& device, const SoftmaxDesc& desc,
                                                 KernelPath path = KernelPath::kTuned);
absl::StatusOr<Tensor> SoftmaxBackwardCuda(CudaDevice& device, const SoftmaxBackwardDesc& desc,
                                           KernelPath path = KernelPath::kTuned);

// As in elementwise.h:
absl::StatusOr<Tensor> AddCuda(CudaDevice& device, const Tensor& a, const Tensor& b, DType out);
absl::StatusOr<Tensor> ScaleCuda(CudaDevice& device, const Tensor& x, float factor, DType out);
absl::StatusOr<Tensor> ConcatenateRowsCuda(CudaDevice& device, std::span<const Tensor> parts);
absl::StatusOr<Tensor> ConcatenateColumnsCuda(CudaDevice& device, std::span<const Tensor> parts);
absl::StatusOr<Tensor> SliceCuda(CudaDevice& device, const Tensor& source, int dim, int64_t begin,
                                 int64_t count);

// As in norm.h:
absl::StatusOr<NormForwardResult> NormForwardCuda(CudaDevice& device, const NormForwardDesc& desc);
absl::StatusOr<NormGradients> NormBackwardCuda(CudaDevice& device, const NormBackwardDesc& desc);

// As in optimizer.h:
absl::StatusOr<AdamResult> AdamStepCuda(CudaDevice& device, const AdamDesc& desc);
absl::StatusOr<SgdResult> SgdStepCuda(CudaDevice& device, const SgdDesc& desc);
absl::StatusOr<SplitTensor> SplitMasterCuda(CudaDevice& device, const Tensor& master);
absl::StatusOr<Tensor> JoinMasterCuda(CudaDevice& device, const SplitTensor& split);

// As in ordered_reduction.h:
absl::StatusOr<Tensor> OrderedSumCuda(CudaDevice& device, std::span<const Tensor> parts_in_order,
                                      SumAccumulation accumulation, DType out);
absl::Status OrderedSumToCuda(CudaDevice& device, std::span<const Tensor> parts_in_order,
                              SumAccumulation accumulation, const Tensor& to);
absl::StatusOr<Tensor> MaximumCuda(CudaDevice& device, std::span<const Tensor> parts);

// As in row_moves.h:
absl::StatusOr<Tensor> GatherRowsCuda(CudaDevice& device, const Tensor& source,
                                      std::span<const int64_t> rows);
absl::StatusOr<Tensor> ScaleRowsCuda(CudaDevice& device, const Tensor& source,
                                     const Tensor& factors);
absl::StatusOr<Tensor> SumRowsCuda(CudaDevice& device, const RowSums& sums);

}  // namespace quantgate
