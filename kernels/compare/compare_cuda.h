// The comparisons of parity_report.h and error_report.h on a GPU: the same reports, reduced there.
// Tensors are in device memory. Errors as on the CPU, and those of CudaDevice.
#pragma once

#include "absl/status/statusor.h"
#include "kernels/compare/error_report.h"
#include "kernels/compare/parity_report.h"
#include "kernels/tensor/device/cuda_device.h"
#include "kernels/tensor/started_report.h"

namespace quantgate {

/// Waits for its report.
absl::StatusOr<NearerReport> MeasureNearerCuda(CudaDevice& device, const Tensor& subject,
                                               const Tensor& reference, const Tensor& truth);

// Begun only: the tensors may be dropped.
absl::StatusOr<StartedReport<ParityReport>> StartCompareBitsCuda(CudaDevice& device,
                                                                 const Tensor& subject,
                                                                 const Tensor& reference);
absl::StatusOr<StartedReport<ErrorReport>> StartMeasureErrorCuda(CudaDevice& device,
                                                                 const Tensor& subject,
                                                                 const Tensor& reference);

}  // namespace quantgate
