// The sum of MixWord over the words of a tensor (docs/file-formats.md section 1.2).
#include <algorithm>

#include "kernels/numerics/mix.h"
#include "kernels/tensor/tensor_kernels_cuda.h"

namespace quantgate {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerMultiprocessor = 8;
constexpr int kPairsPerStep = 4;  // Loads in flight: 64 bytes per thread.
constexpr int64_t kWordsOfTile = 2 * kThreads * kPairsPerStep;
constexpr int kJobsPerLaunch = 64;

/// The jobs of one launch; each has blocks of its own.
struct Batch {
  FingerprintJob jobs[kJobsPerLaunch];
  int first_block[kJobsPerLaunch + 1];
  uint64_t* sums;
  KernelPath path;
};
static_assert(sizeof(Batch) <= 4096, "a kernel's parameters");

/// The number of tiles of kWordsOfTile words that can be read 16 bytes at a time.
__host__ __device__ int64_t TilesOf(const FingerprintJob& job, KernelPath path) {
  const bool is_aligned = reinterpret_cast<uintptr_t>(job.data) % 16 == 0;
  return path == KernelPath::kTuned && is_aligned ? job.bytes / (8 * kWordsOfTile) : 0;
}

int BlocksOf(const FingerprintJob& job, KernelPath path, int64_t blocks_max) {
  const int64_t words = (job.bytes + 7) / 8;
  if (words <= kWordsOfTile) return 1;
  const int64_t tiles = TilesOf(job, path);
  const int64_t wanted = tiles > 0 ? tiles : (words + kThreads - 1) / kThreads;
  return static_cast<int>(std::min(wanted, blocks_max));
}

/// Word `index`, the last one padded with zeros.
__device__ uint64_t WordAt(const std::byte* data, int64_t bytes, int64_t index) {
  uint64_t word = 0;
  for (int i = 0; i < 8 && 8 * index + i < bytes; ++i) {
    word |= static_cast<uint64_t>(data[8 * index + i]) << (8 * i);
  }
  return word;
}

/// Adds the sums of the block to the total; with is_alone it writes them as the total.
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

/// Mixes the first `tiles` tiles, 16 bytes at a time.
__device__ void MixTiles(const FingerprintJob& job, int64_t tiles, int block, int blocks,
                         MixSum& sum) {
  const auto* pairs = reinterpret_cast<const ulonglong2*>(job.data);
  for (int64_t tile = block; tile < tiles; tile += blocks) {
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
}

/// Mixes the words [begin, ceil(bytes / 8)), byte by byte.
__device__ void MixBytes(const FingerprintJob& job, int64_t begin, int block, int blocks,
                         MixSum& sum) {
  const int64_t words = (job.bytes + 7) / 8;
  const int64_t stride = int64_t{blocks} * kThreads;
  for (int64_t i = begin + int64_t{block} * kThreads + threadIdx.x; i < words; i += stride) {
    sum.Add(MixWord(static_cast<uint64_t>(i), WordAt(job.data, job.bytes, i)));
  }
}

__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    Mix(const __grid_constant__ Batch batch) {
  int index = 0;
  while (static_cast<int>(blockIdx.x) >= batch.first_block[index + 1]) ++index;
  const FingerprintJob& job = batch.jobs[index];
  const int block = static_cast<int>(blockIdx.x) - batch.first_block[index];
  const int blocks = batch.first_block[index + 1] - batch.first_block[index];
  MixSum sum;
  if (block == 0 && threadIdx.x == 0) {
    sum.high = job.high;
    sum.low = job.low;
  }
  const int64_t tiles = TilesOf(job, batch.path);
  MixTiles(job, tiles, block, blocks, sum);
  MixBytes(job, tiles * kWordsOfTile, block, blocks, sum);
  AddToGlobal(sum, batch.sums + 2 * index, blocks == 1);
}

/// Launches at most kJobsPerLaunch jobs.
cudaError_t LaunchBatch(std::span<const FingerprintJob> jobs, uint64_t* sums, int64_t blocks_max,
                        KernelPath path, cudaStream_t stream) {
  Batch batch = {};
  batch.sums = sums;
  batch.path = path;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const int blocks = BlocksOf(jobs[i], path, blocks_max);
    batch.jobs[i] = jobs[i];
    batch.first_block[i + 1] = batch.first_block[i] + blocks;
  }
  Mix<<<batch.first_block[jobs.size()], kThreads, 0, stream>>>(batch);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchFingerprints(std::span<const FingerprintJob> jobs, uint64_t* sums,
                               int multiprocessors, KernelPath path, cudaStream_t stream) {
  const int64_t blocks_max = int64_t{multiprocessors} * kBlocksPerMultiprocessor;
  for (size_t begin = 0; begin < jobs.size(); begin += kJobsPerLaunch) {
    const auto batch = jobs.subspan(begin, std::min<size_t>(kJobsPerLaunch, jobs.size() - begin));
    const cudaError_t launched = LaunchBatch(batch, sums + 2 * begin, blocks_max, path, stream);
    if (launched != cudaSuccess) return launched;
  }
  return cudaSuccess;
}

}  // namespace quantgate
