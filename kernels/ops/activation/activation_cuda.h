// Activations (activation.h) on a GPU: the same bits. Operands are in device memory; results are,
// and are written once the device's stream gets there. Errors as on the CPU, and those of
// CudaDevice.
#pragma once

#include "absl/status/statusor.h"
#include "kernels/ops/activation/activation.h"
#include "kernels/tensor/device/cuda_device.h"
#include "kernels/tensor/tensor_kernels_cuda.h"

namespace quantgate {

/// As ActivationForwardCpu.
absl::StatusOr<Tensor> ActivationForwardCuda(CudaDevice& device, const Tensor& h,
                                             const ActivationOptions& options, DType out,
                                             KernelPath path = KernelPath::kTuned);
/// As ActivationBackwardCpu.
absl::StatusOr<Tensor> ActivationBackwardCuda(CudaDevice& device, const Tensor& dy, const Tensor& h,
                                              const ActivationOptions& options, DType out,
                                              KernelPath path = KernelPath::kTuned);

}  // namespace quantgate
