// Sums of segments to sums of blocks: more levels of the same pairwise tree.
#include "kernels/compare/segment_reader.h"

namespace quantgate {
namespace {

constexpr int kSlots = 32;  // Runs of segments, a thread for each and each series.
constexpr int kRun = kSegmentGroup / kSlots;
constexpr int kThreads = kSlots * kSegmentSeries;
static_assert(kRun == 8);

__device__ int64_t SegmentsAt(int64_t segments, int level) {
  for (; level > 0; --level) segments = (segments + kSegmentGroup - 1) / kSegmentGroup;
  return segments;
}

/// One block of threads adds one group; what is missing of it stands as -0.0.
__global__ void __launch_bounds__(kThreads) SumGroup(const SegmentSumParameters parameters) {
  const BlockShape block(parameters.cut, blockIdx.y);
  const int64_t count = SegmentsAt(block.segments(), parameters.level);
  const int64_t room = SegmentsAt(parameters.cut.segments, parameters.level);
  const double* from = parameters.from + blockIdx.y * room * kSegmentSeries;
  const int series = threadIdx.x % kSegmentSeries, slot = threadIdx.x / kSegmentSeries;
  const int64_t first = int64_t{blockIdx.x} * kSegmentGroup + slot * kRun;
  double terms[kRun];
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    terms[i] = first + i < count ? from[(first + i) * kSegmentSeries + series] : -0.0;
  }
  __shared__ double sums[kSlots][kSegmentSeries];
  sums[slot][series] = ((terms[0] + terms[1]) + (terms[2] + terms[3])) +
                       ((terms[4] + terms[5]) + (terms[6] + terms[7]));
  for (int distance = 1; distance < kSlots; distance *= 2) {
    __syncthreads();
    if (slot % (2 * distance) == 0) sums[slot][series] += sums[slot + distance][series];
  }
  if (slot == 0) {
    double* to = parameters.to + (blockIdx.y * int64_t{gridDim.x} + blockIdx.x) * kSegmentSeries;
    to[series] = sums[0][series];
  }
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
  SumGroup<<<grid, kThreads, 0, stream>>>(parameters);
  return cudaGetLastError();
}

}  // namespace quantgate
