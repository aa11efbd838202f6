// Errors of a tensor against a reference: the plain kernel, for any two types, and what puts
// together what either kernel found.
#include "kernels/compare/error_found.h"
#include "kernels/compare/errors_tuned.h"
#include "kernels/compare/segment_group_cuda.h"

namespace quantgate {
namespace {

__global__ void __launch_bounds__(kSegmentThreads)
    MeasureSegments(const __grid_constant__ ErrorParameters parameters) {
  __shared__ float tables[2][256];
  FoundErrors found;
  PrepareFinish(parameters);
  MeasureBlock(parameters, tables, [&](double s, double r, int64_t position, int64_t) {
    return MeasureElement(s, r, parameters.range, position, found);
  });
  StoreFound(found, parameters.slices + blockIdx.y * parameters.cut.slices + blockIdx.x);
}

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

/// Which of the errors of one element.
enum class ErrorKind { kAbsolute, kRelative };

__device__ bool HasError(const ErrorParameters& errors, int64_t index, ErrorKind kind,
                         double value) {
  const NumberSource &subject = errors.subject, &reference = errors.reference;
  const double s = DoubleAt(subject.data, subject.encoding, subject.bytes.value, index);
  const double r = DoubleAt(reference.data, reference.encoding, reference.bytes.value, index);
  if (!(fabs(s) < INFINITY && fabs(r) < INFINITY)) return false;
  if (kind == ErrorKind::kAbsolute) return fabs(s - r) == value;
  return r != 0 && fabs(s - r) / fabs(r) == value;
}

/// Index and bits of the element of the largest error, which is the first of its chunk, or of the
/// elements from its position on, that has it. The whole warp calls this.
__device__ int64_t LocateLargest(const ErrorParameters& errors, const BlockShape& block,
                                 const LargestFound& largest, ErrorKind kind, uint64_t (&bits)[2]) {
  const int lane = threadIdx.x;
  const int64_t mine = largest.position + lane;
  const bool is_largest = largest.position >= 0 && lane < kChunkElements && mine < block.count &&
                          HasError(errors, block.IndexOf(mine), kind, largest.value);
  const unsigned found = __ballot_sync(kWholeWarp, is_largest);
  if (lane == 0) bits[0] = bits[1] = 0;
  if (found == 0) return -1;
  const int64_t index = block.IndexOf(largest.position + __ffs(found) - 1);
  if (lane == 0) {
    bits[0] = BitsAt(errors.subject.data, errors.subject_bytes, index);
    bits[1] = BitsAt(errors.reference.data, errors.reference_bytes, index);
  }
  return index;
}

/// The sum of each series over a block, of series i in thread i.
__device__ double SumOfBlock(const FinishErrorParameters& parameters, const BlockShape& block,
                             GroupMemory& memory) {
  const int64_t count = SegmentsAt(block.segments(), parameters.level);
  const int64_t room = SegmentsAt(parameters.errors.cut.segments, parameters.level);
  const double* from = parameters.sums + blockIdx.x * room * kSegmentSeries;
  double sums[kFinishGroups];
#pragma unroll
  for (int i = 0; i < kFinishGroups; ++i) {
    // -0.0 changes no sum.
    sums[i] = i * kSegmentGroup < room ? SumOfGroup(from, count, i, memory) : -0.0;
  }
  static_assert(kFinishGroups == 4);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/// What a block adds to the report; lane i has `sum`, that of series i. By one warp.
__device__ void FinishBlock(const FinishErrorParameters& parameters, const BlockShape& block,
                            double sum) {
  const ErrorParameters& errors = parameters.errors;
  const SliceErrors* slices = errors.slices + int64_t{blockIdx.x} * errors.cut.slices;
  FoundErrors found;
  for (int slice = threadIdx.x; slice < errors.cut.slices; slice += 32) {
    MergeSlice(slices[slice], found);
  }
  MergeLanes(found);
  BlockTotals& totals = parameters.blocks[blockIdx.x];
  if (threadIdx.x < kSegmentSeries) totals.sums[threadIdx.x] = sum;
  const double squares = __shfl_sync(kWholeWarp, sum, kSquaredError);
  const int64_t max_abs_index =
      LocateLargest(errors, block, found.max_abs, ErrorKind::kAbsolute, totals.max_abs_bits);
  const int64_t max_rel_index =
      LocateLargest(errors, block, found.max_rel, ErrorKind::kRelative, totals.max_rel_bits);
  if (threadIdx.x != 0) return;
  totals.found = SliceOf(found);
  totals.max_abs_index = max_abs_index;
  totals.max_rel_index = max_rel_index;
  const auto finite_count = static_cast<double>(found.finite_count);
  parameters.cells[blockIdx.x] = {found.finite_count == 0 ? 0 : sqrt(squares / finite_count),
                                  fmax(found.max_abs.value, 0.0)};
}

/// Numbers of one series that a warp adds, one after the other, as they come through its shared
/// memory. The next ones are on their way meanwhile.
class BlockOrderSum {
 public:
  static constexpr int kNumbers = 256;

  __device__ BlockOrderSum(const BlockTotals* totals, int blocks, int series,
                           double (&memory)[kNumbers])
      : totals_(totals), blocks_(blocks), series_(series), memory_(memory) {}

  __device__ double Add() {
    double sum = 0;
    Read(0);
    for (int begin = 0; begin < blocks_; begin += kNumbers) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) memory_[32 * i + threadIdx.x % 32] = next_[i];
      __syncwarp();
      Read(begin + kNumbers);
#pragma unroll 16
      for (int i = 0; i < kNumbers; ++i) sum += memory_[i];
      __syncwarp();
    }
    return sum;
  }

