// Puts together what either error kernel found: a block of threads for each block of the heat map,
// and the block of threads that ends last for all of them. The sums of the blocks are added one
// after the other in their order; one warp does nothing else, while the others merge the rest.
#include "kernels/compare/error_found.h"
#include "kernels/compare/segment_group_cuda.h"

namespace quantgate {
namespace {

/// Enough that all blocks of threads, one for each block of the heat map, are resident together.
constexpr int kFinishBlocksPerMultiprocessor = 8;

/// The bits of one element, zero-extended.
__device__ uint64_t BitsAt(const void* data, int bytes, int64_t index) {
  switch (bytes) {
    case 8:
      return static_cast<const uint64_t*>(data)[index];
    case 4:
      return static_cast<const uint32_t*>(data)[index];
    case 2:
      return static_cast<const uint16_t*>(data)[index];
    default:
      return static_cast<const uint8_t*>(data)[index];
  }
}

/// Adds rows of sums one after the other with one warp, a series in each lane. The rows come
/// through shared memory in stages.
class BlockOrderSum {
 public:
  static constexpr int kRows = 64, kStages = 4;
  using Memory = double[kStages][kRows][kSegmentSeries];

  __device__ BlockOrderSum(const double (*rows)[kSegmentSeries], int count, Memory& memory)
      : rows_(rows), count_(count), memory_(memory) {}

  /// The sum of series i in lane i.
  __device__ double Add() const {
    const int series = threadIdx.x % kSegmentSeries;
    double sum = 0;
    for (int stage = 0; stage < kStages - 1; ++stage) Ask(stage);
    for (int stage = 0; stage * kRows < count_; ++stage) {
      asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
      __syncwarp();  // The stage has arrived, and the one before has been read.
      Ask(stage + kStages - 1);
      const auto& rows = memory_[stage % kStages];
      const int left = count_ - stage * kRows;
      if (left >= kRows) {
#pragma unroll 16
        for (int i = 0; i < kRows; ++i) sum += rows[i][series];
      } else {
        for (int i = 0; i < left; ++i) sum += rows[i][series];
      }
    }
    return sum;
  }

 private:
  /// Begins to copy a stage, without the rows beyond the last one.
  __device__ void Ask(int stage) const {
    constexpr int kEach = 2;  // Numbers in a copy.
    constexpr int kCopies = kRows * kSegmentSeries / kEach;
#pragma unroll
    for (int i = 0; i < kCopies; i += 32) {
      const int number = (i + static_cast<int>(threadIdx.x) % 32) * kEach;
      const int row = number / kSegmentSeries, series = number % kSegmentSeries;
      if (stage * kRows + row >= count_) continue;
      const auto to =
          static_cast<uint32_t>(__cvta_generic_to_shared(&memory_[stage % kStages][row][series]));
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to),
                   "l"(&rows_[stage * kRows + row][series])
                   : "memory");
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }

