// cuBLASLt's algorithms by the attributes of their configuration, and the GEMMs that cuBLASLt on
// Hopper takes. Nothing here needs the library.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/gemm/gemm.h"

namespace quantgate {

/// One algorithm that the heuristic returns for a GEMM.
struct CublasLtAlgorithm {
  int index = 0;   ///< Place in the heuristic's order, the N of "cublaslt:algorithm=N".
  int id = 0;      ///< CUBLASLT_ALGO_CONFIG_ID.
  int tile = 0;    ///< CUBLASLT_ALGO_CONFIG_TILE_ID.
  int stages = 0;  ///< CUBLASLT_ALGO_CONFIG_STAGES_ID.
  /// CUBLASLT_ALGO_CONFIG_SPLITK_NUM; 0: not split, negative: the kernel decides.
  int split_k = 1;
  int reduction_scheme = 0;
  int swizzle = 0;
  int custom_option = 0;
  int inner_shape = 0;
  int cluster_shape = 0;
  size_t workspace_bytes = 0;

  /// "id=66 tile=20 stages=36 splitk=1 reduction=0 swizzle=0 custom=0 inner=0 cluster=3
  /// workspace=0".
  std::string ToString() const;
};

/// The only type of bias that cuBLASLt on sm_90 adds for operands and outputs of these types.
DType CublasLtBiasType(DType operand, DType out);

/// CheckGemm, and what cuBLASLt on sm_90 requires beyond it (docs/tensor-cores.md section 4).
/// UNIMPLEMENTED for formats, scalings and layouts that cuBLASLt does not have, INVALID_ARGUMENT
/// for dims and tensors that it does not take. A GEMM that passes may still have no algorithm.
absl::StatusOr<GemmShape> CheckCublasLtGemm(const GemmDesc& desc);

}  // namespace quantgate
