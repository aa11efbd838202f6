#include "kernels/quantize/cuda/scale_kernels_cuda.h"

namespace quantgate {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksMax = 1024;

/// The number of blocks for `count` items, over which threads stride.
int BlocksFor(int64_t count) {
  const int64_t blocks = (count + kThreads - 1) / kThreads;
  return static_cast<int>(blocks < kBlocksMax ? blocks : kBlocksMax);
}

__device__ int64_t FirstIndex() { return int64_t{blockIdx.x} * kThreads + threadIdx.x; }
__device__ int64_t Stride() { return int64_t{gridDim.x} * kThreads; }

template <typename From, typename To>
__global__ void MoveScales(const ScaleMove move) {
  const ScaleGrid& grid = move.grid;
  for (int64_t i = FirstIndex(); i < grid.outer * grid.blocks; i += Stride()) {
    const ScaleMoveResult result =
        MoveScale(grid, move.from_layout, move.to_layout, i / grid.blocks, i % grid.blocks,
                  static_cast<const From*>(move.from), static_cast<To*>(move.to));
    if (result == ScaleMoveResult::kMoved || move.failure == nullptr) continue;
    const unsigned long long differ = result == ScaleMoveResult::kCopiesDiffer ? 1 : 0;
    atomicMax(move.failure, ~(static_cast<unsigned long long>(i) * 2 + differ));
  }
}

/// A thread adds a run of equal codes at once, since neighbours are often equal.
__global__ void __launch_bounds__(kThreads)
    CountScales(const void* scales, bool is_fp32, int64_t count, SummaryRecord* record) {
  __shared__ unsigned found[kScaleCodes];
  for (int code = static_cast<int>(threadIdx.x); code < kScaleCodes; code += kThreads) {
    found[code] = 0;
  }
  __syncthreads();
  unsigned code = 0, run = 0;
  for (int64_t i = FirstIndex(); i < count; i += Stride()) {
    const unsigned next = is_fp32 ? static_cast<const uint32_t*>(scales)[i] >> 23 & 0xFF
                                  : static_cast<const uint8_t*>(scales)[i];
    if (next != code) {
      if (run != 0) atomicAdd(&found[code], run);
      code = next;
      run = 0;
    }
    ++run;
  }
  if (run != 0) atomicAdd(&found[code], run);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kScaleCodes; i += kThreads) {
    if (found[i] != 0) atomicAdd(&record->scale_codes[i], found[i]);
  }
}

__global__ void GatherSummary(const SummaryScalars scalars, SummaryRecord* record) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < 7 && scalars.counts != nullptr) record->counts[i] = scalars.counts[i];
  if (i != 0) return;
  if (scalars.amax != nullptr) record->amax = *scalars.amax;
  if (scalars.amax_columnwise != nullptr) record->amax_columnwise = *scalars.amax_columnwise;
  if (scalars.scale != nullptr) record->scale = *scalars.scale;
  if (scalars.scale_inv != nullptr) record->scale_inv = *scalars.scale_inv;
}

// ---- delayed scaling

constexpr int kHistoryThreads = 1024;

/// The maximum of rows 1 and up by one block: MaxNumber or MaxOrNan, whose result does not depend
/// on the order except in the bits of a NaN, which no rule reads.
__device__ float MaxOfHistory(const DelayedStateJob& job) {
  namespace steps = delayed_scaling_steps;
  __shared__ float of_threads[kHistoryThreads];
  const bool is_fused = job.update == ScaleUpdate::kFused;
  const auto larger = [&](float a, float b) {
    return is_fused ? steps::MaxNumber(a, b) : steps::MaxOrNan(a, b);
  };
  const int thread = static_cast<int>(threadIdx.x);
  float maximum = 0.0f;
  for (int64_t i = 1 + thread; i < job.length; i += kHistoryThreads) {
    maximum = larger(maximum, job.old_history[i]);
  }
  of_threads[thread] = maximum;
  for (int distance = kHistoryThreads / 2; distance > 0; distance /= 2) {
    __syncthreads();
    if (thread < distance) {
      of_threads[thread] = larger(of_threads[thread], of_threads[thread + distance]);
    }
  }
  __syncthreads();
  return of_threads[0];
}

