// Readings of a device by the driver's management library (NVML), and the version of NCCL: no bit
// depends on them, and every report states them.
#pragma once

#include <string>

namespace quantgate {

struct DeviceReadings {
  std::string driver;        ///< "580.159.04".
  int sm_clock_mhz = 0;      ///< At the time of the call.
  int memory_clock_mhz = 0;  ///< At the time of the call.
};

/// The readings of the device at this PCI address ("0000:1B:00.0"). Fields are empty or zero where
/// the library or one of its functions is missing; a report then says "unknown".
DeviceReadings ReadDevice(const std::string& pci_bus_id);

/// NCCL's library, found at run time; ranks on GPUs of their own exchange tensors through it.
inline constexpr char kNcclLibrary[] = "libnccl.so.2";
/// "2.28.9"; empty where the host has no NCCL. Only asks the library for its version.
const std::string& NcclVersion();

}  // namespace quantgate
