// Tensors of device memory as kernels take them.
#pragma once

#include "kernels/ops/float_lanes_cuda.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

/// Of f32, bf16 and f16.
inline NumberEncoding FloatEncoding(DType dtype) {
  return dtype == DType::kF32    ? NumberEncoding::kF32
         : dtype == DType::kBF16 ? NumberEncoding::kBF16
                                 : NumberEncoding::kF16;
}

/// Null for an absent tensor.
inline FloatsIn FloatsOf(const Tensor& tensor) {
  if (!tensor.has_value()) return {};
  return {tensor.data(), FloatEncoding(tensor.dtype())};
}
inline FloatsOut WritableFloatsOf(Tensor& tensor) {
  if (!tensor.has_value()) return {};
  return {tensor.data(), FloatEncoding(tensor.dtype())};
}

}  // namespace quantgate