 private:
  static constexpr int kEach = kNumbers / 32;

  __device__ void Read(int begin) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int block = begin + 32 * i + static_cast<int>(threadIdx.x) % 32;
      // -0.0 changes no sum.
      next_[i] = block < blocks_ ? totals_[block].sums[series_] : -0.0;
    }
  }

  const BlockTotals* const totals_;
  const int blocks_, series_;
  double (&memory_)[kNumbers];
  double next_[kEach];
};

/// The largest of all blocks, and the bits of its element.
struct LargestOfBlocks {
  LargestFound largest;  // By index in the tensor.
  uint64_t bits[2] = {};

  __device__ void Merge(double value, int64_t index, const uint64_t (&of)[2]) {
    if (index < 0) return;
    largest.Merge(value, index);
    if (largest.position != index) return;
    bits[0] = of[0];
    bits[1] = of[1];
  }
  /// The whole warp calls this. An element is in one block, so one lane has it.
  __device__ void Store(double& value, int64_t& index, uint64_t (&to)[2]) const {
    LargestFound merged = largest;
    merged.MergeLanes();
    if (threadIdx.x % 32 == 0) {
      value = merged.value;
      index = merged.position;
      if (index < 0) to[0] = to[1] = 0;
    }
    if (merged.position < 0 || merged.position != largest.position) return;
    to[0] = bits[0];
    to[1] = bits[1];
  }
};

constexpr int kFinishWarps = kGroupThreads / 32;
static_assert(kErrorSeriesCount < kSegmentSeries && kErrorSeriesCount <= kFinishWarps);

/// What the blocks that this thread has come to.
struct MergedBlocks {
  FoundErrors counts;  ///< And nothing else.
  LargestOfBlocks max_abs, max_rel;

  __device__ void Merge(const BlockTotals& block) {
    counts.finite_count += block.found.finite_count;
    counts.relative_count += block.found.relative_count;
    counts.saturated_count += block.found.saturated_count;
    counts.flushed_to_zero_count += block.found.flushed_to_zero_count;
    counts.subnormal_count += block.found.subnormal_count;
    max_abs.Merge(block.found.max_abs, block.max_abs_index, block.max_abs_bits);
    max_rel.Merge(block.found.max_rel, block.max_rel_index, block.max_rel_bits);
  }
  /// The whole warp calls this.
  __device__ void Store(BlockTotals& total) {
    MergeLanes(counts);
    if (threadIdx.x % 32 == 0) total.found = SliceOf(counts);
    __syncwarp();
    max_abs.Store(total.found.max_abs, total.max_abs_index, total.max_abs_bits);
    max_rel.Store(total.found.max_rel, total.max_rel_index, total.max_rel_bits);
  }
};

struct FinishMemory {
  GroupMemory group;
  BlockTotals of_warp[kFinishWarps];
  double numbers[kErrorSeriesCount][BlockOrderSum::kNumbers];
  bool is_last;
};

/// All blocks to one. A warp for each series.
__device__ void AddBlocks(const FinishErrorParameters& parameters, FinishMemory& memory) {
  const BlockCut& cut = parameters.errors.cut;
  const int blocks = cut.rows * cut.columns;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  BlockTotals& total = *parameters.total;
  MergedBlocks merged;
#pragma unroll 2
  for (int i = threadIdx.x; i < blocks; i += kGroupThreads) merged.Merge(parameters.blocks[i]);
  merged.Store(memory.of_warp[warp]);
  if (warp < kErrorSeriesCount) {
    const double sum = BlockOrderSum(parameters.blocks, blocks, warp, memory.numbers[warp]).Add();
    if (lane == 0) total.sums[warp] = sum;
  }
  __syncthreads();
  if (threadIdx.x >= 32) return;
  MergedBlocks all;
  if (lane < kFinishWarps) all.Merge(memory.of_warp[lane]);
  all.Store(total);
  if (lane == 0) total.sums[kErrorSeriesCount] = 0;
}

/// One block of threads for each block; the one that is done last adds them. This kernel starts
/// beside the end of the one before.
__global__ void __launch_bounds__(kGroupThreads, 4)
    FinishErrors(const __grid_constant__ FinishErrorParameters parameters) {
  __shared__ FinishMemory memory;
  asm volatile("griddepcontrol.wait;" ::: "memory");
  const BlockShape block(parameters.errors.cut, blockIdx.x);
  const double sum = SumOfBlock(parameters, block, memory.group);
  if (threadIdx.x < 32) {
    FinishBlock(parameters, block, sum);
    __threadfence();
    __syncwarp();
    if (threadIdx.x == 0) {
      memory.is_last = atomicAdd(parameters.errors.finished, 1u) == gridDim.x - 1;
      __threadfence();
    }
  }
  __syncthreads();
  if (memory.is_last) AddBlocks(parameters, memory);
}

}  // namespace

cudaError_t LaunchMeasureSegments(const ErrorParameters& parameters, ComparePath path,
                                  cudaStream_t stream) {
  const int blocks = parameters.cut.rows * parameters.cut.columns;
  if (blocks == 0) return cudaSuccess;
  cudaError_t error = cudaSuccess;
  if (path == ComparePath::kTuned && LaunchTunedSegments(parameters, stream, error)) return error;
  const dim3 grid(static_cast<unsigned>(parameters.cut.slices), static_cast<unsigned>(blocks));
  MeasureSegments<<<grid, kSegmentThreads, 0, stream>>>(parameters);
  return cudaGetLastError();
}

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
