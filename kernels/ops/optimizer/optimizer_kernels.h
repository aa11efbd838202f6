// The kernels behind optimizer_cuda.cc (docs/numerics.md section 6). Launchers return what
// cudaGetLastError says of the launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/numerics/optimizer.h"
#include "kernels/ops/float_lanes_cuda.h"
#include "kernels/tensor/tensor_kernels_cuda.h"

namespace quantgate {

/// `m` is the momentum for SGD; null if there is none.
struct OptimizerParameters {
  FloatsIn gradient;
  const float *master = nullptr, *m = nullptr, *v = nullptr;
  float *new_master = nullptr, *new_m = nullptr, *new_v = nullptr;
  int64_t count = 0;
};
cudaError_t LaunchAdam(const AdamFactors& factors, const OptimizerParameters& parameters,
                       KernelPath path, cudaStream_t stream);
cudaError_t LaunchSgd(const SgdFactors& factors, const OptimizerParameters& parameters,
                      KernelPath path, cudaStream_t stream);

cudaError_t LaunchSplitMaster(const uint32_t* master, uint16_t* parameter, uint16_t* remainder,
                              int64_t count, KernelPath path, cudaStream_t stream);
cudaError_t LaunchJoinMaster(const uint16_t* parameter, const uint16_t* remainder, uint32_t* master,
                             int64_t count, KernelPath path, cudaStream_t stream);

}  // namespace quantgate
