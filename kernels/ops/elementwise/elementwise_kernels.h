// The kernels behind elementwise_cuda.h. Launchers return what cudaGetLastError says of the launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/ops/float_lanes_cuda.h"
#include "kernels/tensor/tensor_kernels_cuda.h"

namespace quantgate {

struct ElementwiseParameters {
  FloatsIn a, b = {};
  FloatsOut to;
  float factor = 1;
  int64_t count = 0;
};
/// to[i] = a[i] + b[i].
cudaError_t LaunchAdd(const ElementwiseParameters& parameters, KernelPath path,
                      cudaStream_t stream);
/// to[i] = a[i] * factor; b is null.
cudaError_t LaunchScale(const ElementwiseParameters& parameters, KernelPath path,
                        cudaStream_t stream);

}  // namespace quantgate
