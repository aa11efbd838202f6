#include "kernels/ops/elementwise_kernels.h"

#include "kernels/ops/launch_cuda.h"

namespace quantgate {
namespace {

__device__ void OneElement(const ElementwiseParameters& parameters, int64_t i) {
  const float a = LoadFloat(parameters.a, i);
  StoreFloat(parameters.to, i,
             parameters.b.data != nullptr ? a + LoadFloat(parameters.b, i) : a * parameters.factor);
}

__global__ void PlainElements(const ElementwiseParameters parameters) {
  for (int64_t i = FirstItem(); i < parameters.count; i += ItemStride()) {
    OneElement(parameters, i);
  }
}

__global__ void EightElements(const ElementwiseParameters parameters) {
  const int64_t eights = parameters.count / 8;
  for (int64_t i = FirstItem(); i < eights; i += ItemStride()) {
    float a[8], b[8];
    LoadEight(parameters.a, 8 * i, a);
    if (parameters.b.data != nullptr) {
      LoadEight(parameters.b, 8 * i, b);
#pragma unroll
      for (int j = 0; j < 8; ++j) a[j] += b[j];
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) a[j] *= parameters.factor;
    }
    StoreEight(parameters.to, 8 * i, a);
  }
  const int64_t i = 8 * eights + FirstItem();
  if (i < parameters.count) OneElement(parameters, i);
}

}  // namespace

cudaError_t LaunchElementwise(const ElementwiseParameters& parameters, KernelPath path,
                              cudaStream_t stream) {
  if (parameters.count == 0) return cudaSuccess;
  const bool is_aligned = IsAlignedForEight(parameters.a.data) &&
                          IsAlignedForEight(parameters.b.data) &&
                          IsAlignedForEight(parameters.to.data);
  if (path == KernelPath::kTuned && is_aligned) {
    EightElements<<<BlocksFor(parameters.count / 8 + 1), kItemThreads, 0, stream>>>(parameters);
  } else {
    PlainElements<<<BlocksFor(parameters.count), kItemThreads, 0, stream>>>(parameters);
  }
  return cudaGetLastError();
}

}  // namespace quantgate
