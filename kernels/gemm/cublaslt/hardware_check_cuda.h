// CheckHardware on a device.
#pragma once

#include "kernels/base/cancellation.h"
#include "kernels/gemm/cublaslt/gemm_cublaslt.h"
#include "kernels/gemm/cublaslt/hardware_check.h"
#include "kernels/tensor/device/cuda_device.h"

namespace quantgate {

/// cuBLASLt on `device` against `model`, which takes descs whose tensors are there. All of the
/// arguments must outlive the result.
HardwareCheckSides CudaSides(CudaDevice& device, CublasLt& cublaslt,
                             std::function<absl::StatusOr<GemmResult>(const GemmDesc&)> model,
                             const Cancellation* cancellation);

}  // namespace quantgate
