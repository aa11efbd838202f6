// Grids for kernels whose threads process items one after another.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

namespace quantgate {

/// Threads of a block.
inline constexpr int kItemThreads = 256;

/// Blocks of a grid for `items` items.
inline unsigned BlocksFor(int64_t items) {
  return static_cast<unsigned>(
      std::min<int64_t>((items + kItemThreads - 1) / kItemThreads, int64_t{1} << 30));
}

#if defined(__CUDACC__)

/// The first item of the calling thread, and the distance to the next.
__device__ inline int64_t FirstItem() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ inline int64_t ItemStride() { return int64_t{gridDim.x} * blockDim.x; }

#endif

}  // namespace quantgate
