// Host memory for buffers. Large blocks that are freed are kept for the next buffer of the same
// size, since fresh pages cost the operating system more time than a quantizer takes to fill them.
// Thread-safe. Private to kernels/tensor.
#pragma once

#include <cstddef>

namespace quantgate {

/// Memory aligned to 64 bytes, not initialised; null when there is not enough.
void* TakeMemory(size_t bytes);

/// Gives back what TakeMemory(bytes) returned.
void ReturnMemory(void* data, size_t bytes);

/// At most this many unused bytes are kept.
inline constexpr size_t kPoolBytesMax = size_t{256} << 20;

}  // namespace quantgate
