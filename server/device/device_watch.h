// DeviceWatch: after every job, whether its device can still be trusted. Thread-safe.
#pragma once

#include <functional>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "server/device/device.h"

namespace quantgate {

class DeviceWatch {
 public:
  /// `on_lost` is called once, with the first loss; `on_out_of_memory` for every job that failed
  /// because a device with memory of its own had too little.
  DeviceWatch(std::function<void(const Device&, const absl::Status&)> on_lost,
              std::function<void(const Device&)> on_out_of_memory)
      : on_lost_(std::move(on_lost)), on_out_of_memory_(std::move(on_out_of_memory)) {}

  /// `status` of a job that ran on `device`, or DATA_LOSS where the device was lost meanwhile: what
  /// the job computed cannot be vouched for then, whatever it says itself.
  absl::Status Checked(const Device& device, absl::Status status);

 private:
  const std::function<void(const Device&, const absl::Status&)> on_lost_;
  const std::function<void(const Device&)> on_out_of_memory_;
  std::once_flag told_;
};

}  // namespace quantgate
