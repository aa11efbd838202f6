// cuBLASLt: the hardware's own GEMM, the subject under test. The only file that knows cublasLt.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/cancellation.h"
#include "kernels/gemm/gemm.h"
#include "kernels/tensor/cuda_device.h"

namespace quantgate {

/// One algorithm that the heuristic returns for a GEMM.
struct CublasLtAlgorithm {
  int index = 0;    ///< In the order of the heuristic; what "cublaslt:algorithm=N" names.
  int id = 0;       ///< CUBLASLT_ALGO_CONFIG_ID.
  int tile = 0;     ///< CUBLASLT_ALGO_CONFIG_TILE_ID.
  int stages = 0;   ///< CUBLASLT_ALGO_CONFIG_STAGES_ID.
  int split_k = 1;  ///< CUBLASLT_ALGO_CONFIG_SPLITK_NUM.
  int reduction_scheme = 0;
  int swizzle = 0;
  int custom_option = 0;
  size_t workspace_bytes = 0;

  /// "id=66 tile=20 stages=36 splitk=1 reduction=0 swizzle=0 custom=0 workspace=0".
  std::string ToString() const;
};

class CublasLt {
 public:
  /// `device` must outlive it.
  static absl::StatusOr<std::unique_ptr<CublasLt>> Create(CudaDevice& device);
  ~CublasLt();

  /// "13.1.0".
  const std::string& version() const { return version_; }

  /// INVALID_ARGUMENT or UNIMPLEMENTED by name for a desc that cuBLASLt on this device does not
  /// take: alignments, formats, scalings; CheckGemm included.
  absl::StatusOr<GemmShape> Check(const GemmDesc& desc) const;

  /// Every algorithm that the heuristic returns for a desc, its first choice first. Cached per
  /// desc's shape and types. Without desc.arithmetic.any_split_k, only those that do not split K.
  absl::StatusOr<std::vector<CublasLtAlgorithm>> Algorithms(const GemmDesc& desc);

  /// d by desc.arithmetic.algorithm, or the heuristic's first choice. Operands are in device
  /// memory. result.arithmetic is "cublaslt:fast", with "splitk=N" where it split K; result.note
  /// is the algorithm's ToString().
  absl::StatusOr<GemmResult> Gemm(const GemmDesc& desc, const Cancellation* cancellation);

 private:
  struct State;
  explicit CublasLt(CudaDevice& device);
  CudaDevice& device_;
  std::unique_ptr<State> state_;
  std::string version_;
};

}  // namespace quantgate
