// Grids for kernels whose threads take one item after another.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

namespace quantgate {

inline constexpr int kItemThreads = 256;

inline unsigned BlocksFor(int64_t items) {
  return static_cast<unsigned>(
      std::min<int64_t>((items + kItemThreads - 1) / kItemThreads, int64_t{1} << 30));
}

#if defined(__CUDACC__)

__device__ inline int64_t FirstItem() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ inline int64_t ItemStride() { return int64_t{gridDim.x} * blockDim.x; }

#endif

}  // namespace quantgate
