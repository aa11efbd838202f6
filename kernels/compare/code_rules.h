// What a bitwise comparison on a GPU needs to know of an element type: the facts of
// element_codes.h as numbers, so that one kernel serves all types of a width.
#pragma once

#include <cstdint>

namespace quantgate {

struct CodeRules {
  int bytes = 1;
  uint64_t sign_mask = 0;       ///< 0: codes have no sign.
  uint64_t magnitude_mask = 0;  ///< Magnitudes are ordered as values.
  uint64_t largest_number = 0;  ///< Magnitudes above it are NaN.
  bool has_infinity = false;    ///< largest_number is infinity.
  bool has_zero = true;         ///< Magnitude 0 is zero.
};

}  // namespace quantgate
