// The formats that GEMMs are compiled for.
#pragma once

#include "kernels/numerics/format_list.h"

namespace quantgate {

/// Of operands. E2M1: two codes a byte along k.
using OperandFormats = FormatTypes<BFloat16, Float16, E4M3, E5M2, E2M3, E3M2, E2M1, Float32>;
/// Of outputs, of what is added to them, and of biases.
using OutputFormats = FormatTypes<BFloat16, Float16, E4M3, E5M2, Float32>;

}  // namespace quantgate
