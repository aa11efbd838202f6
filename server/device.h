// Device: one engine, the tensors that live with it, and the work that waits for it. A server has
// one for every device that it serves; work goes to the one with the least of it.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/engine/engine.h"
#include "server/description_reader.h"
#include "server/device_queue.h"
#include "server/runs/resident_tensors.h"
#include "server/server.h"

namespace quantgate {

struct Device {
  Device(std::unique_ptr<Engine> made, const ServerOptions& options);

  /// Of both queues together.
  int waiting_and_running() const;

  const std::unique_ptr<Engine> engine;
  const std::string id;  ///< "cpu", "cuda:0".
  DescriptionReader description;
  ResidentTensors resident;
  DeviceQueue run_queue;
  DeviceQueue call_queue;  ///< Unary calls, which do not wait behind runs.
};

using Devices = std::vector<std::unique_ptr<Device>>;

std::vector<DeviceDescription> DescribeDevices(const Devices& devices);

/// The device with the least work, the first among equals.
Device& LeastLoaded(const Devices& devices);

/// The least loaded of those whose engines run every one of `arithmetics`; without any, why the
/// first device does not (Engine::CheckArithmetic).
absl::StatusOr<Device*> LeastLoadedWith(const Devices& devices,
                                        std::span<const Arithmetic> arithmetics);

/// The engines that options.devices names: "cpu", "cuda" (every CUDA device), "cuda:N".
/// INVALID_ARGUMENT for another name or one twice, UNIMPLEMENTED and FAILED_PRECONDITION as
/// CountCudaDevices.
absl::StatusOr<std::vector<std::unique_ptr<Engine>>> MakeEngines(const ServerOptions& options);

}  // namespace quantgate
