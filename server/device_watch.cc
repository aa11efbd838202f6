#include "server/device_watch.h"

#include "absl/strings/str_cat.h"

namespace quantgate {

absl::Status DeviceWatch::Checked(const Device& device, absl::Status status) {
  const absl::Status health = device.engine->Health();
  if (health.ok()) return status;
  const absl::Status lost =
      absl::DataLossError(absl::StrCat("device ", device.id, " was lost: ", health.message()));
  std::call_once(told_, [&] { on_lost_(device, lost); });
  return lost;
}

}  // namespace quantgate
