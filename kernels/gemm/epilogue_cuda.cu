// The epilogue with a thread for each output: the steps of epilogue_step.h in the order of
// epilogue.cc. What the CPU reads from tensors beforehand is read here.
#include "kernels/gemm/models/cuda_kernels.h"
#include "kernels/numerics/cast.h"

namespace quantgate {
namespace {

namespace steps = epilogue_steps;
constexpr int kThreads = 256;

__device__ float ScalarOr1(const float* scalar) { return scalar == nullptr ? 1.0f : *scalar; }

/// Element i of an array in the format of an output or a bias.
__device__ float Decoded(FormatId format, const void* data, int64_t i) {
  return VisitFormatIn(OutputFormats{}, format, [&]<class Format>() {
    if constexpr (std::is_same_v<Format, Float32>) {
      return static_cast<const float*>(data)[i];
    } else {
      return DecodeFloat<Format>(static_cast<const typename Format::Storage*>(data)[i]);
    }
  });
}

/// rnd(value) as fp32.
__device__ float Rounded(FormatId format, float value) {
  if (format == kFormatId<BFloat16>) return DecodeFloat<BFloat16>(steps::EncodeBFloat16(value));
  if (format == kFormatId<Float16>) return DecodeFloat<Float16>(EncodeFloat<Float16>(value));
  return value;
}

__device__ float WithBias(const EpilogueTask& task, int64_t n, float value) {
  return task.bias == nullptr ? value : value + Decoded(task.bias_format, task.bias, n);
}

__device__ float Combined(const EpilogueTask& task, float coefficient, int64_t m, int64_t n,
                          float value) {
  if (task.beta == 0) {
    value = steps::Product(value, coefficient, task.keeps_negative_zero);
    if (task.row_amaxes != nullptr) {
      const float factor = task.row_amaxes[m] * ScalarOr1(task.column_amax);
      value = value * factor;
    }
    return WithBias(task, n, value);
  }
  const float c = Decoded(task.c_format, task.c, m * task.n + n);
  switch (task.combination) {
    case Combination::kFused:
      return WithBias(task, n, steps::CombineFused(value, coefficient, task.beta, c));
    case Combination::kInPlace:
      value = WithBias(task, n, steps::ProductPlusZero(value, coefficient));
      return Rounded(task.out_format, value) + c;
    default:
      return WithBias(task, n, steps::CombineSplitK(value, coefficient, task.beta, c));
  }
}

__device__ void Store(const EpilogueTask& task, int64_t i, float value) {
  VisitFormatIn(OutputFormats{}, task.out_format, [&]<class Format>() {
    if constexpr (std::is_same_v<Format, Float32>) {
      static_cast<float*>(task.d)[i] = CanonicalFloat(value);
    } else if constexpr (std::is_same_v<Format, BFloat16>) {
      static_cast<uint16_t*>(task.d)[i] = steps::EncodeBFloat16(value);
    } else {
      static_cast<typename Format::Storage*>(task.d)[i] = EncodeFloat<Format>(value);
    }
  });
}

__global__ void Epilogue(const EpilogueTask task) {
  float coefficient =
      steps::Coefficient(task.alpha, ScalarOr1(task.scale_b), ScalarOr1(task.scale_a));
  coefficient = coefficient * task.reciprocal;
  const float d_scale = ScalarOr1(task.d_scale);
  uint32_t amax = 0;
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < task.m * task.n;
       i += stride) {
    const int64_t m = i / task.n, n = i % task.n;
    float value = task.accumulators[i];
    if (task.row_scales != nullptr) {
      value = steps::ScaleByVectors(value, task.column_scales[n], task.row_scales[m]);
    }
    value = Combined(task, coefficient, m, n, value);
    if (task.amax != nullptr) {
      amax = max(amax, steps::AmaxBits(value, task.combination));
      value = steps::Product(value, d_scale, task.keeps_negative_zero);
    }
    Store(task, i, value);
  }
  if (task.amax == nullptr) return;
  amax = __reduce_max_sync(0xFFFFFFFFu, amax);
  if (threadIdx.x % 32 == 0 && amax != 0) atomicMax(task.amax, amax);
}

__global__ void FindScaleOffE8M0(const float* scales, int64_t count, unsigned long long* first) {
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    if (!IsE8m0Number(scales[i])) atomicMin(first, static_cast<unsigned long long>(i));
  }
}

unsigned BlocksFor(int64_t count) {
  constexpr int64_t kBlocksMax = 1 << 16;
  const int64_t blocks = (count + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < kBlocksMax ? blocks : kBlocksMax);
}

}  // namespace

cudaError_t LaunchEpilogue(const EpilogueTask& task, cudaStream_t stream) {
  Epilogue<<<BlocksFor(task.m * task.n), kThreads, 0, stream>>>(task);
  return cudaGetLastError();
}

cudaError_t LaunchFindScaleOffE8M0(const float* scales, int64_t count, unsigned long long* first,
                                   cudaStream_t stream) {
  FindScaleOffE8M0<<<BlocksFor(count), kThreads, 0, stream>>>(scales, count, first);
  return cudaGetLastError();
}

}  // namespace quantgate
