// DeviceCopy: the bytes of an upload on their way into a device's memory, beside their way to the
// disk, so that a tensor is there when its upload ends. An optimisation: where the device has no
// room, there is none, and the first use of the blob brings it. Used by one thread at a time.
#pragma once

#include <memory>
#include <span>

#include "server/device/device.h"
#include "server/digest.h"

namespace quantgate {

class DeviceCopy {
 public:
  /// Null where the server has not exactly one device with memory of its own (any of several might
  /// be asked for the blob), or where that has no room for it.
  static std::unique_ptr<DeviceCopy> Start(const Devices& devices, const Digest& digest);
  ~DeviceCopy();
  DeviceCopy(const DeviceCopy&) = delete;
  DeviceCopy& operator=(const DeviceCopy&) = delete;

  /// The next bytes. A failure ends the copy and not the upload.
  void Append(std::span<const std::span<const std::byte>> pieces);
  /// The digest of what was appended is right: the copy becomes resident, if it is whole.
  void Keep();

 private:
  DeviceCopy(Device& device, const Digest& digest, Tensor bytes)
      : device_(device), digest_(digest), bytes_(std::move(bytes)) {}

  Device& device_;
  const Digest digest_;
  Tensor bytes_;  ///< U8 [size]; no value once the copy has ended.
  int64_t filled_ = 0;
};

}  // namespace quantgate
