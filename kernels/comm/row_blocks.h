// Blocks of rows: how the first dim of a tensor is shared out among ranks.
#pragma once

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

/// `rows` in `size` blocks as equal as can be: the first rows % size blocks get one more.
std::vector<int64_t> EvenRows(int64_t rows, int size);

/// Views of consecutive blocks of the first dim. INVALID_ARGUMENT unless the counts are not
/// negative and add up to it.
absl::StatusOr<std::vector<Tensor>> RowBlocks(const Tensor& tensor, std::span<const int64_t> rows);

}  // namespace quantgate
