// The checks of a GEMM's scales: which scales go with which operands and arithmetic.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "kernels/gemm/gemm.h"

namespace quantgate {

/// Whether a dtype is FP6 or FP4, whose codes are all finite.
inline bool IsFp6OrFp4(DType dtype) {
  return dtype == DType::kF6E2M3 || dtype == DType::kF6E3M2 || dtype == DType::kF4E2M1x2;
}

/// Whether the scales are fp32 ones of blocks or tiles, of 128 or of another length.
inline bool IsFp8Block(ScaleMode mode) {
  const ScaleBlock block = ScaleBlockOf(mode);
  return block.k > 1 && block.dtype == DType::kF32;
}

/// Whether an nv16 operand has an amax for each row.
inline bool IsRowScaled(const GemmOperand& operand) {
  return operand.amax.has_value() && operand.amax.element_count() != 1;
}

/// Checks scales, amaxes and their shapes, of each operand alone and of both together, and what
/// desc.arithmetic requires of them. The data must have been checked before. INVALID_ARGUMENT or
/// UNIMPLEMENTED naming the field. Values of scales in device memory are not checked.
absl::Status CheckScaling(const GemmDesc& desc, const GemmShape& shape);

/// INVALID_ARGUMENT for scale `index` of operand "a" or "b", which Blackwell cannot have since it
/// is not a number of E8M0.
absl::Status ScaleNotE8M0Error(std::string_view operand, float scale, int64_t index);

/// Whether the fp32 block scales of a GEMM must be powers of two, as under Blackwell's arithmetics,
/// which read only their exponent bits.
bool NeedsPowersOfTwo(const GemmDesc& desc);

}  // namespace quantgate
