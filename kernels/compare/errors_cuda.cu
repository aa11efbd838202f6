// Errors of a tensor against a reference: the plain kernel, for any two types, and what puts
// together what either kernel found.
#include "kernels/compare/error_found.h"
#include "kernels/compare/errors_tuned.h"

namespace quantgate {
namespace {

__global__ void __launch_bounds__(kErrorThreads)
    MeasureSegments(const __grid_constant__ ErrorParameters parameters) {
  __shared__ float tables[2][256];
  LoadByteValues(parameters.subject, tables[0]);
  LoadByteValues(parameters.reference, tables[1]);
  __syncthreads();
  const BlockShape block(parameters.cut, blockIdx.y);
  double* sums = parameters.sums + blockIdx.y * parameters.cut.segments * kSegmentSeries;
  const NumberSource &subject = parameters.subject, &reference = parameters.reference;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  FoundErrors found;
  const int64_t segments = block.segments();
  for (int64_t segment = int64_t{blockIdx.x} * kErrorWarps + warp; segment < segments;
       segment += int64_t{gridDim.x} * kErrorWarps) {
    const auto stretch = [&](int number) {
      int64_t position =
          segment * kSegmentElements + number * kStretchElements + lane * kChunkElements;
      IndexWalk walk(block, position);
      const auto measure = [&](int) {
        const int64_t here = position++;
        ErrorTerms nothing;
        for (double& term : nothing.values) term = -0.0;
        if (here >= block.count) return nothing;
        const int64_t at = walk.Next();
        return MeasureElement(DoubleAt(subject.data, subject.encoding, tables[0], at),
                              DoubleAt(reference.data, reference.encoding, tables[1], at),
                              parameters.range, here, found);
      };
      return SumOverLanes(SumInOrder<kChunkElements>(measure));
    };
    StoreSums(SumInOrder<kSegmentStretches>(stretch), sums + segment * kSegmentSeries);
  }
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

/// One warp for each block.
__global__ void __launch_bounds__(32)
    FinishErrors(const __grid_constant__ FinishErrorParameters parameters) {
  const ErrorParameters& errors = parameters.errors;
  const SliceErrors* slices = errors.slices + int64_t{blockIdx.x} * errors.cut.slices;
  FoundErrors found;
  for (int slice = threadIdx.x; slice < errors.cut.slices; slice += 32) {
    MergeSlice(slices[slice], found);
  }
  MergeLanes(found);
  BlockTotals& totals = parameters.totals[blockIdx.x];
  if (threadIdx.x < kSegmentSeries) {
    totals.sums[threadIdx.x] = parameters.sums[blockIdx.x * kSegmentSeries + threadIdx.x];
  }
  const BlockShape block(errors.cut, blockIdx.x);
  const int64_t max_abs_index =
      LocateLargest(errors, block, found.max_abs, ErrorKind::kAbsolute, totals.max_abs_bits);
  const int64_t max_rel_index =
      LocateLargest(errors, block, found.max_rel, ErrorKind::kRelative, totals.max_rel_bits);
  if (threadIdx.x != 0) return;
  totals.found = SliceOf(found);
  totals.max_abs_index = max_abs_index;
  totals.max_rel_index = max_rel_index;
}

}  // namespace

cudaError_t LaunchMeasureSegments(const ErrorParameters& parameters, ComparePath path,
                                  cudaStream_t stream) {
  const int blocks = parameters.cut.rows * parameters.cut.columns;
  if (blocks == 0) return cudaSuccess;
  cudaError_t error = cudaSuccess;
  if (path == ComparePath::kTuned && LaunchTunedSegments(parameters, stream, error)) return error;
  const dim3 grid(static_cast<unsigned>(parameters.cut.slices), static_cast<unsigned>(blocks));
  MeasureSegments<<<grid, kErrorThreads, 0, stream>>>(parameters);
  return cudaGetLastError();
}

cudaError_t LaunchFinishErrors(const FinishErrorParameters& parameters, cudaStream_t stream) {
  const int blocks = parameters.errors.cut.rows * parameters.errors.cut.columns;
  if (blocks == 0) return cudaSuccess;
  FinishErrors<<<static_cast<unsigned>(blocks), 32, 0, stream>>>(parameters);
  return cudaGetLastError();
}

}  // namespace quantgate
