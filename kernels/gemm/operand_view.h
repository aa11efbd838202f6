// One GEMM operand whatever its layout: rows (m or n) by k, with strides in elements.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/gemm/gemm.h"

namespace quantgate {

struct OperandView {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t k = 0;
  int64_t row_stride = 0;  ///< Elements between (row, k) and (row + 1, k).
  int64_t k_stride =
      0;  ///< Elements between (row, k) and (row, k + 1); one of the two strides is 1.

  template <typename Storage>
  const Storage* at(int64_t row, int64_t k_index) const {
    return reinterpret_cast<const Storage*>(data) + row * row_stride + k_index * k_stride;
  }
};

/// desc.a as m rows of k, and desc.b as n rows of k. The desc must have passed CheckGemm.
OperandView ViewOfA(const GemmDesc& desc, const GemmShape& shape);
OperandView ViewOfB(const GemmDesc& desc, const GemmShape& shape);

}  // namespace quantgate
