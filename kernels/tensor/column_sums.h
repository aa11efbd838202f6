// Sums down the columns of a tensor: bias gradients.
#pragma once

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

/// [columns()] of `out` (f32, bf16, f16): per column the pairwise sum (pairwise.h) over rows of the
/// f32 values, then one rounding to nearest even. No rows give +0. From f32, bf16 or f16;
/// INVALID_ARGUMENT for others.
absl::StatusOr<Tensor> ColumnSums(const Tensor& tensor, DType out, const ExecutionContext& context);

}  // namespace quantgate
