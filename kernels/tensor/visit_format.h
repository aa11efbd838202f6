// From the dtype of a tensor to the format of its codes.
#pragma once

#include <string>

#include "kernels/numerics/format_list.h"
#include "kernels/tensor/dtype.h"

namespace quantgate {

/// Of kF4E2M1x2, the format of each of its two codes. kNoFormat of kF64, kF8E8M0 and integers.
FormatId FormatOf(DType dtype);

/// Whether a tensor of the dtype holds one code of a format an element: what can be cast to and
/// generated.
bool IsElementFormat(DType dtype);

/// The names of those dtypes: "f32, bf16, ...".
std::string ElementFormatNames();

/// visit.template operator()<F>() for the format of the dtype; false where the list lacks it.
template <class Formats, class Visit>
bool VisitFormat(DType dtype, Visit&& visit) {
  return VisitFormat<Formats>(FormatOf(dtype), visit);
}

}  // namespace quantgate
