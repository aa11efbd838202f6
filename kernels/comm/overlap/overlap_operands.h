// Pieces of a GEMM's operands, as an overlapped call cuts them: private to kernels/comm/overlap*.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "kernels/comm/overlap/overlap_schedule.h"
#include "kernels/engine/engine.h"
#include "kernels/gemm/gemm.h"

namespace quantgate {

/// The tensors of an operand that are cut with its rows: data and, in blocks, scales. Per-tensor
/// scales belong to all rows.
std::vector<Tensor> RowParts(const GemmOperand& operand);
/// `operand` with those tensors in place.
GemmOperand WithRowParts(const GemmOperand& operand, const std::vector<Tensor>& parts);
/// Rows of each of them: views.
absl::StatusOr<std::vector<Tensor>> RowsOfParts(const std::vector<Tensor>& parts,
                                                const RowInterval& rows);

/// Bytes of each of a tensor's rows; 0 where it has none.
int64_t RowBytes(const Tensor& tensor);

/// The GEMM of rows `rows` of its M side. `d`: where all rows go.
absl::StatusOr<GemmDesc> RowsOfGemm(const GemmDesc& desc, const RowInterval& rows, const Tensor& d);

/// The GEMM of columns [begin, begin + count) of its output; views where the N side is [n][k], else
/// copies. `d`: where they go, [m][count].
absl::StatusOr<GemmDesc> ColumnsOfGemm(Engine& engine, const GemmDesc& desc, int64_t begin,
                                       int64_t count, const Tensor& d);

}  // namespace quantgate
