#include "server/device/device_copy.h"

#include <utility>

namespace quantgate {

std::unique_ptr<DeviceCopy> DeviceCopy::Start(const Devices& devices, const Digest& digest) {
  Device* only = nullptr;
  for (const auto& device : devices) {
    if (device->engine->Memory().bytes_total == 0) continue;
    if (only != nullptr) return nullptr;
    only = device.get();
  }
  if (only == nullptr || digest.size == 0) return nullptr;
  absl::StatusOr<Tensor> bytes = only->resident.StartFilling(digest.size);
  if (!bytes.ok()) return nullptr;
  return std::unique_ptr<DeviceCopy>(new DeviceCopy(*only, digest, *std::move(bytes)));
}

DeviceCopy::~DeviceCopy() { device_.resident.EndFilling(digest_.size); }

void DeviceCopy::Append(std::span<const std::span<const std::byte>> pieces) {
  for (const std::span<const std::byte> piece : pieces) {
    if (!bytes_.has_value()) return;
    const auto size = static_cast<int64_t>(piece.size());
    const bool fits = size <= digest_.size - filled_;
    if (!fits || !device_.engine->Write(piece, bytes_, filled_).ok()) bytes_ = Tensor();
    filled_ += size;
  }
}

void DeviceCopy::Keep() {
  if (!bytes_.has_value() || filled_ != digest_.size) return;
  device_.resident.Add(digest_.Text(), ResidentTensors::Source::kStored, bytes_);
}

}  // namespace quantgate
