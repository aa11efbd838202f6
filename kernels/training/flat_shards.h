// Parts of a tensor's row-major elements, as distributed optimizers divide them. Private to
// kernels/training.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "kernels/training/shard_bounds.h"

namespace quantgate {

/// The row-major elements in one dim.
inline absl::StatusOr<Tensor> Flat(const Tensor& tensor) {
  return tensor.Reinterpret(tensor.dtype(), {tensor.element_count()});
}

/// How many each rank has.
inline std::vector<int64_t> LengthsOf(const ShardBounds& bounds) {
  std::vector<int64_t> lengths;
  for (size_t rank = 0; rank + 1 < bounds.size(); ++rank) {
    lengths.push_back(bounds[rank + 1] - bounds[rank]);
  }
  return lengths;
}

}  // namespace quantgate
