#include "kernels/ops/reduction/ordered_reduction_kernels.h"

#include "kernels/numerics/reduction.h"
#include "kernels/ops/launch_cuda.h"

namespace quantgate {
namespace {

constexpr int kWidth = 8;

struct SumToF32 {
  __device__ static float Step(float s, float x) { return s + x; }
};
template <class F>
struct SumToElement {
  __device__ static float Step(float s, float x) { return RoundedPartial<F>(s + x); }
};
struct Largest {
  __device__ static float Step(float s, float x) { return MaximumStep(s, x); }
};

template <class Reduction>
__device__ void OneElement(const ReductionParameters& parameters, int64_t i) {
  float s = LoadFloat(parameters.first, i);
  for (int part = 0; part < parameters.part_count; ++part) {
    s = Reduction::Step(s, LoadFloat({parameters.parts[part], parameters.encoding}, i));
  }
  StoreFloat(parameters.to, i, s);
}

template <class Reduction>
__global__ void PlainElements(const __grid_constant__ ReductionParameters parameters) {
  for (int64_t i = FirstItem(); i < parameters.count; i += ItemStride()) {
    OneElement<Reduction>(parameters, i);
  }
}

template <class Reduction>
__global__ void WideElements(const __grid_constant__ ReductionParameters parameters) {
  const int64_t pieces = parameters.count / kWidth;
  for (int64_t i = FirstItem(); i < pieces; i += ItemStride()) {
    float s[kWidth], x[kWidth];
    LoadLanes(parameters.first, kWidth * i, s);
    for (int part = 0; part < parameters.part_count; ++part) {
      LoadLanes({parameters.parts[part], parameters.encoding}, kWidth * i, x);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) s[j] = Reduction::Step(s[j], x[j]);
    }
    StoreLanes(parameters.to, kWidth * i, s);
  }
  const int64_t i = kWidth * pieces + FirstItem();
  if (i < parameters.count) OneElement<Reduction>(parameters, i);
}

bool IsAligned(const ReductionParameters& parameters) {
  bool is_aligned =
      IsAlignedForLanes(parameters.first.data) && IsAlignedForLanes(parameters.to.data);
  for (int i = 0; i < parameters.part_count; ++i) {
    is_aligned = is_aligned && IsAlignedForLanes(parameters.parts[i]);
  }
  return is_aligned;
}

template <class Reduction>
cudaError_t Launch(const ReductionParameters& parameters, cudaStream_t stream) {
  if (parameters.count == 0) return cudaSuccess;
  if (IsAligned(parameters)) {
    WideElements<Reduction>
        <<<BlocksFor(parameters.count / kWidth + 1), kItemThreads, 0, stream>>>(parameters);
  } else {
    PlainElements<Reduction><<<BlocksFor(parameters.count), kItemThreads, 0, stream>>>(parameters);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchOrderedSum(const ReductionParameters& parameters, cudaStream_t stream) {
  switch (parameters.rounded) {
    case NumberEncoding::kBF16:
      return Launch<SumToElement<BFloat16>>(parameters, stream);
    case NumberEncoding::kF16:
      return Launch<SumToElement<Float16>>(parameters, stream);
    default:
      return Launch<SumToF32>(parameters, stream);
  }
}

cudaError_t LaunchMaximum(const ReductionParameters& parameters, cudaStream_t stream) {
  return Launch<Largest>(parameters, stream);
}

}  // namespace quantgate
