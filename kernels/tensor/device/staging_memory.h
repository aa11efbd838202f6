// StagingMemory: pinned host memory for what crosses the bus, kept by the process for the devices
// that are opened next. To pin a piece takes milliseconds, some of which every engine, queue and
// rank would wait for.
#pragma once

#include <cstddef>

#include "absl/status/statusor.h"

namespace quantgate {

inline constexpr size_t kStagingBytes = size_t{8} << 20;

/// kStagingBytes that every device reads and writes, not initialised. RESOURCE_EXHAUSTED.
absl::StatusOr<std::byte*> TakeStagingMemory();
/// Nothing is under way on `piece`, which TakeStagingMemory gave; null: nothing happens. Of so many
/// pieces that nobody has, one more is freed.
void ReturnStagingMemory(std::byte* piece);

}  // namespace quantgate
