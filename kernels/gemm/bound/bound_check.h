// What AbsoluteGemm and CheckBound take from a GEMM's description, the same for both engines.
#pragma once

#include "absl/status/status.h"
#include "kernels/gemm/bound/error_bound.h"
#include "kernels/gemm/bound/error_bound_element.h"
#include "kernels/gemm/gemm.h"

namespace quantgate {

/// What AbsoluteGemm adds to magnitudes (exact.h): to an element, to a block scale, and to their
/// product.
struct AbsoluteFloors {
  double element = 0;
  double scale = 0;
  double product = 0;
};
AbsoluteFloors AbsoluteFloorsOf(const GemmOperand& operand, const Arithmetic& arithmetic);

AbsoluteScaling AbsoluteScalingOf(const GemmDesc& desc, const GemmShape& shape);

/// desc.d_scale and the amaxes, where there are any, are read: they are in host memory.
error_bound::ElementBound ElementBoundOf(const GemmDesc& desc, const ErrorBound& bound,
                                         DType subject_dtype);

/// INVALID_ARGUMENT unless subject and exact are what CheckBound compares.
absl::Status CheckComparands(const GemmShape& shape, const Tensor& subject, const Tensor& exact);

}  // namespace quantgate
