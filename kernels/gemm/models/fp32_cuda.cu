// Sequential fp32 FMA over k, a chain for each output.
#include "kernels/gemm/models/cuda_kernels.h"

namespace quantgate {
namespace {

constexpr int kThreads = 256;  // 16 x 16, 8 x 8 outputs each.
constexpr int kEdge = 8;
constexpr int kTile = 128;
constexpr int kDepth = 16;  // k of one chunk.

__device__ void LoadChunk(const float* values, int64_t rows_padded, int64_t row, int64_t k,
                          float (&shared)[kDepth][kTile]) {
  for (int i = threadIdx.x; i < kDepth / 4 * kTile; i += kThreads) {
    const int r = i % kTile, k4 = i / kTile;
    const float4 four =
        reinterpret_cast<const float4*>(values)[(k / 4 + k4) * rows_padded + row + r];
    shared[4 * k4][r] = four.x;
    shared[4 * k4 + 1][r] = four.y;
    shared[4 * k4 + 2][r] = four.z;
    shared[4 * k4 + 3][r] = four.w;
  }
}

/// The row of the tile that is a thread's i-th row: groups of four, 64 apart.
__device__ constexpr int RowOf(int place, int i) { return i / 4 * 64 + place * 4 + i % 4; }

__device__ void LoadRow(const float* line, int place, float (&out)[kEdge]) {
  *reinterpret_cast<float4*>(&out[0]) = *reinterpret_cast<const float4*>(&line[RowOf(place, 0)]);
  *reinterpret_cast<float4*>(&out[4]) = *reinterpret_cast<const float4*>(&line[RowOf(place, 4)]);
}

__global__ void __launch_bounds__(kThreads, 2) Fp32(const Fp32Task task) {
  __shared__ __align__(16) float a[kDepth][kTile];
  __shared__ __align__(16) float b[kDepth][kTile];
  const int64_t row_tiles = (task.m + kTile - 1) / kTile;
  const int64_t row = blockIdx.x % row_tiles * kTile;
  const int64_t column = blockIdx.x / row_tiles * kTile;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row_place = warp / 2 * 4 + lane / 8, column_place = warp % 2 * 8 + lane % 8;
  float sums[kEdge][kEdge] = {};
  for (int64_t k = 0; k < task.k_padded; k += kDepth) {
    __syncthreads();
    LoadChunk(task.a, task.a_rows_padded, row, k, a);
    LoadChunk(task.b, task.b_rows_padded, column, k, b);
    __syncthreads();
#pragma unroll 4
    for (int i = 0; i < kDepth; ++i) {
      float x[kEdge], y[kEdge];
      LoadRow(a[i], row_place, x);
      LoadRow(b[i], column_place, y);
#pragma unroll
      for (int r = 0; r < kEdge; ++r) {
#pragma unroll
        for (int j = 0; j < kEdge; ++j) sums[r][j] = fmaf(x[r], y[j], sums[r][j]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kEdge; ++r) {
#pragma unroll
    for (int j = 0; j < kEdge; ++j) {
      const int64_t m = row + RowOf(row_place, r), n = column + RowOf(column_place, j);
      if (m < task.m && n < task.n) task.accumulators[m * task.n + n] = sums[r][j];
    }
  }
}

}  // namespace

cudaError_t LaunchFp32(const Fp32Task& task, cudaStream_t stream) {
  const int64_t tiles = (task.m + kTile - 1) / kTile * ((task.n + kTile - 1) / kTile);
  Fp32<<<static_cast<unsigned>(tiles), kThreads, 0, stream>>>(task);
  return cudaGetLastError();
}

}  // namespace quantgate
