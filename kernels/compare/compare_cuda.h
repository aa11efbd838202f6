// The comparisons of parity_report.h and error_report.h on a GPU, which give the same reports.
// Tensors are in device memory. Errors are those of the CPU's functions and of CudaDevice.
#pragma once

#include "absl/status/statusor.h"
#include "kernels/compare/error_report.h"
#include "kernels/compare/parity_report.h"
#include "kernels/tensor/device/cuda_device.h"

namespace quantgate {

/// Waits for the report.
absl::StatusOr<NearerReport> MeasureNearerCuda(CudaDevice& device, const Tensor& subject,
                                               const Tensor& reference, const Tensor& truth);

// Each begins the comparison and does not wait; the tensors may be dropped at once.
absl::StatusOr<StartedReport<ParityReport>> StartCompareBitsCuda(CudaDevice& device,
                                                                 const Tensor& subject,
                                                                 const Tensor& reference);
absl::StatusOr<StartedReport<ErrorReport>> StartMeasureErrorCuda(CudaDevice& device,
                                                                 const Tensor& subject,
                                                                 const Tensor& reference);

/// The same comparisons by one form of their kernels (compare_kernels_cuda.h), for tests that
/// compare the forms. Each call waits for its report.
enum class ComparePath;
absl::StatusOr<ParityReport> CompareBitsOnPath(CudaDevice& device, const Tensor& subject,
                                               const Tensor& reference, ComparePath path);
absl::StatusOr<ErrorReport> MeasureErrorOnPath(CudaDevice& device, const Tensor& subject,
                                               const Tensor& reference, ComparePath path);

}  // namespace quantgate
