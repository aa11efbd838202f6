// The sum of MixWord over the words of a tensor (docs/definitions.md section 4.2).
#include <algorithm>

#include "kernels/numerics/mix.h"
#include "kernels/tensor/tensor_kernels_cuda.h"

namespace quantgate {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerMultiprocessor = 8;
constexpr int kPairsPerStep = 4;  // Loads in flight: 64 bytes a thread.
constexpr int64_t kWordsOfOneBlock = 2 * kThreads * kPairsPerStep;

/// Word `index`, the last one padded with zeros.
__device__ uint64_t WordAt(const std::byte* data, int64_t bytes, int64_t index) {
  uint64_t word = 0;
  for (int i = 0; i < 8 && 8 * index + i < bytes; ++i) {
    word |= static_cast<uint64_t>(data[8 * index + i]) << (8 * i);
  }
  return word;
}

/// Adds the block's sums to the total, or (is_alone) is the total.
__device__ void AddToGlobal(MixSum sum, uint64_t* total, bool is_alone) {
  for (int distance = 16; distance > 0; distance /= 2) {
    sum.high += __shfl_xor_sync(0xFFFFFFFFu, sum.high, distance);
    sum.low += __shfl_xor_sync(0xFFFFFFFFu, sum.low, distance);
  }
  __shared__ MixSum of_warp[kThreads / 32];
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < kThreads / 32; ++warp) sum.Add(of_warp[warp]);
  if (is_alone) {
    total[0] = sum.high;
    total[1] = sum.low;
    return;
  }
  atomicAdd(reinterpret_cast<unsigned long long*>(total), sum.high);
  atomicAdd(reinterpret_cast<unsigned long long*>(total + 1), sum.low);
}

/// The sum that a thread begins with.
__device__ MixSum BeginningOf(const FingerprintParameters& parameters) {
  MixSum sum;
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    sum.high = parameters.high;
    sum.low = parameters.low;
  }
  return sum;
}

/// Words [begin, ceil(bytes / 8)), byte by byte.
__global__ void __launch_bounds__(kThreads)
    MixBytes(const FingerprintParameters parameters, int64_t begin, bool is_alone) {
  MixSum sum = BeginningOf(parameters);
  const int64_t words = (parameters.bytes + 7) / 8;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = begin + int64_t{blockIdx.x} * kThreads + threadIdx.x; i < words; i += stride) {
    sum.Add(MixWord(static_cast<uint64_t>(i), WordAt(parameters.data, parameters.bytes, i)));
  }
  AddToGlobal(sum, parameters.sum, is_alone);
}

/// The first tiles * kThreads * kPairsPerStep pairs of words, 16 bytes at a time.
__global__ void __launch_bounds__(kThreads)
    MixPairs(const FingerprintParameters parameters, int64_t tiles) {
  MixSum sum = BeginningOf(parameters);
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
  AddToGlobal(sum, parameters.sum, false);
}

}  // namespace

cudaError_t LaunchFingerprint(const FingerprintParameters& parameters, KernelPath path,
                              cudaStream_t stream) {
  const int64_t words = (parameters.bytes + 7) / 8;
  if (words <= kWordsOfOneBlock) {
    MixBytes<<<1, kThreads, 0, stream>>>(parameters, 0, true);
    return cudaGetLastError();
  }
  const cudaError_t zeroed = cudaMemsetAsync(parameters.sum, 0, 2 * sizeof(uint64_t), stream);
  if (zeroed != cudaSuccess) return zeroed;
  const int64_t blocks_max = int64_t{parameters.multiprocessors} * kBlocksPerMultiprocessor;
  FingerprintParameters rest = parameters;
  int64_t begin = 0;
  if (path == KernelPath::kTuned && reinterpret_cast<uintptr_t>(parameters.data) % 16 == 0) {
    // One at least: there are more words than one block takes, all but the last of them whole.
    const int64_t tiles = parameters.bytes / (8 * kWordsOfOneBlock);
    MixPairs<<<static_cast<unsigned>(std::min(tiles, blocks_max)), kThreads, 0, stream>>>(
        parameters, tiles);
    begin = tiles * kWordsOfOneBlock;
    rest.high = rest.low = 0;
  }
  if (begin < words) {
    const int64_t blocks = std::min((words - begin + kThreads - 1) / kThreads, blocks_max);
    MixBytes<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(rest, begin, false);
  }
  return cudaGetLastError();
}

}  // namespace quantgate