  const double (*const rows_)[kSegmentSeries];
  const int count_;
  Memory& memory_;
};

struct FinishMemory {
  GroupMemory groups[kFinishGroups];
  double sums[kSegmentSeries];
  SliceErrors found;
  int64_t largest_index[2];  ///< In the tensor, of the absolute and the relative error.
  bool is_last;
  alignas(16) BlockOrderSum::Memory rows;
};

/// Merges what the slices of a block found. Called by one warp.
__device__ void MergeSlices(const ErrorParameters& errors, const BlockShape& block,
                            FinishMemory& memory) {
  const SliceErrors* slices = errors.slices + int64_t{blockIdx.x} * errors.cut.slices;
  const int lane = threadIdx.x % 32;
  FoundErrors found;
  for (int slice = lane; slice < errors.cut.slices; slice += 32) MergeSlice(slices[slice], found);
  if (errors.cut.slices > 1) MergeLanes(found);
  if (lane == 0) memory.found = SliceOf(found);
  __syncwarp();
  if (lane >= 2) return;
  const int64_t position =
      lane == 0 ? memory.found.max_abs_position : memory.found.max_rel_position;
  memory.largest_index[lane] = position < 0 ? -1 : block.IndexOf(position);
}

/// The sum of a block, series i in lane i. Called by the first warp once all warps have written
/// their shares.
__device__ double SumOfBlock(const FinishMemory& memory) {
  double sums[kFinishGroups];
#pragma unroll
  for (int i = 0; i < kFinishGroups; ++i) sums[i] = SumOfGroup(memory.groups[i]);
  static_assert(kFinishGroups == 4);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/// Writes what a block adds to the report. Called by one thread.
__device__ void StoreBlock(const FinishMemory& memory, FinishedBlocks& blocks) {
  const SliceErrors& found = memory.found;
  const unsigned i = blockIdx.x;
  blocks.max_abs[i] = found.max_abs;
  blocks.max_rel[i] = found.max_rel;
  blocks.max_abs_index[i] = memory.largest_index[0];
  blocks.max_rel_index[i] = memory.largest_index[1];
  blocks.finite_count[i] = found.finite_count;
  blocks.relative_count[i] = found.relative_count;
  blocks.saturated_count[i] = found.saturated_count;
  blocks.flushed_to_zero_count[i] = found.flushed_to_zero_count;
  blocks.subnormal_count[i] = found.subnormal_count;
}

__device__ void StoreCell(const FinishMemory& memory, CellErrors& cell) {
  const auto finite_count = static_cast<double>(memory.found.finite_count);
  cell = {finite_count == 0 ? 0 : sqrt(memory.sums[kSquaredError] / finite_count),
          fmax(memory.found.max_abs, 0.0)};
}

/// Finds the largest error of all blocks, its index and the bits of its element. Called by one
/// warp.
__device__ void AddLargest(const ErrorParameters& errors, const double* values,
                           const int64_t* indices, double& value, int64_t& index,
                           uint64_t (&bits)[2]) {
  const int blocks = errors.cut.rows * errors.cut.columns, lane = threadIdx.x % 32;
  LargestFound largest;  // By index in the tensor.
#pragma unroll 8
  for (int i = lane; i < blocks; i += 32) largest.Merge(values[i], indices[i]);
  largest.MergeLanes();
  const int64_t at = largest.position;
  if (lane == 0) {
    value = largest.value;
    index = at;
    bits[0] = at < 0 ? 0 : BitsAt(errors.subject.data, errors.subject_bytes, at);
  }
  if (lane == 1) bits[1] = at < 0 ? 0 : BitsAt(errors.reference.data, errors.reference_bytes, at);
}

/// By one warp.
__device__ void AddCounts(const FinishedBlocks& blocks, int count, SliceErrors& total) {
  const int lane = threadIdx.x % 32;
  FoundErrors found;
#pragma unroll 4
  for (int i = lane; i < count; i += 32) {
    found.finite_count += blocks.finite_count[i];
    found.relative_count += blocks.relative_count[i];
    found.saturated_count += blocks.saturated_count[i];
    found.flushed_to_zero_count += blocks.flushed_to_zero_count[i];
    found.subnormal_count += blocks.subnormal_count[i];
  }
  AddLaneCounts(found);
  if (lane != 0) return;
  total.finite_count = found.finite_count;
  total.relative_count = found.relative_count;
  total.saturated_count = found.saturated_count;
  total.flushed_to_zero_count = found.flushed_to_zero_count;
  total.subnormal_count = found.subnormal_count;
}

/// Merges all blocks to one, by warps that work independently.
__device__ void AddBlocks(const FinishErrorParameters& parameters, FinishMemory& memory) {
  const ErrorParameters& errors = parameters.errors;
  const FinishedBlocks& blocks = *parameters.blocks;
  const int count = errors.cut.rows * errors.cut.columns;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  BlockTotals& total = *parameters.total;
  static_assert(kGroupWarps == 4);
  if (warp == 0) {
    const double sum = BlockOrderSum(blocks.sums, count, memory.rows).Add();
    if (lane < kSegmentSeries) total.sums[lane] = lane < kErrorSeriesCount ? sum : 0;
  } else if (warp == 1) {
    AddLargest(errors, blocks.max_abs, blocks.max_abs_index, total.found.max_abs,
               total.max_abs_index, total.max_abs_bits);
  } else if (warp == 2) {
    AddLargest(errors, blocks.max_rel, blocks.max_rel_index, total.found.max_rel,
               total.max_rel_index, total.max_rel_bits);
  } else {
    AddCounts(blocks, count, total.found);
  }
}

/// This kernel starts before the preceding one has ended.
__global__ void __launch_bounds__(kGroupThreads, kFinishBlocksPerMultiprocessor)
    FinishErrors(const __grid_constant__ FinishErrorParameters parameters) {
  __shared__ FinishMemory memory;
  const BlockShape block(parameters.errors.cut, blockIdx.x);
  const int64_t count = SegmentsAt(block.segments(), parameters.level);
  const int64_t room = SegmentsAt(parameters.errors.cut.segments, parameters.level);
  const double* sums = parameters.sums + blockIdx.x * room * kSegmentSeries;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  asm volatile("griddepcontrol.wait;" ::: "memory");
#pragma unroll
  for (int i = 0; i < kFinishGroups; ++i) AddShareOfGroup(sums, count, i, memory.groups[i]);
  if (warp == 1) MergeSlices(parameters.errors, block, memory);
  __syncthreads();
  if (warp == 0) {
    const double sum = SumOfBlock(memory);
    if (lane < kSegmentSeries) {
      parameters.blocks->sums[blockIdx.x][lane] = sum;
      memory.sums[lane] = sum;
    }
    if (lane == 0) StoreBlock(memory, *parameters.blocks);
    __threadfence();
    __syncwarp();
    if (lane == 0) {
      memory.is_last = atomicAdd(parameters.errors.finished, 1u) == gridDim.x - 1;
      __threadfence();
    }
  }
  __syncthreads();
  // Writes to the host's memory take long, so they come after the writes that others wait for.
  if (threadIdx.x == kGroupThreads - 1) StoreCell(memory, parameters.cells[blockIdx.x]);
  if (memory.is_last) AddBlocks(parameters, memory);
}

}  // namespace

cudaError_t LaunchFinishErrors(const FinishErrorParameters& parameters, cudaStream_t stream) {
  const int blocks = parameters.errors.cut.rows * parameters.errors.cut.columns;
  if (blocks == 0) return cudaSuccess;
  cudaLaunchAttribute beside_end = {};
  beside_end.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  beside_end.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(kGroupThreads);
  config.stream = stream;
  config.attrs = &beside_end;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, &FinishErrors, parameters);
}

}  // namespace quantgate
