// Copies block scales on the device to the layout that cuBLASLt wants.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace quantgate {

/// Sets out[o * out_stride + i] = in[o * in_outer_stride + i * in_inner_stride] for o < outer and
/// i < inner, and 0 for inner <= i < out_stride. Strides are in elements.
struct RearrangeParameters {
  const float* in;
  float* out;
  int64_t outer, inner;
  int64_t in_outer_stride, in_inner_stride;
  int64_t out_stride;
};

cudaError_t LaunchRearrange(const RearrangeParameters& parameters, cudaStream_t stream);

}  // namespace quantgate
