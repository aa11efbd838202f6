// Copies operand codes to the order that packing wants, whatever the operand's layout.
#pragma once

#include <cstdint>

#include "kernels/gemm/operand_view.h"

namespace quantgate {

/// Copies code (row + r, k + i) to out[r * out_stride + i] for r < rows, i < depth.
void GatherByRow(const OperandView& view, int64_t row, int64_t rows, int64_t k, int64_t depth,
                 int64_t out_stride, void* out);

/// Copies code (row + j, k + i) to out[i * columns + j] for j < columns, i < depth; zero codes
/// where row + j or k + i lies outside the operand.
void GatherByK(const OperandView& view, int64_t row, int columns, int64_t k, int64_t depth,
               void* out);

}  // namespace quantgate
