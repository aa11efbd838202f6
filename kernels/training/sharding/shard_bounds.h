// Which part of a tensor each rank of a group holds: rank r has [bounds[r], bounds[r + 1]) of its
// rows, or of its elements in row-major order. Parts may be of any length, none included.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

using ShardBounds = std::vector<int64_t>;

/// The product of the dims of a tensor that there is.
int64_t ElementsOf(const Shape& shape);

/// As even as pieces of `multiple` allow, the first ranks with one more; the end may cut the last
/// piece short.
ShardBounds EvenBounds(int64_t count, int ranks, int64_t multiple);

/// Tensors laid end to end in one flat buffer that is cut evenly: for each tensor the part of its
/// elements that every rank holds. Cuts are at multiples of `multiple` of the buffer, and no tensor
/// begins at one but by chance.
std::vector<ShardBounds> FlatBounds(std::span<const Shape> shapes, int ranks, int64_t multiple);

/// How many each rank has.
std::vector<int64_t> LengthsOf(const ShardBounds& bounds);

/// INVALID_ARGUMENT naming `field` unless there is one part for each rank, in order, from 0 to
/// `count`.
absl::Status CheckBounds(std::string_view field, const ShardBounds& bounds, int ranks,
                         int64_t count);

}  // namespace quantgate
