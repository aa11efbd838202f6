// The comparisons of compare_cuda.h by a given form of their kernels, for tests that compare the
// forms. Each call waits for its report.
#pragma once

#include "kernels/compare/compare_cuda.h"
#include "kernels/compare/compare_kernels_cuda.h"

namespace quantgate {

absl::StatusOr<ParityReport> CompareBitsOnPath(CudaDevice& device, const Tensor& subject,
                                               const Tensor& reference, ComparePath path);

absl::StatusOr<ErrorReport> MeasureErrorOnPath(CudaDevice& device, const Tensor& subject,
                                               const Tensor& reference, ComparePath path);

}  // namespace quantgate
