// Blocks of rows: how the first dim of a tensor is divided among ranks.
#pragma once

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

/// Divides `rows` into `size` blocks, of which the first rows % size have one row more.
std::vector<int64_t> EvenRows(int64_t rows, int size);

/// Views of consecutive blocks of rows[i] entries of the first dim. INVALID_ARGUMENT unless the
/// counts are not negative and add up to the dim.
absl::StatusOr<std::vector<Tensor>> RowBlocks(const Tensor& tensor, std::span<const int64_t> rows);

}  // namespace quantgate
