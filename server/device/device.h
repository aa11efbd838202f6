// Device: one engine and the tensors that are kept in its memory. A server has one for every device
// that it serves (ServedDevice), a command has one; work goes to the device with the least work.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/engine/engine.h"
#include "server/device/description_reader.h"
#include "server/runs/resident_tensors.h"

namespace quantgate {

struct Device {
  /// `resident_bytes_max`: bound on the bytes of tensors that stay in the memory of a device with
  /// its own; 0 means half of that memory.
  Device(std::unique_ptr<Engine> engine_in, int64_t resident_bytes_max);
  virtual ~Device() = default;

  /// The number of jobs that wait for the device or run on it.
  virtual int waiting_and_running() const { return 0; }

  const std::unique_ptr<Engine> engine;
  const std::string id;  ///< "cpu", "cuda:0".
  DescriptionReader description;
  ResidentTensors resident;
};

using Devices = std::vector<std::unique_ptr<Device>>;

std::vector<DeviceDescription> DescribeDevices(const Devices& devices);

/// The device with the least work, the first among equals.
Device& LeastLoaded(const Devices& devices);

/// The least loaded device whose engine runs all of `arithmetics`. Where there is none, the error
/// says why the first device does not run them (Engine::CheckArithmetic).
absl::StatusOr<Device*> LeastLoadedWith(const Devices& devices,
                                        std::span<const Arithmetic> arithmetics);

/// The engines that `names` names: "cpu", "cuda" (every CUDA device), "cuda:N". INVALID_ARGUMENT
/// for another name, a device named twice or no device; UNIMPLEMENTED and FAILED_PRECONDITION as
/// CountCudaDevices.
absl::StatusOr<std::vector<std::unique_ptr<Engine>>> MakeEngines(std::span<const std::string> names,
                                                                 const CpuEngineOptions& cpu);

/// Checks after every job whether its device can still be trusted. Thread-safe.
class DeviceWatch {
 public:
  /// `on_lost` is called once, with the first loss; `on_out_of_memory` for every job that failed
  /// because a device with memory of its own had too little.
  DeviceWatch(std::function<void(const Device&, const absl::Status&)> on_lost,
              std::function<void(const Device&)> on_out_of_memory)
      : on_lost_(std::move(on_lost)), on_out_of_memory_(std::move(on_out_of_memory)) {}

  /// Returns `status`, that of a job which ran on `device`, or DATA_LOSS where the device was lost
  /// meanwhile: then the job's results cannot be trusted, whatever its status says.
  absl::Status Checked(const Device& device, absl::Status status);

 private:
  const std::function<void(const Device&, const absl::Status&)> on_lost_;
  const std::function<void(const Device&)> on_out_of_memory_;
  std::once_flag told_;
};

}  // namespace quantgate
