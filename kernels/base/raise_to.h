// A maximum that several threads raise.
#pragma once

#include <atomic>
#include <cstdint>

namespace quantgate {

/// Raises a std::atomic or std::atomic_ref of uint32_t to `value`, if that is larger. Orders no
/// other memory.
template <class Atomic>
inline void RaiseTo(Atomic&& maximum, uint32_t value) {
  uint32_t seen = maximum.load(std::memory_order_relaxed);
  while (seen < value && !maximum.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

}  // namespace quantgate
