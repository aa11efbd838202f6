#include "kernels/gemm/cublaslt/hardware_check_cuda.h"

#include <utility>

namespace quantgate {

HardwareCheckSides CudaSides(CudaDevice& device, CublasLt& cublaslt,
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
