// ServiceContext: the long-lived objects that every RPC works with. Owned by the server, which
// outlives the calls.
#pragma once

#include <atomic>

#include "server/device/device_watch.h"
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
  Executor& executor;   ///< Conversion, checks, the database.
  Executor& storing;    ///< One thread: what runs tell and store, in order.
  Executor& transfers;  ///< Hashing and disk of uploads and downloads.
  Metrics& metrics;
  CallRegistry& calls;
  std::atomic<bool>& is_draining;
  std::atomic<int64_t>& upload_bytes_in_flight;
  SendBudget& send_budget;
};

}  // namespace quantgate
