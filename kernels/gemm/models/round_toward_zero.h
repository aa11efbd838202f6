// The rounding mode of the vector panel kernels.
#pragma once

namespace quantgate {

/// Rounds toward zero, with IEEE subnormals, for the current scope and thread; restores on exit.
/// Out of line, so that no floating-point operation moves across its ends.
class ScopedRoundTowardZero {
 public:
  ScopedRoundTowardZero();
  ~ScopedRoundTowardZero();
  ScopedRoundTowardZero(const ScopedRoundTowardZero&) = delete;
  ScopedRoundTowardZero& operator=(const ScopedRoundTowardZero&) = delete;

 private:
  unsigned saved_control_;
};

}  // namespace quantgate
