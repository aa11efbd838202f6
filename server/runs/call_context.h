// CallContext: the objects that calls, runs and sessions work with, in a server and in a command
// that computes in its own process.
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "kernels/base/execution.h"
#include "kernels/comm/group/transport.h"
#include "kernels/validate/diagnosis/diagnosis.h"
#include "server/device/device.h"
#include "server/runs/run_statistics.h"
#include "server/runs/tensor_loader.h"
#include "server/store_interfaces.h"

namespace quantgate {

class HardwareChecks;
class SessionStore;

/// The objects outlive the calls.
struct CallContext {
  int64_t tensor_bytes_max;  ///< Bytes of a tensor that a request makes or names.
  CpuEngineOptions host;     ///< Threads and instruction set for what the host computes itself.
  Devices& devices;
  Blobs& blobs;
  Tensors& tensors;
  TensorLoader& loader;
  SessionStore& sessions;
  HardwareChecks& hardware_checks;
  const RankSetting& ranks;
  RunStatistics& statistics;
  DiagnosisBudget::Clock clock = SteadyNow;  ///< Of the time that a trace's diagnoses may take.
};

/// The work of a valid request, for a device.
struct DeviceWork {
  std::string recipe;  ///< Base name, for metrics; empty for operations without a recipe.
  absl::AnyInvocable<absl::Status(Device&, const Cancellation&) &&> run;
  Device* device = nullptr;  ///< The device that it must run on; null if any device will do.
};

}  // namespace quantgate
