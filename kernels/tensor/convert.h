// Casts of tensors between element types, on the CPU.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

/// What CastTensor refuses on every engine: INVALID_ARGUMENT unless it casts `in` to `out`, another
/// type.
absl::Status CheckCast(DType in, DType out);

/// The tensor in another element type: exact where `out` is wider, otherwise one rounding to
/// nearest even; f32, bf16 and f16 overflow to infinity, FP8 saturates, NaN becomes canonical. The
/// same dtype returns the tensor itself. From f64, f32, bf16, f16 or FP8, to f32, bf16, f16 or FP8;
/// INVALID_ARGUMENT for others.
absl::StatusOr<Tensor> CastTensor(const Tensor& tensor, DType out, const ExecutionContext& context);

}  // namespace quantgate
