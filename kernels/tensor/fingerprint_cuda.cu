// The sum of MixWord over the words of a tensor (docs/definitions.md section 4.2).
#include <algorithm>

#include "kernels/numerics/mix.h"
#include "kernels/tensor/tensor_kernels_cuda.h"

namespace quantgate {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerMultiprocessor = 8;
constexpr int kPairsPerStep = 4;  // Loads in flight: 64 bytes a thread.

/// Word `index`, the last one padded with zeros.
__device__ uint64_t WordAt(const std::byte* data, int64_t bytes, int64_t index) {
  uint64_t word = 0;
  for (int i = 0; i < 8 && 8 * index + i < bytes; ++i) {
    word |= static_cast<uint64_t>(data[8 * index + i]) << (8 * i);
  }
  return word;
}

__device__ void AddToGlobal(MixSum sum, uint64_t* total) {
  for (int distance = 16; distance > 0; distance /= 2) {
    sum.high += __shfl_xor_sync(0xFFFFFFFFu, sum.high, distance);
    sum.low += __shfl_xor_sync(0xFFFFFFFFu, sum.low, distance);
  }
  __shared__ MixSum of_warp[kThreads / 32];
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < kThreads / 32; ++warp) sum.Add(of_warp[warp]);
  atomicAdd(reinterpret_cast<unsigned long long*>(total), sum.high);
  atomicAdd(reinterpret_cast<unsigned long long*>(total + 1), sum.low);
}

/// Words [begin, ceil(bytes / 8)), byte by byte.
__global__ void __launch_bounds__(kThreads)
    MixBytes(const FingerprintParameters parameters, int64_t begin) {
  MixSum sum;
  const int64_t words = (parameters.bytes + 7) / 8;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = begin + int64_t{blockIdx.x} * kThreads + threadIdx.x; i < words; i += stride) {
    sum.Add(MixWord(static_cast<uint64_t>(i), WordAt(parameters.data, parameters.bytes, i)));
  }
  AddToGlobal(sum, parameters.sum);
}

/// The first tiles * kThreads * kPairsPerStep pairs of words, 16 bytes at a time.
__global__ void __launch_bounds__(kThreads)
    MixPairs(const FingerprintParameters parameters, int64_t tiles) {
  MixSum sum;
  const auto* pairs = reinterpret_cast<const ulonglong2*>(parameters.data);
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t first = tile * (kThreads * kPairsPerStep) + threadIdx.x;
    ulonglong2 pair[kPairsPerStep];
#pragma unroll
    for (int i = 0; i < kPairsPerStep; ++i) pair[i] = __ldcs(pairs + first + i * kThreads);
#pragma unroll
    for (int i = 0; i < kPairsPerStep; ++i) {
      const auto index = static_cast<uint64_t>(2 * (first + i * kThreads));
      sum.Add(MixWord(index, pair[i].x));
      sum.Add(MixWord(index + 1, pair[i].y));
    }
  }
  AddToGlobal(sum, parameters.sum);
}

}  // namespace

cudaError_t LaunchFingerprint(const FingerprintParameters& parameters, KernelPath path,
                              cudaStream_t stream) {
  if (parameters.bytes == 0) return cudaSuccess;
  const int64_t blocks_max = int64_t{parameters.multiprocessors} * kBlocksPerMultiprocessor;
  int64_t begin = 0;
  if (path == KernelPath::kTuned && reinterpret_cast<uintptr_t>(parameters.data) % 16 == 0) {
    const int64_t tiles = parameters.bytes / (16 * kThreads * kPairsPerStep);
    if (tiles > 0) {
      MixPairs<<<static_cast<unsigned>(std::min(tiles, blocks_max)), kThreads, 0, stream>>>(
          parameters, tiles);
    }
    begin = tiles * 2 * kThreads * kPairsPerStep;
  }
  const int64_t rest = (parameters.bytes + 7) / 8 - begin;
  if (rest > 0) {
    const int64_t blocks = std::min((rest + kThreads - 1) / kThreads, blocks_max);
    MixBytes<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(parameters, begin);
  }
  return cudaGetLastError();
}

}  // namespace quantgate
