// An algorithm of cuBLASLt by the attributes of its configuration, and the GEMMs that cuBLASLt on
// Hopper takes: what can be said of cuBLASLt without it.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/gemm/gemm.h"

namespace quantgate {

/// One algorithm that the heuristic returns for a GEMM.
struct CublasLtAlgorithm {
  int index = 0;   ///< In the order of the heuristic; what "cublaslt:algorithm=N" names.
  int id = 0;      ///< CUBLASLT_ALGO_CONFIG_ID.
  int tile = 0;    ///< CUBLASLT_ALGO_CONFIG_TILE_ID.
  int stages = 0;  ///< CUBLASLT_ALGO_CONFIG_STAGES_ID.
  /// CUBLASLT_ALGO_CONFIG_SPLITK_NUM; 0: not split, negative: as the kernel likes.
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

/// The one type of bias that cuBLASLt on sm_90 adds to such outputs of such operands.
DType CublasLtBiasType(DType operand, DType out);

/// CheckGemm, and what cuBLASLt on sm_90 asks beyond it (docs/tensor-cores.md section 4).
/// UNIMPLEMENTED for formats, scalings and layouts that it does not have, INVALID_ARGUMENT for dims
/// and tensors that it does not take. What passes may still have no algorithm.
absl::StatusOr<GemmShape> CheckCublasLtGemm(const GemmDesc& desc);

}  // namespace quantgate
