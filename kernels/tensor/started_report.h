// A report that a device is still making: its results, and what the host makes of them.
#pragma once

#include <cstddef>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/device/cuda_device.h"

namespace quantgate {

template <typename Report>
struct StartedReport {
  CudaDevice::PendingRead results;
  /// Takes their bytes; null where there are none.
  absl::AnyInvocable<absl::StatusOr<Report>(const std::byte* results) &&> finish;
};

/// The report, after a wait for the stream.
template <typename Report>
absl::StatusOr<Report> ReadReport(CudaDevice& device,
                                  absl::StatusOr<StartedReport<Report>> started) {
  QG_RETURN_IF_ERROR(started.status());
  QG_RETURN_IF_ERROR(device.FinishRead(started->results));
  return std::move(started->finish)(started->results.bytes.get());
}

}  // namespace quantgate
