// Transposition on the CPU, of tensors and of matrices within memory.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

/// What Transpose2d refuses on every engine: INVALID_ARGUMENT unless elements have 1, 2 or 4 bytes.
absl::Status CheckTranspose(DType dtype);

/// [rows()][columns()] to [columns()][rows()]. INVALID_ARGUMENT as CheckTranspose.
absl::StatusOr<Tensor> Transpose2d(const Tensor& tensor, const ExecutionContext& context);

/// out[c * out_stride + r] = in[r * in_stride + c] for r < rows and c < columns. The two must not
/// overlap. T is uint8_t, uint16_t or uint32_t.
template <typename T>
void TransposeMatrix(const T* in, int64_t in_stride, int64_t rows, int64_t columns, T* out,
                     int64_t out_stride);

}  // namespace quantgate
