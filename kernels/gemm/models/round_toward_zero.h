// ScopedRoundTowardZero: the rounding mode of the vector panel kernels.
#pragma once

namespace quantgate {

/// Sets rounding toward zero, with IEEE subnormals, for the current scope and thread, and restores
/// the previous mode at its end. Defined out of line, so that no floating-point operation moves out
/// of the scope.
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
