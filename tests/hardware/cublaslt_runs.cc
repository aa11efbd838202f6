#include "tests/hardware/cublaslt_runs.h"

#include <cublasLt.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>

#include "kernels/base/cuda_status.h"
#include "kernels/gemm/gemm.h"

namespace quantgate::hardware {
namespace {

std::string DriverVersion() {
  std::ifstream file("/proc/driver/nvidia/version");
  for (std::string word; file >> word;) {
    if (word.find('.') != std::string::npos) return word;
  }
  return "unknown";
}

/// Fills the memory that the next tensor of this size is likely to get.
absl::Status Stain(CudaDevice& device, DType dtype, const Shape& shape) {
  QG_ASSIGN_OR_RETURN(Tensor stained, device.Allocate(dtype, shape));
  return QG_CUDA_STATUS(
      cudaMemsetAsync(stained.data(), 0xA5, stained.byte_size(), device.stream()));
}

}  // namespace

void Need(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << status << "\n";
  std::exit(1);
}

std::string DeviceText() {
  const std::unique_ptr<CudaDevice> device = Need(CudaDevice::Open(0));
  const CudaDeviceFacts& facts = device->facts();
  const size_t lt = cublasLtGetVersion();
  std::ostringstream text;
  text << facts.name << " (sm_" << facts.major << facts.minor << "), driver " << DriverVersion()
       << ", CUDA runtime " << facts.runtime_version / 1000 << "."
       << facts.runtime_version % 1000 / 10 << ", cuBLASLt " << lt / 10000 << "." << lt / 100 % 100
       << "." << lt % 100;
  return text.str();
}

CublasLtRuns::CublasLtRuns()
    : device_(Need(CudaDevice::Open(0))), cublaslt_(Need(CublasLt::Create(*device_))) {}

GemmDesc CublasLtRuns::Placed(const GemmDesc& gemm) {
  GemmDesc placed =
      Need(WithTensors(gemm, [&](const Tensor& tensor) { return device_->ToDevice(tensor); }));
  placed.arithmetic = Arithmetic();
  placed.arithmetic.family = ArithmeticFamily::kCublasLt;
  return placed;
}

std::vector<CublasLtAlgorithm> CublasLtRuns::Algorithms(const GemmDesc& placed, size_t count) {
  absl::StatusOr<std::vector<CublasLtAlgorithm>> algorithms = cublaslt_->Algorithms(placed);
  if (!algorithms.ok()) {
    refusal_ = algorithms.status().ToString();
    return {};
  }
  if (algorithms->size() > count) algorithms->resize(count);
  return *std::move(algorithms);
}

absl::StatusOr<GemmResult> CublasLtRuns::Run(GemmDesc placed, const CublasLtAlgorithm& algorithm) {
  QG_ASSIGN_OR_RETURN(const GemmShape shape, cublaslt_->Check(placed));
  QG_RETURN_IF_ERROR(Stain(*device_, placed.out_dtype, {shape.m, shape.n}));
  placed.arithmetic.algorithm = algorithm.index;
  return cublaslt_->Gemm(placed, nullptr);
}

}  // namespace quantgate::hardware
