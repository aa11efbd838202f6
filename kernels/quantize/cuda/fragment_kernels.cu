#include "kernels/quantize/cuda/fragment_kernels.h"

#include <algorithm>

namespace quantgate {
namespace {

constexpr int kThreads = 256;

unsigned BlocksOf(int64_t items) {
  return static_cast<unsigned>(
      std::min<int64_t>((items + kThreads - 1) / kThreads, int64_t{1} << 20));
}

__device__ int64_t FirstIndex() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ int64_t IndexStride() { return int64_t{gridDim.x} * blockDim.x; }

__device__ float ValueAt(const FragmentParameters& parameters, int64_t i) {
  return FloatAt(parameters.values, parameters.encoding, nullptr, i);
}

__global__ void MeasureFragment(const FragmentParameters parameters, uint32_t* amaxes) {
  const FragmentGrid& grid = parameters.grid;
  uint32_t largest = 0;
  for (int64_t i = FirstIndex(); i < parameters.count; i += IndexStride()) {
    const uint32_t magnitude =
        FragmentMagnitude(ValueAt(parameters, i), parameters.rule.nan_counts);
    largest = max(largest, magnitude);
    // If the whole tensor is one unit, one atomic per thread is enough.
    if (grid.units > 1) atomicMax(amaxes + grid.UnitOfElement(parameters.begin + i), magnitude);
  }
  if (grid.units == 1) atomicMax(amaxes, largest);
  if (parameters.has_tensor_amax) atomicMax(amaxes + grid.units, largest);
}

__global__ void MakeScales(const FragmentParameters parameters, const FragmentScales scales) {
  const FragmentGrid& grid = parameters.grid;
  const FragmentRule& rule = parameters.rule;
  const float tensor_amax = parameters.has_tensor_amax ? scales.amaxes[grid.units] : 0.0f;
  const Nvfp4TensorScale tensor = FragmentTensorScale(rule, tensor_amax);
  for (int64_t i = FirstIndex(); i < grid.units; i += IndexStride()) {
    scales.factors[i] = scales.given_scale != nullptr
                            ? *scales.given_scale
                            : ScaleOfFragmentUnit(rule, scales.amaxes[i], tensor).factor;
  }
  for (int64_t i = FirstIndex(); i < grid.scales; i += IndexStride()) {
    const FragmentScale scale =
        ScaleOfFragmentUnit(rule, scales.amaxes[grid.UnitOfScale(i)], tensor);
    if (scales.codes != nullptr) {
      scales.codes[i] = scale.code;
    } else {
      scales.scale_inv[i] = scales.given_scale != nullptr
                                ? ScaleInverse(*scales.given_scale, rule.subnormals)
                                : scale.scale_inv;
    }
  }
  if (FirstIndex() == 0 && scales.amax != nullptr) {
    const float amax = parameters.has_tensor_amax ? tensor_amax : scales.amaxes[0];
    *scales.amax = scales.given_scale != nullptr ? Flushed(amax, rule.subnormals) : amax;
  }
}

__device__ uint8_t CodeAt(const FragmentParameters& parameters, const float* factors, int64_t i) {
  const int64_t unit = parameters.grid.UnitOfElement(parameters.begin + i);
  return EncodeFragmentElement(parameters.rule, ValueAt(parameters, i), factors[unit]);
}

__global__ void EncodeBytes(const FragmentParameters parameters, const float* factors,
                            uint8_t* codes) {
  for (int64_t i = FirstIndex(); i < parameters.count; i += IndexStride()) {
    codes[i] = CodeAt(parameters, factors, i);
  }
}

__global__ void EncodeNibbles(const FragmentParameters parameters, const float* factors,
                              uint8_t* codes, int64_t bytes) {
  const int64_t first_byte = parameters.begin / 2;
  for (int64_t byte = FirstIndex(); byte < bytes; byte += IndexStride()) {
    const int64_t i = 2 * (first_byte + byte) - parameters.begin;
    const uint8_t low = i >= 0 ? CodeAt(parameters, factors, i) : 0;
    const uint8_t high = i + 1 < parameters.count ? CodeAt(parameters, factors, i + 1) : 0;
    codes[byte] = static_cast<uint8_t>(low | high << 4);
  }
}

}  // namespace

cudaError_t LaunchMeasureFragment(const FragmentParameters& parameters, uint32_t* amaxes,
                                  cudaStream_t stream) {
  if (parameters.count == 0) return cudaSuccess;
  MeasureFragment<<<BlocksOf(parameters.count), kThreads, 0, stream>>>(parameters, amaxes);
  return cudaGetLastError();
}

cudaError_t LaunchFragmentScales(const FragmentParameters& parameters, const FragmentScales& scales,
                                 cudaStream_t stream) {
  const int64_t items = std::max(parameters.grid.scales, parameters.grid.units);
  MakeScales<<<BlocksOf(std::max<int64_t>(items, 1)), kThreads, 0, stream>>>(parameters, scales);
  return cudaGetLastError();
}

cudaError_t LaunchEncodeFragment(const FragmentParameters& parameters, const float* factors,
                                 uint8_t* codes, int64_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  if (parameters.rule.element == DType::kF4E2M1x2) {
    EncodeNibbles<<<BlocksOf(bytes), kThreads, 0, stream>>>(parameters, factors, codes, bytes);
  } else {
    EncodeBytes<<<BlocksOf(bytes), kThreads, 0, stream>>>(parameters, factors, codes);
  }
  return cudaGetLastError();
}

}  // namespace quantgate
