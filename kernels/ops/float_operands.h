// The parameters of kernels for tensors in device memory.
#pragma once

#include "kernels/ops/float_lanes_cuda.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

/// The encoding of f32, bf16 or f16.
inline NumberEncoding FloatEncoding(DType dtype) {
  return dtype == DType::kF32    ? NumberEncoding::kF32
         : dtype == DType::kBF16 ? NumberEncoding::kBF16
                                 : NumberEncoding::kF16;
}

/// The elements of a tensor to be read or written; null for an absent tensor.
inline FloatsIn FloatsOf(const Tensor& tensor) {
  if (!tensor.has_value()) return {};
  return {tensor.data(), FloatEncoding(tensor.dtype())};
}
inline FloatsOut WritableFloatsOf(Tensor& tensor) {
  if (!tensor.has_value()) return {};
  return {tensor.data(), FloatEncoding(tensor.dtype())};
}

}  // namespace quantgate
