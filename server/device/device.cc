#include "server/device/device.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/engine/cuda_module.h"
#include "server/errors.h"

namespace quantgate {
namespace {

constexpr char kCuda[] = "cuda";

int64_t ResidentBytesMax(const Engine& engine, int64_t bytes_max) {
  const int64_t total = engine.Memory().bytes_total;
  if (total == 0) return 0;
  // By default half of the device's memory; the other half is for the tensors that runs make.
  return bytes_max > 0 ? std::min(bytes_max, total) : total / 2;
}

absl::Status BadName(const std::string& name, const std::string& rule) {
  return Refuse("device", absl::StrCat("\"", name, "\""), rule);
}

/// The ordinals of "cuda" or "cuda:N".
absl::StatusOr<std::vector<int>> OrdinalsOf(const std::string& name) {
  std::vector<int> ordinals;
  if (name == kCuda) {
    QG_ASSIGN_OR_RETURN(const int count, CountCudaDevices());
    for (int ordinal = 0; ordinal < count; ++ordinal) ordinals.push_back(ordinal);
    return ordinals;
  }
  int ordinal = 0;
  if (!absl::StartsWith(name, "cuda:") || !absl::SimpleAtoi(name.substr(5), &ordinal) ||
      ordinal < 0) {
    return BadName(name, "devices are cpu, cuda and cuda:N");
  }
  return std::vector<int>{ordinal};
}

/// The service's own limits (disk, quota, queue) state a reason; an engine that lacks memory does
/// not.
bool IsOutOfMemory(const absl::Status& status) {
  return absl::IsResourceExhausted(status) && error::DetailOf(status).reason.empty();
}

}  // namespace

Device::Device(std::unique_ptr<Engine> engine_in, int64_t resident_bytes_max)
    : engine(std::move(engine_in)),
      id(engine->Describe().id),
      // Reading is quick for the host, whose description needs no driver.
      description([this] { return engine->Describe(); }, engine->Memory().bytes_total == 0),
      resident(*engine, ResidentBytesMax(*engine, resident_bytes_max)) {}

std::vector<DeviceDescription> DescribeDevices(const Devices& devices) {
  std::vector<DeviceDescription> descriptions;
  for (const auto& device : devices) descriptions.push_back(device->engine->Describe());
  return descriptions;
}

Device& LeastLoaded(const Devices& devices) {
  return **std::min_element(devices.begin(), devices.end(), [](const auto& a, const auto& b) {
    return a->waiting_and_running() < b->waiting_and_running();
  });
}

absl::StatusOr<Device*> LeastLoadedWith(const Devices& devices,
                                        std::span<const Arithmetic> arithmetics) {
  Device* best = nullptr;
  absl::Status refusal;
  for (const auto& device : devices) {
    absl::Status status;
    for (const Arithmetic& arithmetic : arithmetics) {
      status.Update(device->engine->CheckArithmetic(arithmetic));
    }
    refusal.Update(status);
    if (!status.ok()) continue;
    if (best == nullptr || device->waiting_and_running() < best->waiting_and_running()) {
      best = device.get();
    }
  }
  if (best == nullptr) return refusal;
  return best;
}

absl::StatusOr<std::vector<std::unique_ptr<Engine>>> MakeEngines(std::span<const std::string> names,
                                                                 const CpuEngineOptions& cpu) {
  std::vector<std::unique_ptr<Engine>> engines;
  std::set<std::string> seen;
  for (const std::string& name : names) {
    if (name == "cpu") {
      if (!seen.insert(name).second) return BadName(name, "named twice");
      engines.push_back(MakeCpuEngine(cpu));
      continue;
    }
    QG_ASSIGN_OR_RETURN(const std::vector<int> ordinals, OrdinalsOf(name));
    for (const int ordinal : ordinals) {
      if (!seen.insert(absl::StrCat(kCuda, ":", ordinal)).second) {
        return BadName(name, "named twice");
      }
      QG_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, MakeCudaEngine(ordinal));
      engines.push_back(std::move(engine));
    }
  }
  if (engines.empty()) return BadName("", "name at least one device");
  return engines;
}

absl::Status DeviceWatch::Checked(const Device& device, absl::Status status) {
  const absl::Status health = device.engine->Health();
  if (health.ok()) {
    const bool has_own_memory = device.engine->Memory().bytes_total != 0;
    if (has_own_memory && IsOutOfMemory(status)) on_out_of_memory_(device);
    return status;
  }
  const absl::Status lost =
      absl::DataLossError(absl::StrCat("device ", device.id, " was lost: ", health.message()));
  std::call_once(told_, [&] { on_lost_(device, lost); });
  return lost;
}

}  // namespace quantgate
