// Which of two sides is nearer the truth, element by element: MeasureNearer of error_report.cc on a
// GPU.
#include "kernels/compare/segment_reader.h"

namespace quantgate {
namespace {

using Terms = Series<kDistanceSeriesCount>;

enum class Kind { kFinite, kNegativeInfinity, kPositiveInfinity, kNan };
__device__ Kind KindOf(double x) {
  if (x != x) return Kind::kNan;
  if (fabs(x) < INFINITY) return Kind::kFinite;
  return x < 0 ? Kind::kNegativeInfinity : Kind::kPositiveInfinity;
}

struct Counts {
  unsigned long long finite = 0, subject_nearer = 0, reference_nearer = 0, tied = 0;
};

__device__ Terms MeasureElement(double s, double r, double t, Counts& counts) {
  Terms terms = Terms::Nothing();
  // 0: tied; below 0: the subject is nearer.
  int order = 0;
  const Kind truth = KindOf(t);
  if (KindOf(s) == Kind::kFinite && KindOf(r) == Kind::kFinite && truth == Kind::kFinite) {
    ++counts.finite;
    const double subject_error = fabs(s - t), reference_error = fabs(r - t);
    terms.values[kSubjectDistance] = subject_error * subject_error;
    terms.values[kReferenceDistance] = reference_error * reference_error;
    order = (subject_error > reference_error) - (subject_error < reference_error);
  } else {
    order = (KindOf(r) == truth) - (KindOf(s) == truth);
  }
  counts.subject_nearer += order < 0;
  counts.reference_nearer += order > 0;
  counts.tied += order == 0;
  return terms;
}

/// Adds up the counts of a block of threads.
__device__ void AddCounts(const Counts& counts, DistanceCounts* total) {
  __shared__ unsigned long long sums[4];
  if (threadIdx.x < 4) sums[threadIdx.x] = 0;
  __syncthreads();
  unsigned long long mine[] = {counts.finite, counts.subject_nearer, counts.reference_nearer,
                               counts.tied};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    for (int distance = 16; distance > 0; distance /= 2) {
      mine[i] += __shfl_xor_sync(kWholeWarp, mine[i], distance);
    }
    if (threadIdx.x % 32 == 0) atomicAdd(&sums[i], mine[i]);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  atomicAdd(&total->finite_count, sums[0]);
  atomicAdd(&total->subject_nearer, sums[1]);
  atomicAdd(&total->reference_nearer, sums[2]);
  atomicAdd(&total->tied, sums[3]);
}

__global__ void __launch_bounds__(kSegmentThreads)
    MeasureDistances(const __grid_constant__ DistanceParameters parameters) {
  __shared__ float tables[2][256];
  Counts counts;
  MeasureBlock(parameters, tables, [&](double s, double r, int64_t, int64_t at) {
    return MeasureElement(s, r, parameters.truth[at], counts);
  });
  AddCounts(counts, parameters.counts);
}

}  // namespace

cudaError_t LaunchMeasureDistances(const DistanceParameters& parameters, cudaStream_t stream) {
  const int blocks = parameters.cut.rows * parameters.cut.columns;
  if (blocks == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(parameters.cut.slices), static_cast<unsigned>(blocks));
  MeasureDistances<<<grid, kSegmentThreads, 0, stream>>>(parameters);
  return cudaGetLastError();
}

}  // namespace quantgate
