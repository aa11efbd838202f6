// cuBLASLt: the hardware's own GEMM, the subject under test. gemm_cublaslt.cc is the only file that
// includes cublasLt.h.
#pragma once

#include <library_types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/gemm/cublaslt/cublaslt_algorithm.h"
#include "kernels/gemm/gemm.h"
#include "kernels/tensor/device/cuda_device.h"

namespace quantgate {

/// What cuBLASLt calls a dtype that Hopper's GEMMs take or give: f32, bf16, f16, f8_e4m3 or
/// f8_e5m2. Callers have refused all others.
inline cudaDataType_t CudaDataTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kF16:
      return CUDA_R_16F;
    case DType::kF8E4M3:
      return CUDA_R_8F_E4M3;
    case DType::kF8E5M2:
      return CUDA_R_8F_E5M2;
    default:
      return CUDA_R_32F;
  }
}

/// Not thread-safe, like CudaDevice. Descs must have arithmetic.family kCublasLt and their tensors
/// in device memory; scales and biases are read there, so nothing waits for the stream.
class CublasLt {
 public:
  /// `device` must outlive it. Takes 64 MiB of the device's memory as workspace.
  static absl::StatusOr<std::unique_ptr<CublasLt>> Create(CudaDevice& device);
  ~CublasLt();

  /// "13.1.0".
  const std::string& version() const { return version_; }

  /// As CheckCublasLtGemm, and INVALID_ARGUMENT for a tensor in host memory.
  absl::StatusOr<GemmShape> Check(const GemmDesc& desc) const;

  /// Every algorithm that the heuristic returns for a desc, its first choice first. The answer is
  /// cached by types, shape, epilogue and alignment.
  /// - By default, the algorithms that do not split K (reduction schemes forbidden); where the
  ///   heuristic has none, those that it returns with split-K, configured not to split.
  /// - With arithmetic.any_split_k, those with any reduction scheme.
  /// - With arithmetic.split_k > 1, those with as many slices, added in fp32: first as the
  ///   heuristic returns them, then its others, configured to split K where they can.
  /// UNIMPLEMENTED where there is none. Empty for m = 0.
  absl::StatusOr<std::vector<CublasLtAlgorithm>> Algorithms(const GemmDesc& desc);

  /// Computes d by the algorithm with index desc.arithmetic.algorithm in Algorithms.
  /// result.arithmetic is "cublaslt" with the accumulation that the operands decide and the slices
  /// ("cublaslt:fast,splitk=3"); result.note is the algorithm's ToString(). Operands that are not
  /// aligned to 16 bytes are copied first, since FP8 needs that and other types have other kernels
  /// without it; so is c where d takes its memory.
  absl::StatusOr<GemmResult> Gemm(const GemmDesc& desc, const Cancellation* cancellation);

 private:
  struct State;
  explicit CublasLt(CudaDevice& device);
  CudaDevice& device_;
  std::unique_ptr<State> state_;
  std::string version_;
};

}  // namespace quantgate
