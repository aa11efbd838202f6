// Operands of the exact GEMM as fp64 numbers, and the bounds of their rows.
#include "kernels/gemm/exact_cuda_kernels.h"

namespace quantgate {
namespace {

constexpr int kWarps = 8;
constexpr int64_t kGridMax = 65535;

/// A lane packs the four elements that it will read: rows r and r + 8, k and k + 4. A warp packs
/// 16 rows x 8 k at a time, and a block 128 k or more, so that sectors are read into the cache
/// once.
template <bool kNarrow>
__global__ void PackOperand(const ExactPackTask task) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t groups = task.row_tiles * (kExactTileRows / 16);
  const int64_t steps = task.k_padded / 8;
  const int64_t step = int64_t(blockIdx.x) * kWarps + warp;
  if (step >= steps) return;
  for (int64_t group = blockIdx.y; group < groups; group += gridDim.y) {
    const int64_t row = group * 16 + lane / 4, k = step * 8 + lane % 4;
    const double values[4] = {task.source.At(row, k), task.source.At(row + 8, k),
                              task.source.At(row, k + 4), task.source.At(row + 8, k + 4)};
    const int64_t at = ExactPackedIndex(row, k, task.k_padded, kNarrow);
    if constexpr (kNarrow) {
      uint4* out = reinterpret_cast<uint4*>(static_cast<uint32_t*>(task.packed) + at);
      *out = make_uint4(__double2hiint(values[0]), __double2hiint(values[1]),
                        __double2hiint(values[2]), __double2hiint(values[3]));
    } else {
      double2* out = reinterpret_cast<double2*>(static_cast<double*>(task.packed) + at);
      out[0] = make_double2(values[0], values[1]);
      out[32] = make_double2(values[2], values[3]);
    }
  }
}

constexpr int kBoundRows = 32;
constexpr int kBoundDepth = 64;
constexpr int kLoaders = 256;
constexpr int kNoBit = 1 << 20;

/// Exponent of the lowest set bit of a nonzero normal number.
__device__ int LowestExponent(double x) {
  const auto bits = static_cast<unsigned long long>(__double_as_longlong(x));
  const int field = static_cast<int>(bits >> 52) & 0x7FF;
  const unsigned long long significand = (bits & 0xFFFFFFFFFFFFF) | 0x10000000000000;
  return field - 1023 - 52 + (__ffsll(static_cast<long long>(significand)) - 1);
}

struct RowsAndDepth {
  int row, first, step;  // This thread's k are first, first + step, ...
};
__device__ RowsAndDepth ShareOf(int thread, bool by_k) {
  if (by_k) return {thread / 8, thread % 8, 8};
  return {thread % 32, thread / 32, 8};
}

/// 256 threads decode and square, the warp behind them adds the squares of 32 rows in the order of
/// k while the others are at the next ones.
__global__ void __launch_bounds__(kLoaders + 32) BoundRows(const ExactRowBoundsTask task) {
  __shared__ double squares[2][kBoundDepth][kBoundRows + 1];
  __shared__ int lowest[kBoundRows];
  const int thread = static_cast<int>(threadIdx.x);
  const bool loads = thread < kLoaders;
  const CudaOperand& operand = task.source.operand;
  const RowsAndDepth share = ShareOf(thread, operand.k_stride == 1);
  const int64_t first_row = int64_t(blockIdx.x) * kBoundRows;
  if (thread < kBoundRows) lowest[thread] = kNoBit;
  __syncthreads();
  int lowest_here = kNoBit;
  double sum = 0;
  const int64_t tiles = (operand.k + kBoundDepth - 1) / kBoundDepth;
  for (int64_t tile = 0; tile <= tiles; ++tile) {
    if (loads && tile < tiles) {
#pragma unroll
      for (int i = 0; i < kBoundDepth / 8; ++i) {
        const int j = share.first + i * share.step;
        const double x = task.source.At(first_row + share.row, tile * kBoundDepth + j);
        squares[tile % 2][j][share.row] = x * x;
        if (x != 0) lowest_here = min(lowest_here, LowestExponent(x));
      }
    }
    if (!loads && tile > 0) {
#pragma unroll 16
      for (int j = 0; j < kBoundDepth; ++j) sum += squares[(tile - 1) % 2][j][thread - kLoaders];
    }
    __syncthreads();
  }
  if (loads) atomicMin(&lowest[share.row], lowest_here);
  __syncthreads();
  const int64_t row = first_row + (thread - kLoaders);
  if (loads || row >= operand.rows) return;
  const double norm = sqrt(sum * task.inflation) * (1 + 0x1p-50);
  const int exponent = lowest[thread - kLoaders];
  const double lowest_bit =
      exponent == kNoBit ? error_bound::kInfinity : error_bound::PowerOfTwo(exponent);
  task.norm[row] = norm;
  task.lowest_bit[row] = lowest_bit;
  // Bits of doubles that are not negative are ordered as they are.
  if (error_bound::IsFinite(norm)) {
    atomicMax(task.ratio_max,
              static_cast<unsigned long long>(__double_as_longlong(norm / lowest_bit)));
  }
}

}  // namespace

cudaError_t LaunchExactPack(const ExactPackTask& task, cudaStream_t stream) {
  const int64_t groups = task.row_tiles * (kExactTileRows / 16);
  if (groups == 0) return cudaSuccess;
  const int64_t steps = task.k_padded / 8;
  const dim3 grid(static_cast<unsigned>((steps + kWarps - 1) / kWarps),
                  static_cast<unsigned>(groups < kGridMax ? groups : kGridMax));
  if (task.narrow) {
    PackOperand<true><<<grid, kWarps * 32, 0, stream>>>(task);
  } else {
    PackOperand<false><<<grid, kWarps * 32, 0, stream>>>(task);
  }
  return cudaGetLastError();
}

cudaError_t LaunchExactRowBounds(const ExactRowBoundsTask& task, cudaStream_t stream) {
  if (task.source.operand.rows == 0) return cudaSuccess;
  const int64_t blocks = (task.source.operand.rows + kBoundRows - 1) / kBoundRows;
  BoundRows<<<static_cast<unsigned>(blocks), kLoaders + 32, 0, stream>>>(task);
  return cudaGetLastError();
}

}  // namespace quantgate
