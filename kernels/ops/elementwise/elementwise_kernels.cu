#include "kernels/ops/elementwise/elementwise_kernels.h"

#include "kernels/ops/launch_cuda.h"

namespace quantgate {
namespace {

constexpr int kWidth = 8;

template <bool kAdd>
__device__ void OneElement(const ElementwiseParameters& parameters, int64_t i) {
  const float a = LoadFloat(parameters.a, i);
  StoreFloat(parameters.to, i, kAdd ? a + LoadFloat(parameters.b, i) : a * parameters.factor);
}

template <bool kAdd>
__global__ void PlainElements(const ElementwiseParameters parameters) {
  for (int64_t i = FirstItem(); i < parameters.count; i += ItemStride()) {
    OneElement<kAdd>(parameters, i);
  }
}

template <bool kAdd>
__global__ void WideElements(const ElementwiseParameters parameters) {
  const int64_t pieces = parameters.count / kWidth;
  for (int64_t i = FirstItem(); i < pieces; i += ItemStride()) {
    float a[kWidth], b[kWidth];
    LoadLanes(parameters.a, kWidth * i, a);
    if constexpr (kAdd) LoadLanes(parameters.b, kWidth * i, b);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) a[j] = kAdd ? a[j] + b[j] : a[j] * parameters.factor;
    StoreLanes(parameters.to, kWidth * i, a);
  }
  const int64_t i = kWidth * pieces + FirstItem();
  if (i < parameters.count) OneElement<kAdd>(parameters, i);
}

template <bool kAdd>
cudaError_t Launch(const ElementwiseParameters& parameters, KernelPath path, cudaStream_t stream) {
  if (parameters.count == 0) return cudaSuccess;
  const bool is_aligned = IsAlignedForLanes(parameters.a.data) &&
                          IsAlignedForLanes(parameters.b.data) &&
                          IsAlignedForLanes(parameters.to.data);
  if (path == KernelPath::kTuned && is_aligned) {
    WideElements<kAdd>
        <<<BlocksFor(parameters.count / kWidth + 1), kItemThreads, 0, stream>>>(parameters);
  } else {
    PlainElements<kAdd><<<BlocksFor(parameters.count), kItemThreads, 0, stream>>>(parameters);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchAdd(const ElementwiseParameters& parameters, KernelPath path,
                      cudaStream_t stream) {
  return Launch<true>(parameters, path, stream);
}
cudaError_t LaunchScale(const ElementwiseParameters& parameters, KernelPath path,
                        cudaStream_t stream) {
  return Launch<false>(parameters, path, stream);
}

}  // namespace quantgate
