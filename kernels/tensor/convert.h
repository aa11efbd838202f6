// Casts between element types and transposition of 2-D tensors, on the CPU.
#pragma once

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

/// The tensor in another element type: exact where `out` is wider, otherwise one rounding to
/// nearest even; f32, bf16 and f16 overflow to infinity, FP8 saturates, NaN becomes canonical. The
/// same dtype returns the tensor itself. From f64, f32, bf16, f16 or FP8, to f32, bf16, f16 or FP8;
/// INVALID_ARGUMENT for others.
absl::StatusOr<Tensor> CastTensor(const Tensor& tensor, DType out, const ExecutionContext& context);

/// [rows()][columns()] to [columns()][rows()]. Elements of 1, 2 and 4 bytes; INVALID_ARGUMENT for
/// others.
absl::StatusOr<Tensor> Transpose2d(const Tensor& tensor, const ExecutionContext& context);

}  // namespace quantgate
