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

__device__ int64_t LocateLargest(const ErrorParameters& errors, const BlockShape& block,
                                 int64_t position, uint64_t (&bits)[2]) {
  bits[0] = bits[1] = 0;
  if (position < 0) return -1;
  const int64_t index = block.IndexOf(position);
  bits[0] = BitsAt(errors.subject.data, errors.subject_bytes, index);
  bits[1] = BitsAt(errors.reference.data, errors.reference_bytes, index);
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
  if (threadIdx.x != 0) return;
  const BlockShape block(errors.cut, blockIdx.x);
  totals.found = SliceOf(found);
  totals.max_abs_index = LocateLargest(errors, block, found.max_abs.position, totals.max_abs_bits);
  totals.max_rel_index = LocateLargest(errors, block, found.max_rel.position, totals.max_rel_bits);
}

}  // namespace

cudaError_t LaunchMeasureSegments(const ErrorParameters& parameters, ComparePath path,
                                  cudaStream_t stream) {
  const int blocks = parameters.cut.rows * parameters.cut.columns;
  if (blocks == 0) return cudaSuccess;
  if (path == ComparePath::kTuned && LaunchTunedSegments(parameters, stream)) {
    return cudaGetLastError();
  }
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
