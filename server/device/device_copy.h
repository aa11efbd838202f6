// DeviceCopy: copies the bytes of an upload into a device's memory while they are written to disk,
// so that a tensor is on the device when its upload ends. An optimisation only: where the device
// has no room there is no copy, and the first use of the blob loads it. Used by one thread at a
// time.
#pragma once

#include <memory>
#include <span>

#include "server/device/device.h"
#include "server/digest.h"

namespace quantgate {

class DeviceCopy {
 public:
  /// Null unless exactly one of the devices has memory of its own (any of several might be asked
  /// for the blob) and has room for the blob.
  static std::unique_ptr<DeviceCopy> Start(const Devices& devices, const Digest& digest);
  ~DeviceCopy();
  DeviceCopy(const DeviceCopy&) = delete;
  DeviceCopy& operator=(const DeviceCopy&) = delete;

  /// Copies the next bytes. A failure ends the copy, not the upload.
  void Append(std::span<const std::span<const std::byte>> pieces);
  /// Makes the copy resident if it is complete. Call it once the digest of the appended bytes is
  /// verified.
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
