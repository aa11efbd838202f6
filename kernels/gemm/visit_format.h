// From a run-time dtype to a compile-time format.
#pragma once

#include "kernels/numerics/float_format.h"
#include "kernels/tensor/dtype.h"

namespace quantgate {

/// visit(Format()) for the operand dtypes of a GEMM; of kF4E2M1x2, for its single codes.
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
    case DType::kF6E2M3:
      return visit(E2M3());
    case DType::kF6E3M2:
      return visit(E3M2());
    case DType::kF4E2M1x2:
      return visit(E2M1());
    default:
      return visit(Float32());
  }
}

/// FP6 and FP4: every code is finite.
inline bool IsFp6OrFp4(DType dtype) {
  return dtype == DType::kF6E2M3 || dtype == DType::kF6E3M2 || dtype == DType::kF4E2M1x2;
}

}  // namespace quantgate
