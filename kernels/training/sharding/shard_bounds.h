// Which part of a tensor each rank of a group has: rank r has [bounds[r], bounds[r + 1]) of its
// rows, or of its elements in row-major order. Parts may have any length, including 0.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

using ShardBounds = std::vector<int64_t>;

/// The product of the dims.
int64_t ElementsOf(const Shape& shape);

/// Divides `count` into whole pieces of `multiple` as evenly as possible; the first ranks have one
/// piece more. The last piece may be shorter.
ShardBounds EvenBounds(int64_t count, int ranks, int64_t multiple);

/// Lays tensors end to end in one flat buffer and cuts the buffer evenly at multiples of
/// `multiple`. Gives, for each tensor, the bounds of the ranks' elements. Tensors need not begin at
/// a cut.
std::vector<ShardBounds> FlatBounds(std::span<const Shape> shapes, int ranks, int64_t multiple);

/// The number of rows or elements of each rank.
std::vector<int64_t> LengthsOf(const ShardBounds& bounds);

/// Checks that there is one part for each rank, in order, from 0 to `count`. INVALID_ARGUMENT
/// naming `field`.
absl::Status CheckBounds(std::string_view field, const ShardBounds& bounds, int ranks,
                         int64_t count);

}  // namespace quantgate
