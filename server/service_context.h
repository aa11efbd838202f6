// ServiceContext: the long-lived objects that every RPC works with. Owned by the server, which
// outlives the calls.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "server/device/device.h"
#include "server/device/device_queue.h"
#include "server/executor.h"
#include "server/metrics/metrics.h"
#include "server/net/send_budget.h"
#include "server/runs/call_context.h"
#include "server/server.h"
#include "server/store/blob_store.h"
#include "server/store/run_store.h"

namespace quantgate {

class CallRegistry;

struct ServiceContext : CallContext {
  const ServerOptions& options;
  DeviceWatch& watch;
  BlobStore& blob_store;
  RunStore& run_store;
  Executor& executor;   ///< For conversion, checks and the database.
  Executor& storing;    ///< One thread, which publishes and stores the events of runs in order.
  Executor& transfers;  ///< For the hashing and the disk of uploads and downloads.
  Metrics& metrics;
  CallRegistry& calls;
  std::atomic<bool>& is_draining;
  std::atomic<int64_t>& upload_bytes_in_flight;
  SendBudget& send_budget;
};

/// A device of a server, with the queues of the jobs that wait for it.
struct ServedDevice : Device {
  ServedDevice(std::unique_ptr<Engine> engine_in, const ServerOptions& options)
      : Device(std::move(engine_in), options.resident_bytes_max),
        run_queue(DeviceQueue::Options{"runs", options.queue_workers, options.queue_capacity}),
        call_queue(DeviceQueue::Options{"calls", 1, kUnaryQueueCapacity}) {}

  int waiting_and_running() const override {
    return run_queue.depth() + run_queue.running() + call_queue.depth() + call_queue.running();
  }

  DeviceQueue run_queue;
  DeviceQueue call_queue;  ///< Unary calls, which do not wait behind runs.
};

/// Casts a device of a server, all of which are ServedDevices.
inline ServedDevice& Served(Device& device) { return static_cast<ServedDevice&>(device); }

}  // namespace quantgate
