#include "server/device/device_watch.h"

#include "absl/strings/str_cat.h"
#include "server/errors.h"

namespace quantgate {
namespace {

/// Limits of the service (disk, quota, queue) say which one it was; an engine's failures do not.
bool IsOutOfMemory(const absl::Status& status) {
  return absl::IsResourceExhausted(status) && error::DetailOf(status).reason.empty();
}

}  // namespace

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
