// DeviceWatch: after every job, whether its device can still be trusted. Thread-safe.
#pragma once

#include <functional>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "server/device.h"

namespace quantgate {

class DeviceWatch {
 public:
  /// `on_lost` is called once, with the first loss.
  explicit DeviceWatch(std::function<void(const Device&, const absl::Status&)> on_lost)
      : on_lost_(std::move(on_lost)) {}

  /// `status` of a job that ran on `device`, or DATA_LOSS where the device was lost meanwhile: what
  /// the job computed cannot be vouched for then, whatever it says itself.
  absl::Status Checked(const Device& device, absl::Status status);

 private:
  const std::function<void(const Device&, const absl::Status&)> on_lost_;
  std::once_flag told_;
};

}  // namespace quantgate
