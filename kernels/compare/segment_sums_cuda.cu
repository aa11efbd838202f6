// Adds the sums of segments to sums of groups of segments: more levels of the same pairwise tree.
#include "kernels/compare/segment_group_cuda.h"

namespace quantgate {
namespace {

/// One block of threads adds one group.
__global__ void __launch_bounds__(kGroupThreads) SumGroup(const SegmentSumParameters parameters) {
  __shared__ GroupMemory memory;
  const BlockShape block(parameters.cut, blockIdx.y);
  const int64_t count = SegmentsAt(block.segments(), parameters.level);
  const int64_t room = SegmentsAt(parameters.cut.segments, parameters.level);
  const double* from = parameters.from + blockIdx.y * room * kSegmentSeries;
  AddShareOfGroup(from, count, blockIdx.x, memory);
  __syncthreads();
  if (threadIdx.x >= 32) return;
  const double sum = SumOfGroup(memory);
  double* to = parameters.to + (blockIdx.y * int64_t{gridDim.x} + blockIdx.x) * kSegmentSeries;
  if (threadIdx.x < kSegmentSeries) to[threadIdx.x] = sum;
}

}  // namespace

cudaError_t LaunchSumSegments(const SegmentSumParameters& parameters, cudaStream_t stream) {
  const int blocks = parameters.cut.rows * parameters.cut.columns;
  if (blocks == 0) return cudaSuccess;
  int64_t room = parameters.cut.segments;
  for (int level = 0; level <= parameters.level; ++level) {
    room = (room + kSegmentGroup - 1) / kSegmentGroup;
  }
  const dim3 grid(static_cast<unsigned>(room), static_cast<unsigned>(blocks));
  SumGroup<<<grid, kGroupThreads, 0, stream>>>(parameters);
  return cudaGetLastError();
}

}  // namespace quantgate
