// Division and rounding up to whole blocks, for counts of at least 0.
#pragma once

#include <cstdint>

namespace quantgate {

/// The number of blocks of size `by` that hold `count`.
inline constexpr int64_t DivideUp(int64_t count, int64_t by) { return (count + by - 1) / by; }

/// The smallest multiple of `multiple` that is at least `value`.
inline constexpr int64_t RoundUp(int64_t value, int64_t multiple) {
  return DivideUp(value, multiple) * multiple;
}

}  // namespace quantgate
