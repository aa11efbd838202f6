// The steps of nvfp4_steps_cuda.h against the scalar functions of kernels/numerics, on the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace quantgate::testing {

/// What is compared for every fp32 from 0 to infinity.
enum class Nvfp4Step {
  kStochastic,  ///< StochasticSum with EncodeE2m1Stochastic, for every random byte.
  kNearest,     ///< NearestSum with EncodeFloat<E2M1>.
  kScale,       ///< EncodeE4M3 with EncodeFloat<E4M3>.
};

/// Adds to `differences` (zeroed) how many outputs differ.
cudaError_t LaunchCompareStep(Nvfp4Step step, unsigned long long* differences, cudaStream_t stream);

/// Groups of sixteen bf16, `count` a multiple of 16, through TileTransform and, as the survey has
/// it, through MultiplyTile with the transform as A: differences[0] and [1] from HadamardTransform.
cudaError_t LaunchCompareTransform(const uint16_t* groups, int64_t count,
                                   unsigned long long* differences, cudaStream_t stream);

}  // namespace quantgate::testing
