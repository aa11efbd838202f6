// What the driver's management library (NVML) says of a device: not needed for any bit, told in
// every report.
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

}  // namespace quantgate
