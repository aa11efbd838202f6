// The kernels behind fragment_cuda.h. Launchers return what cudaGetLastError says of the launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/quantize/fragment_steps.h"
#include "kernels/tensor/files/number_source.h"

namespace quantgate {

struct FragmentParameters {
  const void* values = nullptr;
  NumberEncoding encoding = NumberEncoding::kF32;  ///< kF32, kBF16 or kF16.
  int64_t begin = 0, count = 0;
  FragmentGrid grid;
  FragmentRule rule;
  bool has_tensor_amax = false;  ///< After those of the units.
};

/// Raises fp32 bits, at first 0.
cudaError_t LaunchMeasureFragment(const FragmentParameters& parameters, uint32_t* amaxes,
                                  cudaStream_t stream);

struct FragmentScales {
  const float* amaxes = nullptr;
  const float* given_scale = nullptr;  ///< Delayed scaling's, in place of what follows from amax.
  float* factors = nullptr;            ///< By unit; written.
  float* scale_inv = nullptr;          ///< Stored scales: one of these two; written.
  uint8_t* codes = nullptr;
  float* amax = nullptr;  ///< Of the tensor, where it is kept; written.
};
cudaError_t LaunchFragmentScales(const FragmentParameters& parameters, const FragmentScales& scales,
                                 cudaStream_t stream);

/// `codes`: `bytes` of them.
cudaError_t LaunchEncodeFragment(const FragmentParameters& parameters, const float* factors,
                                 uint8_t* codes, int64_t bytes, cudaStream_t stream);

}  // namespace quantgate
