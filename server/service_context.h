// ServiceContext: the long-lived objects that every RPC works with. Owned by the server, which
// outlives the calls.
#pragma once

#include <atomic>

#include "kernels/engine/engine.h"
#include "server/device_queue.h"
#include "server/executor.h"
#include "server/metrics.h"
#include "server/server.h"
#include "server/store/blob_store.h"
#include "server/store/run_store.h"
#include "server/store/tensor_store.h"
#include "server/tensor_loader.h"

namespace quantgate {

class CallRegistry;

struct ServiceContext {
  const ServerOptions& options;
  Engine& engine;
  BlobStore& blobs;
  TensorStore& tensors;
  RunStore& run_store;
  TensorLoader& loader;
  DeviceQueue& run_queue;
  DeviceQueue& call_queue;  ///< Unary calls to the engine, which do not wait behind runs.
  Executor& executor;       ///< Conversion, checks, the database.
  Executor& transfers;      ///< Hashing and disk of uploads and downloads.
  Metrics& metrics;
  CallRegistry& calls;
  std::atomic<bool>& is_draining;
  std::atomic<int64_t>& upload_bytes_in_flight;
};

}  // namespace quantgate
