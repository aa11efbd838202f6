// From a run-time dtype to a compile-time format.
#pragma once

#include "kernels/numerics/float_format.h"
#include "kernels/tensor/dtype.h"

namespace quantgate {

/// visit(Format()) for the operand dtypes of a GEMM: f32, bf16, f16, f8_e4m3, f8_e5m2.
template <class Visitor>
auto VisitFormat(DType dtype, Visitor visit) {
  switch (dtype) {
    case DType::kBF16:
      return visit(BFloat16());
    case DType::kF16:
      return visit(Float16());
    case DType::kF8E4M3:
      return visit(E4M3());
    case DType::kF8E5M2:
      return visit(E5M2());
    default:
      return visit(Float32());
  }
}

}  // namespace quantgate
