// Pinned host memory for transfers to and from devices. The process keeps returned pieces for the
// devices that are opened next, since pinning takes milliseconds for which every engine, queue and
// rank would wait. Thread-safe.
#pragma once

#include <cstddef>

#include "absl/status/statusor.h"

namespace quantgate {

/// The size of a piece.
inline constexpr size_t kStagingBytes = size_t{8} << 20;

/// A piece that every device can read and write, not initialised. RESOURCE_EXHAUSTED.
absl::StatusOr<std::byte*> TakeStagingMemory();
/// Returns a piece of TakeStagingMemory on which no transfer is under way. Does nothing for null.
/// Frees the piece when enough unused ones are kept.
void ReturnStagingMemory(std::byte* piece);

}  // namespace quantgate