/// UpdateDelayedScale: every thread moves some rows, and thread 0 makes the scale from a history of
/// two rows, row 0 and the maximum of the others.
__device__ void Update(const DelayedStateJob& job) {
  const float newest = job.old_history[0];
  const bool rolls = job.update == ScaleUpdate::kUnfused || newest != 0;
  const float maximum = MaxOfHistory(job);
  const int64_t last = job.length - 1;
  for (int64_t i = 1 + threadIdx.x; i < job.length; i += kHistoryThreads) {
    job.history[i] = !rolls ? job.old_history[i] : i == last ? newest : job.old_history[i + 1];
  }
  if (threadIdx.x != 0) return;
  job.history[0] = rolls ? 0.0f : newest;
  float summary[2] = {newest, maximum};
  float scale = *job.old_scale;
  UpdateDelayedScale(job.update, job.algorithm, job.max_finite, job.margin, newest, summary, 2,
                     &scale);
  *job.scale = scale;
}

__global__ void __launch_bounds__(kHistoryThreads) MakeDelayedState(const DelayedStateJob job) {
  using Event = DelayedStateJob::Event;
  if (job.event == Event::kUpdate) {
    Update(job);
    return;
  }
  for (int64_t i = threadIdx.x; i < job.length; i += kHistoryThreads) {
    const float old = job.old_history[i];
    const float first =
        job.event == Event::kCast ? delayed_scaling_steps::MaxNumber(old, *job.amax) : *job.amax;
    job.history[i] = i == 0 ? first : old;
  }
  if (threadIdx.x == 0) *job.scale = *job.old_scale;
}

// ---- transposition

/// A warp writes neighbouring bytes; it reads lines that neighbouring warps read, too.
__global__ void TransposeNibbles(const uint8_t* from, uint8_t* to, int64_t rows, int64_t columns) {
  const int64_t pairs = rows / 2;
  for (int64_t i = FirstIndex(); i < columns * pairs; i += Stride()) {
    const int64_t column = i / pairs, row = i % pairs * 2;
    const int shift = static_cast<int>(column % 2 * 4);
    const uint8_t* first = from + row * (columns / 2) + column / 2;
    const int lower = *first >> shift & 0xF, upper = first[columns / 2] >> shift & 0xF;
    to[i] = static_cast<uint8_t>(lower | upper << 4);
  }
}

__global__ void TransposeReplicated(const uint8_t* from, uint8_t* to, int64_t rows, int64_t tiles,
                                    int side) {
  const int64_t across = rows / side;
  for (int64_t i = FirstIndex(); i < tiles * side * across; i += Stride()) {
    const int64_t column = i / across, tile = i % across;
    to[i] = from[tile * side * tiles + column / side];
  }
}

}  // namespace

cudaError_t LaunchMoveScales(const ScaleMove& move, cudaStream_t stream) {
  const int64_t count = move.grid.outer * move.grid.blocks;
  if (count == 0) return cudaSuccess;
  const auto to_f32 =
      move.is_from_f32 ? &MoveScales<uint32_t, uint32_t> : &MoveScales<uint8_t, uint32_t>;
  const auto to_bytes =
      move.is_from_f32 ? &MoveScales<uint32_t, uint8_t> : &MoveScales<uint8_t, uint8_t>;
  const auto kernel = move.is_to_f32 ? to_f32 : to_bytes;
  kernel<<<BlocksFor(count), kThreads, 0, stream>>>(move);
  return cudaGetLastError();
}

cudaError_t LaunchCountScales(const void* scales, bool is_fp32, int64_t count,
                              SummaryRecord* record, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  CountScales<<<BlocksFor(count), kThreads, 0, stream>>>(scales, is_fp32, count, record);
  return cudaGetLastError();
}

cudaError_t LaunchGatherSummary(const SummaryScalars& scalars, SummaryRecord* record,
                                cudaStream_t stream) {
  GatherSummary<<<1, 32, 0, stream>>>(scalars, record);
  return cudaGetLastError();
}

cudaError_t LaunchDelayedState(const DelayedStateJob& job, cudaStream_t stream) {
  MakeDelayedState<<<1, kHistoryThreads, 0, stream>>>(job);
  return cudaGetLastError();
}

cudaError_t LaunchTransposeNibbles(const uint8_t* from, uint8_t* to, int64_t rows, int64_t columns,
                                   cudaStream_t stream) {
  const int64_t count = columns * (rows / 2);
  if (count == 0) return cudaSuccess;
  TransposeNibbles<<<BlocksFor(count), kThreads, 0, stream>>>(from, to, rows, columns);
  return cudaGetLastError();
}

cudaError_t LaunchTransposeReplicated(const uint8_t* from, uint8_t* to, int64_t rows, int64_t tiles,
                                      int side, cudaStream_t stream) {
  const int64_t count = tiles * rows;
  if (count == 0) return cudaSuccess;
  TransposeReplicated<<<BlocksFor(count), kThreads, 0, stream>>>(from, to, rows, tiles, side);
  return cudaGetLastError();
}

}  // namespace quantgate
