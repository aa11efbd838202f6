// What cuBLASLt calls a dtype.
#pragma once

#include <library_types.h>

#include "kernels/tensor/dtype.h"

namespace quantgate {

/// Of the types that Hopper's GEMMs take or give: f32, bf16, f16, f8_e4m3, f8_e5m2. Callers have
/// refused all others.
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

}  // namespace quantgate
