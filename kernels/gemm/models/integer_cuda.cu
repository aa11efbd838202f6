// Sums of products of integers: tiles of outputs by blocks of threads, 4 x 4 outputs by each
// thread.
#include "kernels/gemm/models/cuda_kernels.h"
#include "kernels/numerics/integer_sum.h"

namespace quantgate {
namespace {

constexpr int kSide = 64, kDepth = 32, kOfThread = 4, kAcross = kSide / kOfThread;
constexpr int kThreads = kAcross * kAcross;
static_assert(kIntegerTermsOf32Bits % kDepth == 0);

struct IntegerTile {
  // Rows are one longer, so that a column lies in many banks.
  int numbers[kDepth][kSide + 1];
};

__device__ int IntegerAt(const uint8_t* codes, bool is_signed, int64_t i) {
  return is_signed ? static_cast<int>(static_cast<int8_t>(codes[i])) : static_cast<int>(codes[i]);
}

/// Numbers less their zero points at [k][row]; 0 beyond the operand.
__device__ void LoadTile(const IntegerOperand& operand, int64_t rows, int64_t k_end,
                         int64_t row_begin, int64_t k_begin, IntegerTile& tile) {
  const bool is_by_k = operand.k_stride == 1;  // Threads side by side read elements side by side.
  for (int i = static_cast<int>(threadIdx.x); i < kSide * kDepth; i += kThreads) {
    const int row = is_by_k ? i / kDepth : i % kSide, depth = is_by_k ? i % kDepth : i / kSide;
    const int64_t at_row = row_begin + row, at_k = k_begin + depth;
    int number = 0;
    if (at_row < rows && at_k < k_end) {
      number = IntegerAt(operand.codes, operand.is_signed,
                         at_row * operand.row_stride + at_k * operand.k_stride);
      if (operand.zeros != nullptr) {
        number -=
            IntegerAt(operand.zeros, operand.is_signed, operand.has_scale_per_row ? at_row : 0);
      }
    }
    tile.numbers[depth][row] = number;
  }
}

__device__ float ScaleOf(const IntegerOperand& operand, int64_t row) {
  if (operand.scales == nullptr) return 1.0f;
  return operand.scales[operand.has_scale_per_row ? row : 0];
}

__global__ void __launch_bounds__(kThreads) AddIntegers(const IntegerTask task) {
  __shared__ IntegerTile a, b;
  const int across = static_cast<int>(threadIdx.x) % kAcross;
  const int down = static_cast<int>(threadIdx.x) / kAcross;
  const int64_t tiles_across = (task.n + kSide - 1) / kSide;
  const int64_t tiles = (task.m + kSide - 1) / kSide * tiles_across;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t row_begin = tile / tiles_across * kSide;
    const int64_t column_begin = tile % tiles_across * kSide;
    int64_t sums[kOfThread][kOfThread] = {};
    for (int64_t k_first = 0; k_first < task.k; k_first += kIntegerTermsOf32Bits) {
      const int64_t k_last = min(k_first + kIntegerTermsOf32Bits, task.k);
      int parts[kOfThread][kOfThread] = {};
      for (int64_t k = k_first; k < k_last; k += kDepth) {
        LoadTile(task.a, task.m, task.k, row_begin, k, a);
        LoadTile(task.b, task.n, task.k, column_begin, k, b);
        __syncthreads();
        for (int depth = 0; depth < kDepth; ++depth) {
#pragma unroll
          for (int i = 0; i < kOfThread; ++i) {
#pragma unroll
            for (int j = 0; j < kOfThread; ++j) {
              parts[i][j] +=
                  a.numbers[depth][down + i * kAcross] * b.numbers[depth][across + j * kAcross];
            }
          }
        }
        __syncthreads();
      }
#pragma unroll
      for (int i = 0; i < kOfThread; ++i) {
#pragma unroll
        for (int j = 0; j < kOfThread; ++j) sums[i][j] += parts[i][j];
      }
    }
    for (int i = 0; i < kOfThread; ++i) {
      const int64_t row = row_begin + down + i * kAcross;
      for (int j = 0; j < kOfThread; ++j) {
        const int64_t column = column_begin + across + j * kAcross;
        if (row >= task.m || column >= task.n) continue;
        task.accumulators[row * task.n + column] =
            ScaledIntegerSum(sums[i][j], ScaleOf(task.a, row), ScaleOf(task.b, column));
      }
    }
  }
}

}  // namespace

cudaError_t LaunchIntegers(const IntegerTask& task, int multiprocessors, cudaStream_t stream) {
  AddIntegers<<<multiprocessors * 4, kThreads, 0, stream>>>(task);
  return cudaGetLastError();
}

}  // namespace quantgate
