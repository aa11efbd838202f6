// One element of a reduction over ranks (docs/numerics.md section 8).
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/base/host_device.h"
#include "kernels/numerics/cast.h"

namespace quantgate {

/// The larger of two, in any order of all: a NaN gives way to a number, two NaN give the canonical
/// one, and +0 is larger than -0.
QG_HOST_DEVICE inline float MaximumStep(float a, float b) {
  if (a != a) return CanonicalFloat(b);
  if (b != b) return a;
  // Equal numbers have the same bits, but for zeros: the sign stays where both have it.
  if (a == b) return std::bit_cast<float>(std::bit_cast<uint32_t>(a) & std::bit_cast<uint32_t>(b));
  return a < b ? b : a;
}

/// A partial sum of fp32 as elements of F have it: rounded to nearest even.
template <class F>
QG_HOST_DEVICE inline float RoundedPartial(float sum) {
  return DecodeFloat<F>(EncodeFloat<F>(sum));
}

}  // namespace quantgate
