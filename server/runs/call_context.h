// CallContext: what calls, runs and sessions work with, whoever serves them: a server over gRPC, or
// a command in its own process.
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "kernels/base/cancellation.h"
#include "kernels/comm/group/transport.h"
#include "server/device/device.h"
#include "server/runs/run_statistics.h"
#include "server/runs/tensor_loader.h"
#include "server/tensor_source.h"

namespace quantgate {

class HardwareChecks;
class SessionStore;

/// The objects outlive the calls.
struct CallContext {
  int64_t tensor_bytes_max;  ///< Of one tensor that a request makes or names.
  CpuEngineOptions host;     ///< What the host computes itself is computed so.
  Devices& devices;
  Blobs& blobs;
  Tensors& tensors;
  TensorLoader& loader;
  SessionStore& sessions;
  HardwareChecks& hardware_checks;
  const RankSetting& ranks;
  RunStatistics& statistics;
};

/// What a call asks of the engine, once it is known to be valid.
struct DeviceWork {
  std::string recipe;  ///< Base name for metrics; empty for operations without.
  absl::AnyInvocable<absl::Status(Device&, const Cancellation&) &&> run;
  Device* device = nullptr;  ///< Where it must run; null: anywhere.
};

}  // namespace quantgate
