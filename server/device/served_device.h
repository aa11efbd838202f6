// ServedDevice: a device with the work that waits for it.
#pragma once

#include <memory>
#include <utility>

#include "server/device/device.h"
#include "server/device/device_queue.h"
#include "server/server.h"

namespace quantgate {

struct ServedDevice : Device {
  ServedDevice(std::unique_ptr<Engine> made, const ServerOptions& options)
      : Device(std::move(made), options.resident_bytes_max),
        run_queue(DeviceQueue::Options{"runs", options.queue_workers, options.queue_capacity}),
        call_queue(DeviceQueue::Options{"calls", 1, kUnaryQueueCapacity}) {}

  int waiting_and_running() const override {
    return run_queue.depth() + run_queue.running() + call_queue.depth() + call_queue.running();
  }

  DeviceQueue run_queue;
  DeviceQueue call_queue;  ///< Unary calls, which do not wait behind runs.
};

/// A server's devices are all served.
inline ServedDevice& Served(Device& device) { return static_cast<ServedDevice&>(device); }

}  // namespace quantgate
