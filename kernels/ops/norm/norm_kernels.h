// The kernels behind norm_cuda.cc (docs/numerics.md section 5). Launchers return what
// cudaGetLastError says of the launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/ops/float_lanes_cuda.h"
#include "kernels/tensor/tensor_kernels_cuda.h"

namespace quantgate {

struct NormForwardParameters {
  FloatsIn x, gamma, beta;  ///< beta is null if there is none.
  FloatsOut y;
  float* mean = nullptr;  ///< Null for RMSNorm.
  float* rstd = nullptr;
  int64_t rows = 0, columns = 0;
  float inverse_count = 0;
  float epsilon = 0;
  bool zero_centered_gamma = false;
};
cudaError_t LaunchNormForward(const NormForwardParameters& parameters, KernelPath path,
                              cudaStream_t stream);

struct NormBackwardParameters {
  FloatsIn dz, x, gamma, residual;  ///< residual is null if there is none.
  const float* mean = nullptr;      ///< Null for RMSNorm.
  const float* rstd = nullptr;
  FloatsOut dx;
  int64_t rows = 0, columns = 0;
  float inverse_count = 0;
  bool zero_centered_gamma = false;
};
cudaError_t LaunchNormBackward(const NormBackwardParameters& parameters, KernelPath path,
                               cudaStream_t stream);

/// For the sums of dz * xhat and of dz down groups of kColumnSumRows rows, which are whole subtrees
/// of the pairwise sums down all rows.
struct NormColumnParameters {
  FloatsIn dz, x;
  const float* mean = nullptr;  ///< Null for RMSNorm.
  const float* rstd = nullptr;
  int64_t rows = 0, columns = 0;
  float* dgamma = nullptr;  ///< [ceil(rows / kColumnSumRows)][columns]; null if not wanted.
  float* dbeta = nullptr;   ///< As dgamma.
};
cudaError_t LaunchNormColumns(const NormColumnParameters& parameters, KernelPath path,
                              cudaStream_t stream);

// The launchers above choose between a plain and a tuned kernel. The tuned one takes parameters for
// which IsTunable holds.
bool IsTunable(const NormForwardParameters& parameters);
bool IsTunable(const NormBackwardParameters& parameters);
bool IsTunable(const NormColumnParameters& parameters);
void LaunchTuned(const NormForwardParameters& parameters, cudaStream_t stream);
void LaunchTuned(const NormBackwardParameters& parameters, cudaStream_t stream);
void LaunchTuned(const NormColumnParameters& parameters, cudaStream_t stream);

}  // namespace quantgate
