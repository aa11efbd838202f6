// The kernels behind attention_cuda.cc (docs/numerics.md section 9). Launchers return what
// cudaGetLastError says of the launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/ops/float_lanes_cuda.h"
#include "kernels/tensor/tensor_kernels_cuda.h"

namespace quantgate {

/// [outer][inner] elements of element_bytes to [inner][outer].
struct SwapParameters {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  int64_t outer = 0, inner = 0, element_bytes = 0;
};
cudaError_t LaunchSwapDims(const SwapParameters& parameters, cudaStream_t stream);

/// All of one encoding.
struct RotaryParameters {
  FloatsIn heads, cosines, sines;
  FloatsOut to;
  int64_t heads_count = 0, positions = 0, half = 0;  ///< A row has 2 * half elements.
  int64_t period = 1, rotated = 1;
  float sign = 1;  ///< Multiplies sines: -1 for the transposed rotation.
};
cudaError_t LaunchRotate(const RotaryParameters& parameters, cudaStream_t stream);

/// Of scores [rows / queries][queries][keys].
struct ScoreShape {
  int64_t rows = 0, queries = 0, keys = 0;
  bool is_causal = false;
};
struct SoftmaxParameters {
  FloatsIn scores;
  float* probabilities = nullptr;
  FloatsOut rounded = {};  ///< Null for f32 scores.
  ScoreShape shape;
  float scale = 1;
};
cudaError_t LaunchSoftmax(const SoftmaxParameters& parameters, KernelPath path,
                          cudaStream_t stream);

struct SoftmaxBackwardParameters {
  FloatsIn gradient;
  const float* probabilities = nullptr;
  FloatsOut to;  ///< Of the gradient's encoding.
  ScoreShape shape;
  float scale = 1;
};
cudaError_t LaunchSoftmax(const SoftmaxBackwardParameters& parameters, KernelPath path,
                          cudaStream_t stream);

}  // namespace quantgate
