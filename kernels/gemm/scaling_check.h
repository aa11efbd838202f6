// Which scales go with which operands.
#pragma once

#include "absl/status/status.h"
#include "kernels/gemm/gemm.h"

namespace quantgate {

/// Scales, amaxes and their shapes, each operand alone and both together, and what desc.arithmetic
/// asks of them. The data must have been checked. INVALID_ARGUMENT or UNIMPLEMENTED, by name.
absl::Status CheckScaling(const GemmDesc& desc, const GemmShape& shape);

/// Whether every fp32 block scale is a power of two from 2^-127 to 2^127, which E8M0 has too.
bool HasPowerOfTwoScales(const GemmOperand& operand);

}  // namespace quantgate
