// What casts, transposes and column sums refuse, the same on every engine.
#pragma once

#include "absl/status/status.h"
#include "kernels/tensor/dtype.h"

namespace quantgate {

/// INVALID_ARGUMENT unless CastTensor casts `in` to `out`, another type.
absl::Status CheckCast(DType in, DType out);
/// INVALID_ARGUMENT unless elements have 1, 2 or 4 bytes.
absl::Status CheckTranspose(DType dtype);
/// INVALID_ARGUMENT unless both are f32, bf16 or f16.
absl::Status CheckColumnSums(DType in, DType out);

}  // namespace quantgate
