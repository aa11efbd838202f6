// How one block of threads adds a group of segments' sums: more levels of the pairwise tree.
// Included by .cu files only.
#pragma once

#include "kernels/compare/segment_reader.h"

namespace quantgate {

inline constexpr int kGroupWarps = 4, kGroupThreads = 32 * kGroupWarps;
/// Runs of segments, a thread for each and each series.
inline constexpr int kGroupRun = kSegmentGroup / (kGroupThreads / kSegmentSeries);
static_assert(kGroupRun == 16 && kSegmentSeries == 8);

struct GroupMemory {
  double of_warp[kGroupWarps][kSegmentSeries];
};

/// How many sums `level` launches of LaunchSumSegments leave of so many segments.
__device__ inline int64_t SegmentsAt(int64_t segments, int level) {
  for (; level > 0; --level) segments = (segments + kSegmentGroup - 1) / kSegmentGroup;
  return segments;
}

/// The pairwise sum over the four lanes of one series, in each of them.
__device__ inline double SumOverSeries(double sum) {
  sum += __shfl_xor_sync(kWholeWarp, sum, kSegmentSeries);
  return sum + __shfl_xor_sync(kWholeWarp, sum, 2 * kSegmentSeries);
}

/// Adds the warp's share of group `group` of the `count` sums in `from`, to shared memory. Sums
/// that the group lacks count as -0.0.
__device__ inline void AddShareOfGroup(const double* from, int64_t count, int64_t group,
                                       GroupMemory& memory) {
  const int lane = threadIdx.x % 32, series = lane % kSegmentSeries;
  const int64_t first = group * kSegmentGroup + threadIdx.x / kSegmentSeries * kGroupRun;
  const double* run = from + first * kSegmentSeries + series;
  double terms[kGroupRun];
#pragma unroll
  for (int i = 0; i < kGroupRun; ++i) {
    terms[i] = first + i < count ? run[i * kSegmentSeries] : -0.0;
  }
  const auto term = [&](int i) { return terms[i]; };
  const double sum = SumOverSeries(SumInOrder<kGroupRun>(term));
  if (lane < kSegmentSeries) memory.of_warp[threadIdx.x / 32][series] = sum;
}

/// The sum of a group from its shares in memory: series i in lane i. Called by one warp.
__device__ inline double SumOfGroup(const GroupMemory& memory) {
  const int lane = threadIdx.x % 32;
  return SumOverSeries(memory.of_warp[lane / kSegmentSeries][lane % kSegmentSeries]);
}

}  // namespace quantgate
