// A group of sums of segments, added by one block of threads: more levels of the pairwise tree.
// Included by .cu files only.
#pragma once

#include "kernels/compare/segment_reader.h"

namespace quantgate {

inline constexpr int kGroupSlots = 32;  // Runs of segments, a thread for each and each series.
inline constexpr int kGroupRun = kSegmentGroup / kGroupSlots;
inline constexpr int kGroupThreads = kGroupSlots * kSegmentSeries;
static_assert(kGroupRun == 8);

struct GroupMemory {
  double sums[kGroupSlots][kSegmentSeries];
};

/// How many sums `level` launches of LaunchSumSegments leave of that many segments.
__device__ inline int64_t SegmentsAt(int64_t segments, int level) {
  for (; level > 0; --level) segments = (segments + kSegmentGroup - 1) / kSegmentGroup;
  return segments;
}

/// The sum of group `group` of the `count` sums in `from`: of series i in thread i. What is missing
/// of the group stands as -0.0. By kGroupThreads threads.
__device__ inline double SumOfGroup(const double* from, int64_t count, int64_t group,
                                    GroupMemory& memory) {
  const int series = threadIdx.x % kSegmentSeries, slot = threadIdx.x / kSegmentSeries;
  const int64_t first = group * kSegmentGroup + slot * kGroupRun;
  double terms[kGroupRun];
#pragma unroll
  for (int i = 0; i < kGroupRun; ++i) {
    terms[i] = first + i < count ? from[(first + i) * kSegmentSeries + series] : -0.0;
  }
  double& sum = memory.sums[slot][series];
  __syncthreads();  // Others have read what was there.
  sum = ((terms[0] + terms[1]) + (terms[2] + terms[3])) +
        ((terms[4] + terms[5]) + (terms[6] + terms[7]));
  for (int distance = 1; distance < kGroupSlots; distance *= 2) {
    __syncthreads();
    if (slot % (2 * distance) == 0) sum += memory.sums[slot + distance][series];
  }
  return sum;
}

}  // namespace quantgate
