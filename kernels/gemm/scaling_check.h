// Which scales go with which operands.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "kernels/gemm/gemm.h"

namespace quantgate {

/// FP6 and FP4: every code is finite.
inline bool IsFp6OrFp4(DType dtype) {
  return dtype == DType::kF6E2M3 || dtype == DType::kF6E3M2 || dtype == DType::kF4E2M1x2;
}

/// fp32 scales of 128 elements or of tiles.
inline bool IsFp8Block(ScaleMode mode) {
  return mode == ScaleMode::k1x128 || mode == ScaleMode::k128x128;
}

/// nv16 with an amax for each row.
inline bool IsRowScaled(const GemmOperand& operand) {
  return operand.amax.has_value() && operand.amax.element_count() != 1;
}

/// Scales, amaxes and their shapes, each operand alone and both together, and what desc.arithmetic
/// asks of them. The data must have been checked. INVALID_ARGUMENT or UNIMPLEMENTED, by name. The
/// values of scales in device memory are not looked at.
absl::Status CheckScaling(const GemmDesc& desc, const GemmShape& shape);

/// What is wrong with a scale of operand "a" or "b" that Blackwell cannot have, INVALID_ARGUMENT.
absl::Status ScaleNotE8M0Error(std::string_view operand, float scale, int64_t index);

/// Whether the fp32 block scales of a GEMM must be powers of two: under Blackwell's arithmetics,
/// which read their exponent bits.
bool NeedsPowersOfTwo(const GemmDesc& desc);

}  // namespace quantgate
