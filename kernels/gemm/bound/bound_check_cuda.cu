// CheckBound's ratios of one strip of outputs, counted and maximised.
#include "kernels/gemm/exact/exact_cuda_kernels.h"

namespace quantgate {
namespace {

constexpr int kThreads = 256;
constexpr unsigned kAllLanes = 0xFFFFFFFFu;

__global__ void CheckStrip(const BoundCheckTask task) {
  const ExactStrip& strip = task.strip;
  const int64_t column = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  unsigned violations = 0;
  double worst = 0;
  if (column < strip.n) {
    for (int64_t i = blockIdx.y; i < strip.rows; i += gridDim.y) {
      const int64_t row = strip.begin + i, index = row * strip.n + column;
      error_bound::ElementTerms terms;
      terms.a_scale = task.terms.AScale(row);
      terms.b_scale = task.terms.BScale(column);
      terms.c = task.terms.C(index);
      terms.bias = task.terms.Bias(column);
      terms.absolute = task.scaling.Apply(strip.sums[i * strip.stride + column],
                                          task.scaling.RowFactor(terms.a_scale), terms.b_scale);
      const float subject = ExactOutputTerms::Decode(task.subject, task.subject_format, index);
      const double ratio = task.element.Ratio(terms, subject, task.exact[index]);
      violations += ratio <= 1 ? 0 : 1;
      if (worst < ratio) worst = ratio;
    }
  }
  violations = __reduce_add_sync(kAllLanes, violations);
  for (int offset = 16; offset > 0; offset /= 2) {
    worst = fmax(worst, __shfl_down_sync(kAllLanes, worst, offset));
  }
  if (threadIdx.x % 32 != 0) return;
  if (violations != 0) {
    atomicAdd(&task.totals->violation_count, static_cast<unsigned long long>(violations));
  }
  // Non-negative doubles are ordered as their bits.
  if (worst != 0) {
    atomicMax(&task.totals->worst_ratio,
              static_cast<unsigned long long>(__double_as_longlong(worst)));
  }
}

}  // namespace

cudaError_t LaunchBoundCheck(const BoundCheckTask& task, cudaStream_t stream) {
  if (task.strip.rows == 0) return cudaSuccess;
  // Each thread takes a few rows, so that few totals are added.
  const int64_t rows = (task.strip.rows + 7) / 8;
  const dim3 grid(static_cast<unsigned>((task.strip.n + kThreads - 1) / kThreads),
                  static_cast<unsigned>(rows < 65535 ? rows : 65535));
  CheckStrip<<<grid, kThreads, 0, stream>>>(task);
  return cudaGetLastError();
}

}  // namespace quantgate
