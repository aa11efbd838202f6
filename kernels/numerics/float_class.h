// What an encoding is: zero, finite, infinite or NaN, by the order of codes alone.
#pragma once

#include <cstdint>

#include "kernels/base/host_device.h"
#include "kernels/numerics/float_format.h"

namespace quantgate {

/// Unpack<F>(code).kind, by the order of codes alone.
template <class F>
QG_HOST_DEVICE constexpr FloatClass FloatClassOf(typename F::Storage code) {
  using C = FormatConstants<F>;
  const uint32_t magnitude = code & (C::kSignMask - 1u);
  if (magnitude == 0) return FloatClass::kZero;
  if (magnitude <= C::kMaxFinite) return FloatClass::kFinite;
  return F::kSpecials == Specials::kIeee && magnitude == C::kMaxFinite + 1u ? FloatClass::kInfinite
                                                                            : FloatClass::kNan;
}

}  // namespace quantgate
