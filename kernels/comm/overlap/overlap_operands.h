// Pieces of a GEMM's operands, as an overlapped call cuts them. Private to kernels/comm/overlap.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "kernels/comm/overlap/overlap_schedule.h"
#include "kernels/engine/engine.h"
#include "kernels/gemm/gemm.h"

namespace quantgate {

/// The tensors of an operand that are cut with its rows: the data and block scales. A per-tensor
/// scale belongs to all rows.
std::vector<Tensor> RowParts(const GemmOperand& operand);
/// `operand` with these tensors in place of its RowParts.
GemmOperand WithRowParts(const GemmOperand& operand, const std::vector<Tensor>& parts);
/// Views of the same rows of each part.
absl::StatusOr<std::vector<Tensor>> RowsOfParts(const std::vector<Tensor>& parts,
                                                const RowInterval& rows);

/// Bytes of one row of a tensor; 0 where it has no rows.
int64_t RowBytes(const Tensor& tensor);

/// The GEMM of some rows of desc's M side. `d` is the output of all rows; the result writes its
/// part.
absl::StatusOr<GemmDesc> RowsOfGemm(const GemmDesc& desc, const RowInterval& rows, const Tensor& d);

/// The GEMM of columns [begin, begin + count) of desc's output, to `d`, [m][count]. Its N side is a
/// view where that is stored as [n][k], else a copy.
absl::StatusOr<GemmDesc> ColumnsOfGemm(Engine& engine, const GemmDesc& desc, int64_t begin,
                                       int64_t count, const Tensor& d);

}  // namespace quantgate
