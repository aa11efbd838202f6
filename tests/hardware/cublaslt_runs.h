// The engine's calls of cuBLASLt for programs at a GPU host: one device, errors that end the
// process.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/gemm/cublaslt/gemm_cublaslt.h"
#include "kernels/tensor/device/cuda_device.h"

namespace quantgate::hardware {

/// Ends the process where it is an error.
void Need(const absl::Status& status);
/// The value, or the end of the process.
template <typename T>
T Need(absl::StatusOr<T> value) {
  Need(value.status());
  return *std::move(value);
}

/// "NVIDIA H200 (sm_90), driver 580..., CUDA runtime 13.0, cuBLASLt 13.1.0".
std::string DeviceText();

class CublasLtRuns {
 public:
  CublasLtRuns();

  /// The GEMM's tensors in device memory, under cublaslt.
  GemmDesc Placed(const GemmDesc& gemm);

  /// At most `count` of what CublasLt::Algorithms gives under the desc's arithmetic. Where it gives
  /// none, the reason is in refusal().
  std::vector<CublasLtAlgorithm> Algorithms(const GemmDesc& placed, size_t count);
  const std::string& refusal() const { return refusal_; }

  /// Outputs in device memory, which held other bytes before as far as the pool gives it again.
  absl::StatusOr<GemmResult> Run(GemmDesc placed, const CublasLtAlgorithm& algorithm);

  CudaDevice& device() { return *device_; }

 private:
  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<CublasLt> cublaslt_;
  std::string refusal_;
};

}  // namespace quantgate::hardware
