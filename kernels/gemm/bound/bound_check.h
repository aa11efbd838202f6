// The inputs of AbsoluteGemm and CheckBound from a GEMM's description, shared by both engines.
#pragma once

#include "absl/status/status.h"
#include "kernels/gemm/bound/error_bound.h"
#include "kernels/gemm/bound/error_bound_element.h"
#include "kernels/gemm/gemm.h"

namespace quantgate {

/// What AbsoluteGemm (exact.h) adds to the magnitudes of an element, of a block scale and of their
/// product.
struct AbsoluteFloors {
  double element = 0;
  double scale = 0;
  double product = 0;
};
AbsoluteFloors AbsoluteFloorsOf(const GemmOperand& operand, const Arithmetic& arithmetic);

AbsoluteScaling AbsoluteScalingOf(const GemmDesc& desc, const GemmShape& shape);

/// Reads desc.d_scale and the amaxes where they are present, so these must be in host memory.
error_bound::ElementBound ElementBoundOf(const GemmDesc& desc, const ErrorBound& bound,
                                         DType subject_dtype);

/// INVALID_ARGUMENT unless CheckBound can compare these: both [m][n], exact f32, subject a
/// floating-point dtype.
absl::Status CheckComparands(const GemmShape& shape, const Tensor& subject, const Tensor& exact);

}  // namespace quantgate
