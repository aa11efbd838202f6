// Which scales go with which operands.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "kernels/gemm/gemm.h"

namespace quantgate {

/// Scales, amaxes and their shapes, each operand alone and both together, and what desc.arithmetic
/// asks of them. The data must have been checked. INVALID_ARGUMENT or UNIMPLEMENTED, by name. The
/// values of scales in device memory are not looked at.
absl::Status CheckScaling(const GemmDesc& desc, const GemmShape& shape);

/// What is wrong with a scale of operand "a" or "b" that Blackwell cannot have, INVALID_ARGUMENT.
absl::Status ScaleOffE8M0(std::string_view operand, float scale, int64_t index);

/// Whether every fp32 block scale is a power of two from 2^-127 to 2^127, which E8M0 has too.
bool HasPowerOfTwoScales(const GemmOperand& operand);

}  // namespace quantgate
