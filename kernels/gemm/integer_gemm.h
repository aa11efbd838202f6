// GEMMs of two operands of 8-bit integers: sums of integers, without rounding, and then scales.
// Private to kernels/gemm.
#pragma once

#include "kernels/gemm/gemm.h"

namespace quantgate {

/// Whether some operand holds integers of 8 bits.
bool HasIntegers(const GemmDesc& desc);

/// The part of CheckGemm about operands that HasIntegers: both must, and their scales (f32 [1] or
/// [rows]) and zero points (of the codes' dtype, in the shape of the scales) fit. Only `int32` adds
/// integers.
absl::Status CheckIntegerGemm(const GemmDesc& desc, const GemmShape& shape);

/// acc = sum over k of (a - zero_a) (b - zero_b), exact in 64 bits; f32(f32(f32(acc) * scale_a) *
/// scale_b) goes to the epilogue (docs/quantizers.md section 11.4). The desc has passed CheckGemm.
absl::StatusOr<GemmResult> IntegerGemm(const GemmDesc& desc, const GemmShape& shape,
                                       const ExecutionContext& context);

}  // namespace quantgate
