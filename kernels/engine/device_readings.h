// What the driver's management library (NVML) says of a device, and which NCCL is there: not needed
// for any bit, told in every report.
#pragma once

#include <string>

namespace quantgate {

struct DeviceReadings {
  std::string driver;        ///< "580.159.04".
  int sm_clock_mhz = 0;      ///< Now.
  int memory_clock_mhz = 0;  ///< Now.
};

/// Of the device at this PCI address ("0000:1B:00.0"). Empty and zero where the library or an entry
/// of it is missing: a report then says "unknown".
DeviceReadings ReadDevice(const std::string& pci_bus_id);

/// NCCL's library, found at run time; ranks on GPUs of their own move tensors by it.
inline constexpr char kNcclLibrary[] = "libnccl.so.2";
/// "2.28.9"; empty where the host has none. NCCL does nothing but say so.
const std::string& NcclVersion();

}  // namespace quantgate
