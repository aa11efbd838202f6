// The kernels behind fragment_cuda.h. Launchers return what cudaGetLastError says of the launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/quantize/fragment_steps.h"
#include "kernels/tensor/number_source.h"

namespace quantgate {

struct FragmentParameters {
  const void* values = nullptr;
  NumberEncoding encoding = NumberEncoding::kF32;  ///< kF32, kBF16 or kF16.
  int64_t begin = 0, count = 0;
  FragmentGrid grid;
  FragmentRule rule;
  bool has_tensor_amax = false;  ///< The amax of the tensor follows those of the units.
};

/// Raises `amaxes`, fp32 bits that the caller has set to 0, to those of the fragment.
cudaError_t LaunchMeasureFragment(const FragmentParameters& parameters, uint32_t* amaxes,
                                  cudaStream_t stream);

struct FragmentScales {
  const float* amaxes = nullptr;
  const float* given_scale = nullptr;  ///< Of delayed scaling; null: made from the amax.
  float* factors = nullptr;            ///< One per unit; written.
  float* scale_inv = nullptr;          ///< The stored scales if they are f32, else null; written.
  uint8_t* codes = nullptr;            ///< The stored scales otherwise; written.
  float* amax = nullptr;               ///< The amax of the tensor if it is kept; written.
};
cudaError_t LaunchFragmentScales(const FragmentParameters& parameters, const FragmentScales& scales,
                                 cudaStream_t stream);

/// Writes the `bytes` bytes of `codes`.
cudaError_t LaunchEncodeFragment(const FragmentParameters& parameters, const float* factors,
                                 uint8_t* codes, int64_t bytes, cudaStream_t stream);

}  // namespace quantgate
