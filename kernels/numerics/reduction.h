// The steps of a reduction over ranks for one element (docs/numerics.md section 8).
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/base/host_device.h"
#include "kernels/numerics/cast.h"

namespace quantgate {

/// The larger of two numbers, such that the maximum of many does not depend on their order: if one
/// is NaN, the other; the canonical NaN if both are; and +0 is larger than -0.
QG_HOST_DEVICE inline float MaximumStep(float a, float b) {
  if (a != a) return CanonicalFloat(b);
  if (b != b) return a;
  // Equal numbers have the same bits, except zeros, which stay negative only if both are.
  if (a == b) return std::bit_cast<float>(std::bit_cast<uint32_t>(a) & std::bit_cast<uint32_t>(b));
  return a < b ? b : a;
}

/// An fp32 partial sum rounded to nearest even to a value of F.
template <class F>
QG_HOST_DEVICE inline float RoundedPartial(float sum) {
  return DecodeFloat<F>(EncodeFloat<F>(sum));
}

}  // namespace quantgate
