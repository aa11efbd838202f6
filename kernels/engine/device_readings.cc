#include "kernels/engine/device_readings.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace quantgate {
namespace {

// The few functions of NVML's stable C interface that are used, declared here because a toolkit may
// lack its header: https://docs.nvidia.com/deploy/nvml-api
using NvmlDevice = void*;
constexpr int kNvmlSuccess = 0;
constexpr int kNvmlClockSm = 1;
constexpr int kNvmlClockMemory = 2;
constexpr unsigned kDriverVersionBytes = 80;
using NvmlInit = int (*)();
using NvmlDriverVersion = int (*)(char* version, unsigned length);
using NvmlByBusId = int (*)(const char* bus_id, NvmlDevice* device);
using NvmlClock = int (*)(NvmlDevice device, int type, unsigned* mhz);

/// The library comes with the driver and is found at run time, like the driver.
class Nvml {
 public:
  static const Nvml& Get() {
    static const Nvml& nvml = *new Nvml;
    return nvml;
  }

  DeviceReadings Read(const std::string& pci_bus_id) const {
    DeviceReadings readings;
    if (!is_ready_) return readings;
    char driver[kDriverVersionBytes] = "";
    if (driver_version_(driver, sizeof(driver)) == kNvmlSuccess) readings.driver = driver;
    NvmlDevice device = nullptr;
    if (by_bus_id_(pci_bus_id.c_str(), &device) != kNvmlSuccess) return readings;
    unsigned mhz = 0;
    if (clock_(device, kNvmlClockSm, &mhz) == kNvmlSuccess) readings.sm_clock_mhz = int(mhz);
    if (clock_(device, kNvmlClockMemory, &mhz) == kNvmlSuccess) {
      readings.memory_clock_mhz = int(mhz);
    }
    return readings;
  }

 private:
  Nvml() {
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    const auto init = Find<NvmlInit>(library, "nvmlInit_v2");
    driver_version_ = Find<NvmlDriverVersion>(library, "nvmlSystemGetDriverVersion");
    by_bus_id_ = Find<NvmlByBusId>(library, "nvmlDeviceGetHandleByPciBusId_v2");
    clock_ = Find<NvmlClock>(library, "nvmlDeviceGetClockInfo");
    is_ready_ = init != nullptr && driver_version_ != nullptr && by_bus_id_ != nullptr &&
                clock_ != nullptr && init() == kNvmlSuccess;
  }

  template <typename Function>
  static Function Find(void* library, const char* name) {
    return reinterpret_cast<Function>(dlsym(library, name));
  }

  NvmlDriverVersion driver_version_ = nullptr;
  NvmlByBusId by_bus_id_ = nullptr;
  NvmlClock clock_ = nullptr;
  bool is_ready_ = false;
};

/// 22809 -> "2.28.9".
std::string ReadNcclVersion() {
  void* library = dlopen(kNcclLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return "";
  // ncclResult_t ncclGetVersion(int*); its success is 0.
  const auto get = reinterpret_cast<int (*)(int*)>(dlsym(library, "ncclGetVersion"));
  int version = 0;
  if (get == nullptr || get(&version) != 0) return "";
  return absl::StrCat(version / 10000, ".", version % 10000 / 100, ".", version % 100);
}

}  // namespace

const std::string& NcclVersion() {
  static const std::string& version = *new std::string(ReadNcclVersion());
  return version;
}

DeviceReadings ReadDevice(const std::string& pci_bus_id) { return Nvml::Get().Read(pci_bus_id); }

}  // namespace quantgate
