// How long a GPU worked, by CUPTI's own records of every kernel, copy and fill of the process: what
// events on a stream cannot tell from the time that the stream waited for the host.
#pragma once

#include "absl/status/statusor.h"

namespace quantgate {

/// From the first kernel, copy or fill to the end of the last one.
struct DeviceActivity {
  double busy_seconds = 0;  ///< At least one was under way.
  double span_seconds = 0;
  int count = 0;
};

/// Records from now on. UNIMPLEMENTED in a build without CUPTI, FAILED_PRECONDITION where its
/// library is not found.
absl::Status RecordDeviceActivity();
/// What was recorded since then or since the last call, of work that the host has waited for.
absl::StatusOr<DeviceActivity> TakeDeviceActivity();

}  // namespace quantgate
