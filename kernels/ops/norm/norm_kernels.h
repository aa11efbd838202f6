// The kernels behind norm_cuda.h (docs/numerics.md section 5). Launchers return what
// cudaGetLastError says of the launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/ops/float_lanes_cuda.h"
#include "kernels/tensor/tensor_kernels_cuda.h"

namespace quantgate {

struct NormForwardParameters {
  FloatsIn x, gamma, beta;  ///< beta null: none.
  FloatsOut y;
  float* mean = nullptr;  ///< Null: RMSNorm.
  float* rstd = nullptr;
  int64_t rows = 0, columns = 0;
  float inverse_count = 0;
  float epsilon = 0;
  bool zero_centered_gamma = false;
};
cudaError_t LaunchNormForward(const NormForwardParameters& parameters, KernelPath path,
                              cudaStream_t stream);

struct NormBackwardParameters {
  FloatsIn dz, x, gamma, residual;  ///< residual null: none.
  const float* mean = nullptr;      ///< Null: RMSNorm.
  const float* rstd = nullptr;
  FloatsOut dx;
  int64_t rows = 0, columns = 0;
  float inverse_count = 0;
  bool zero_centered_gamma = false;
};
cudaError_t LaunchNormBackward(const NormBackwardParameters& parameters, KernelPath path,
                               cudaStream_t stream);

/// Sums of dz * xhat and of dz down groups of kColumnSumRows rows, whole subtrees of the pairwise
/// sums down all rows.
struct NormColumnParameters {
  FloatsIn dz, x;
  const float* mean = nullptr;  ///< Null: RMSNorm.
  const float* rstd = nullptr;
  int64_t rows = 0, columns = 0;
  float* dgamma = nullptr;  ///< [ceil(rows / kColumnSumRows)][columns], or null: not wanted.
  float* dbeta = nullptr;   ///< Likewise.
};
cudaError_t LaunchNormColumns(const NormColumnParameters& parameters, KernelPath path,
                              cudaStream_t stream);

// The two kernels of each; the launchers above choose. Tuned ones are for what IsTunable says.
bool IsTunable(const NormForwardParameters& parameters);
bool IsTunable(const NormBackwardParameters& parameters);
bool IsTunable(const NormColumnParameters& parameters);
void LaunchTuned(const NormForwardParameters& parameters, cudaStream_t stream);
void LaunchTuned(const NormBackwardParameters& parameters, cudaStream_t stream);
void LaunchTuned(const NormColumnParameters& parameters, cudaStream_t stream);

}  // namespace quantgate
