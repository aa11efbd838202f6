// The formats that GEMMs are compiled for.
#pragma once

#include "kernels/numerics/format_list.h"

namespace quantgate {

/// The formats of operands. E2M1 has two codes in each byte along k.
using OperandFormats = FormatTypes<BFloat16, Float16, E4M3, E5M2, E2M3, E3M2, E2M1, Float32>;
/// The formats of outputs, of c and of biases.
using OutputFormats = FormatTypes<BFloat16, Float16, E4M3, E5M2, Float32>;

}  // namespace quantgate
