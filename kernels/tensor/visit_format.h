// The format of the codes that a tensor of some dtype holds.
#pragma once

#include <string>

#include "kernels/numerics/format_list.h"
#include "kernels/tensor/dtype.h"

namespace quantgate {

/// The format of the codes of `dtype`; for kF4E2M1x2 that of each of the two codes in a byte.
/// kNoFormat for kF64, kF8E8M0 and integers.
FormatId FormatOf(DType dtype);

/// Whether each element of a tensor of this dtype is one code of a format. Such dtypes can be cast
/// to and generated.
bool IsElementFormat(DType dtype);

/// The names of the dtypes for which IsElementFormat holds: "f32, bf16, ...".
std::string ElementFormatNames();

/// Calls visit.template operator()<F>() for the format of the dtype; false if the list lacks it.
template <class Formats, class Visit>
bool VisitFormat(DType dtype, Visit&& visit) {
  return VisitFormat<Formats>(FormatOf(dtype), visit);
}

}  // namespace quantgate
