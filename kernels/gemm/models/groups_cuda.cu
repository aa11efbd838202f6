// NVFP4 on CUDA cores: dp4a sums groups of 16 products, exactly; then come fused steps of 4 groups
// (docs/tensor-cores.md section 1). A term is a whole number, below 2^20, of units of 2^-8, times a
// power of two. It is exact in double, and its q_t at F = 35 is below 2^(F+12), so that sums are
// exact too (panel.h).
#include "kernels/gemm/models/cuda_kernels.h"
#include "kernels/gemm/models/fused_finish.h"

namespace quantgate {
namespace {

constexpr int kThreads = 256;  // 16 x 16, 4 x 4 outputs each.
constexpr int kEdge = 4;
constexpr int kTile = 64;
constexpr int kGroups = 4;        // Groups of a step.
constexpr int kWords = 16;        // Words of a step and row, four codes each.
constexpr int kTermFraction = 8;  // Fraction bits of a term: 2 of products, 3 of each scale.

struct SharedPanel {
  uint32_t values[kWords][kTile];
  int32_t scales[kGroups][kTile];
};

__device__ void LoadStep(const uint32_t* values, const int32_t* scales, int64_t rows_padded,
                         int64_t row, int64_t step, SharedPanel& shared) {
  for (int i = threadIdx.x; i < kWords * kTile; i += kThreads) {
    shared.values[i / kTile][i % kTile] =
        values[(step * kWords + i / kTile) * rows_padded + row + i % kTile];
  }
  for (int i = threadIdx.x; i < kGroups * kTile; i += kThreads) {
    shared.scales[i / kTile][i % kTile] =
        scales[(step * kGroups + i / kTile) * rows_padded + row + i % kTile];
  }
}

template <class T>
__device__ void LoadFour(const T* line, int place, int (&out)[kEdge]) {
  *reinterpret_cast<int4*>(out) = *reinterpret_cast<const int4*>(&line[place * kEdge]);
}

/// The terms of group g, in units of 2^-8: its sums times the significands of both scales.
__device__ void GroupTerms(const SharedPanel& a, const SharedPanel& b, int g, int row_place,
                           int column_place, int (&terms)[kEdge][kEdge]) {
#pragma unroll
  for (int r = 0; r < kEdge; ++r) {
#pragma unroll
    for (int j = 0; j < kEdge; ++j) terms[r][j] = 0;
  }
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    int x[kEdge], y[kEdge];
    LoadFour(a.values[4 * g + word], row_place, x);
    LoadFour(b.values[4 * g + word], column_place, y);
#pragma unroll
    for (int r = 0; r < kEdge; ++r) {
#pragma unroll
      for (int j = 0; j < kEdge; ++j) terms[r][j] = __dp4a(x[r], y[j], terms[r][j]);
    }
  }
  int x[kEdge], y[kEdge];
  LoadFour(a.scales[g], row_place, x);
  LoadFour(b.scales[g], column_place, y);
#pragma unroll
  for (int r = 0; r < kEdge; ++r) {
#pragma unroll
    for (int j = 0; j < kEdge; ++j) terms[r][j] *= (x[r] & 0xFF) * (y[j] & 0xFF);
  }
}

/// `value` truncated toward zero to the grid of `start`, 2^52 units of it.
__device__ double Truncated(double value, double start) {
  const double with_sign = copysign(start, value);
  return __dadd_rz(value, with_sign) - with_sign;
}

/// The same for term * 2^exponent, without a rounding in between.
__device__ double TruncatedTerm(int term, int exponent, double start) {
  // The bits of 2^52 + 2^31 + term, less the first two.
  const double exact = __hiloint2double(0x43300000, term ^ 0x80000000) - 4503601774854144.0;
  const double with_sign = __hiloint2double(__double2hiint(start) | (term & 0x80000000), 0);
  return __fma_rz(exact, PowerOfTwo(exponent), with_sign) - with_sign;
}

__device__ void Step(const FusedRule& rule, const SharedPanel& a, const SharedPanel& b,
                     int row_place, int column_place, double (&c)[kEdge][kEdge],
                     Overflows& overflows) {
  int terms[kGroups][kEdge][kEdge];
  int largest[kEdge][kEdge];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    GroupTerms(a, b, g, row_place, column_place, terms[g]);
    int x[kEdge], y[kEdge];
    LoadFour(a.scales[g], row_place, x);
    LoadFour(b.scales[g], column_place, y);
#pragma unroll
    for (int r = 0; r < kEdge; ++r) {
#pragma unroll
      for (int j = 0; j < kEdge; ++j) {
        const int before = g == 0 ? kFusedExponentFloor : largest[r][j];
        const int exponent = (x[r] >> 8) + (y[j] >> 8);
        largest[r][j] = terms[g][r][j] != 0 && exponent > before ? exponent : before;
      }
    }
  }
  double start[kEdge][kEdge];
#pragma unroll
  for (int r = 0; r < kEdge; ++r) {
#pragma unroll
    for (int j = 0; j < kEdge; ++j) {
      start[r][j] = StartOf(rule, largest[r][j], c[r][j]);
      c[r][j] = Truncated(c[r][j], start[r][j]);
    }
  }
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    int x[kEdge], y[kEdge];
    LoadFour(a.scales[g], row_place, x);
    LoadFour(b.scales[g], column_place, y);
#pragma unroll
    for (int r = 0; r < kEdge; ++r) {
#pragma unroll
      for (int j = 0; j < kEdge; ++j) {
        const int exponent = (x[r] >> 8) + (y[j] >> 8) - kTermFraction;
        c[r][j] += TruncatedTerm(terms[g][r][j], exponent, start[r][j]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kEdge; ++r) {
#pragma unroll
    for (int j = 0; j < kEdge; ++j) {
      if (!TruncateToFloat(c[r][j])) RoundAccumulator(rule, r * kEdge + j, c[r][j], overflows);
    }
  }
}

__global__ void __launch_bounds__(kThreads) Groups(const GroupsTask task) {
  __shared__ SharedPanel a, b;
  FusedRule rule;
  rule.align_bits = task.align_bits;
  const int64_t row_tiles = (task.m + kTile - 1) / kTile;
  const int64_t row = blockIdx.x % row_tiles * kTile;
  const int64_t column = blockIdx.x / row_tiles * kTile;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row_place = warp / 2 * 4 + lane / 8, column_place = warp % 2 * 8 + lane % 8;
  double c[kEdge][kEdge] = {};
  Overflows overflows;
  for (int64_t step = 0; step < task.k_padded / (4 * kWords); ++step) {
    __syncthreads();
    LoadStep(task.a, task.a_scales, task.a_rows_padded, row, step, a);
    LoadStep(task.b, task.b_scales, task.b_rows_padded, column, step, b);
    __syncthreads();
    Step(rule, a, b, row_place, column_place, c, overflows);
  }
#pragma unroll
  for (int r = 0; r < kEdge; ++r) {
#pragma unroll
    for (int j = 0; j < kEdge; ++j) {
      const int64_t m = row + row_place * kEdge + r, n = column + column_place * kEdge + j;
      if (m < task.m && n < task.n) {
        task.accumulators[m * task.n + n] =
            overflows.Apply(r * kEdge + j, static_cast<float>(c[r][j]));
      }
    }
  }
}

}  // namespace

cudaError_t LaunchGroups(const GroupsTask& task, cudaStream_t stream) {
  const int64_t tiles = (task.m + kTile - 1) / kTile * ((task.n + kTile - 1) / kTile);
  Groups<<<static_cast<unsigned>(tiles), kThreads, 0, stream>>>(task);
  return cudaGetLastError();
}

}  // namespace quantgate
