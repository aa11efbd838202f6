// The sides of CheckHardware on a device.
#pragma once

#include <functional>
#include <utility>

#include "kernels/base/execution.h"
#include "kernels/gemm/cublaslt/gemm_cublaslt.h"
#include "kernels/gemm/cublaslt/hardware_check.h"
#include "kernels/tensor/device/cuda_device.h"

namespace quantgate {

/// cuBLASLt on `device` against `model`, which takes descs whose tensors are in the device's
/// memory. All arguments must outlive the result.
inline HardwareCheckSides CudaSides(
    CudaDevice& device, CublasLt& cublaslt,
    std::function<absl::StatusOr<GemmResult>(const GemmDesc&)> model,
    const Cancellation* cancellation) {
  HardwareCheckSides sides;
  sides.place = [&device, cancellation](const Tensor& tensor) {
    return device.ToDevice(tensor, cancellation);
  };
  sides.to_host = [&device, cancellation](const Tensor& tensor) {
    return device.ToHost(tensor, cancellation);
  };
  sides.algorithms = [&cublaslt](const GemmDesc& desc) { return cublaslt.Algorithms(desc); };
  sides.hardware = [&cublaslt, cancellation](const GemmDesc& desc) {
    return cublaslt.Gemm(desc, cancellation);
  };
  sides.model = std::move(model);
  return sides;
}

}  // namespace quantgate
