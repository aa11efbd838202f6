// Host memory for buffers. Large blocks that are freed are kept for the next buffer of their size:
// fresh pages cost the kernel more time than a quantizer takes to fill them. Thread-safe. Private
// to kernels/tensor.
#pragma once

#include <cstddef>

namespace quantgate {

/// Memory aligned to 64 bytes, not initialised; null when there is none.
void* TakeMemory(size_t bytes);

/// Gives back what TakeMemory(bytes) returned.
void ReturnMemory(void* data, size_t bytes);

/// Most bytes that are kept while unused.
inline constexpr size_t kPoolBytesMax = size_t{256} << 20;

}  // namespace quantgate
