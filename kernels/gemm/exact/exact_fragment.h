// A lane's part of a packed operand of the exact GEMM (ExactFragmentIndex): device code that the
// kernels which read packed operands share.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace quantgate {

/// Four elements of 16 rows x 8 k: (r, k), (r + 8, k), (r, k + 4), (r + 8, k + 4).
__device__ inline void LoadFragment(const uint32_t* packed, double (&values)[4]) {
  const uint4 words = *reinterpret_cast<const uint4*>(packed);
  values[0] = __hiloint2double(static_cast<int>(words.x), 0);
  values[1] = __hiloint2double(static_cast<int>(words.y), 0);
  values[2] = __hiloint2double(static_cast<int>(words.z), 0);
  values[3] = __hiloint2double(static_cast<int>(words.w), 0);
}
__device__ inline void LoadFragment(const double* packed, double (&values)[4]) {
  const auto* in = reinterpret_cast<const double2*>(packed);
  const double2 low = in[0], high = in[32];
  values[0] = low.x;
  values[1] = low.y;
  values[2] = high.x;
  values[3] = high.y;
}

}  // namespace quantgate
