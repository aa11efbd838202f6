// Kernel code shared by both forms of the error kernel: how MeasureError takes one element, and
// what threads find besides sums.
#pragma once

#include <cstdint>

#include "kernels/compare/compare_kernels_cuda.h"
#include "kernels/compare/segment_reader.h"

#if defined(__CUDACC__)

namespace quantgate {

using ErrorTerms = Series<kErrorSeriesCount>;

/// The largest value of a quantity and the lowest position that has it. A thread must offer
/// positions in increasing order.
struct LargestFound {
  double value = -1;
  int64_t position = -1;
  __device__ void Offer(double candidate, int64_t at) {
    if (candidate > value) {
      value = candidate;
      position = at;
    }
  }
  __device__ void Merge(double other, int64_t at) {
    if (other > value || (other == value && at < position)) {
      value = other;
      position = at;
    }
  }
  __device__ void MergeLanes() {
    for (int distance = 16; distance > 0; distance /= 2) {
      const double other = __shfl_xor_sync(kWholeWarp, value, distance);
      const int64_t at = __shfl_xor_sync(kWholeWarp, position, distance);
      Merge(other, at);
    }
  }
};

struct FoundErrors {
  LargestFound max_abs, max_rel;
  int64_t finite_count = 0, relative_count = 0;
  int64_t saturated_count = 0, flushed_to_zero_count = 0, subnormal_count = 0;
};

__device__ inline void AddLanes(int64_t& count) {
  for (int distance = 16; distance > 0; distance /= 2) {
    count += __shfl_xor_sync(kWholeWarp, count, distance);
  }
}

__device__ inline void AddLaneCounts(FoundErrors& found) {
  AddLanes(found.finite_count);
  AddLanes(found.relative_count);
  AddLanes(found.saturated_count);
  AddLanes(found.flushed_to_zero_count);
  AddLanes(found.subnormal_count);
}

__device__ inline void MergeLanes(FoundErrors& found) {
  found.max_abs.MergeLanes();
  found.max_rel.MergeLanes();
  AddLaneCounts(found);
}

__device__ inline SliceErrors SliceOf(const FoundErrors& found) {
  return {found.max_abs.value,    found.max_rel.value,         found.max_abs.position,
          found.max_rel.position, found.finite_count,          found.relative_count,
          found.saturated_count,  found.flushed_to_zero_count, found.subnormal_count};
}

__device__ inline void MergeSlice(const SliceErrors& slice, FoundErrors& found) {
  found.max_abs.Merge(slice.max_abs, slice.max_abs_position);
  found.max_rel.Merge(slice.max_rel, slice.max_rel_position);
  found.finite_count += slice.finite_count;
  found.relative_count += slice.relative_count;
  found.saturated_count += slice.saturated_count;
  found.flushed_to_zero_count += slice.flushed_to_zero_count;
  found.subnormal_count += slice.subnormal_count;
}

/// Prepares for the kernel of LaunchFinishErrors, which follows: zeroes its counter, and allows it
/// to start before this kernel has ended.
__device__ inline void PrepareFinish(const ErrorParameters& parameters) {
  if (threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y == 0) *parameters.finished = 0;
  asm volatile("griddepcontrol.launch_dependents;");
}

/// Merges what the threads of a block found and writes it to `slice`.
__device__ inline void StoreFound(FoundErrors found, SliceErrors* slice) {
  __shared__ SliceErrors of_warp[kSegmentWarps];
  MergeLanes(found);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = SliceOf(found);
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < kSegmentWarps; ++warp) MergeSlice(of_warp[warp], found);
  *slice = SliceOf(found);
}

/// The terms that element `position` of a block adds to the sums, as in
/// kernels/compare/error_kernels_body.h.
__device__ inline ErrorTerms MeasureElement(double s, double r, const SubjectRange& range,
                                            int64_t position, FoundErrors& found) {
  const double s_magnitude = fabs(s), r_magnitude = fabs(r);
  const bool finite = s_magnitude < INFINITY && r_magnitude < INFINITY;
  const bool relative = finite && r_magnitude > 0;
  found.saturated_count += s_magnitude == range.largest_finite && r_magnitude > s_magnitude;
  found.flushed_to_zero_count += s_magnitude == 0 && r_magnitude > 0;
  found.subnormal_count += s_magnitude > 0 && s_magnitude < range.smallest_normal;
  ErrorTerms terms = ErrorTerms::Nothing();
  if (!finite) return terms;
  const double error = s - r, abs_error = fabs(error);
  ++found.finite_count;
  found.max_abs.Offer(abs_error, position);
  terms.values[kAbsError] = abs_error;
  terms.values[kSquaredError] = error * error;
  terms.values[kSignedError] = error;
  terms.values[kSquaredReference] = r * r;
  terms.values[kSquaredSubject] = s * s;
  terms.values[kProduct] = s * r;
  if (!relative) return terms;
  const double rel_error = abs_error / r_magnitude;
  ++found.relative_count;
  found.max_rel.Offer(rel_error, position);
  terms.values[kRelativeError] = rel_error;
  return terms;
}

}  // namespace quantgate

#endif
