// Pairwise sums down columns (docs/numerics.md section 1). A block adds kColumnSumRows rows of
// its columns to one: each thread a run of rows in registers, then the runs through shared memory.
// Both are whole subtrees, so launching again over the sums continues the same tree.
#include <algorithm>

#include "kernels/tensor/row_piece_cuda.h"
#include "kernels/tensor/tensor_kernels_cuda.h"

namespace quantgate {
namespace {

constexpr int kLanes = 32;  // Threads side by side in a row.
constexpr int kRuns = 8;    // Threads one above the other.
constexpr int kRunRows = kColumnSumRows / kRuns;
constexpr int kStepRows = 8;  // Rows that are loaded together.
static_assert(kRunRows == 4 * kStepRows);

/// The sum of kStepRows rows from `row` on; rows past the end count as -0.0.
template <NumberEncoding kEncoding, int kWidth>
__device__ void SumStep(const ColumnSumParameters& parameters, int64_t row, int64_t column,
                        float (&sum)[kWidth]) {
  RowPiece<kEncoding, kWidth> piece[kStepRows];
#pragma unroll
  for (int i = 0; i < kStepRows; ++i) {
    if (row + i < parameters.rows) {
      piece[i].Load(parameters.from, (row + i) * parameters.columns + column);
    }
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const auto at = [&](int r) { return piece[r].Value(i); };
    sum[i] = ((at(0) + at(1)) + (at(2) + at(3))) + ((at(4) + at(5)) + (at(6) + at(7)));
  }
}

/// The sum of kRunRows rows from `row`.
template <NumberEncoding kEncoding, int kWidth>
__device__ void SumRun(const ColumnSumParameters& parameters, int64_t row, int64_t column,
                       float (&sum)[kWidth]) {
  float pair[2][kWidth];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float odd[kWidth];
    SumStep<kEncoding>(parameters, row + (2 * half) * kStepRows, column, pair[half]);
    SumStep<kEncoding>(parameters, row + (2 * half + 1) * kStepRows, column, odd);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) pair[half][i] += odd[i];
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i) sum[i] = pair[0][i] + pair[1][i];
}

template <NumberEncoding kEncoding, int kWidth>
__global__ void __launch_bounds__(kLanes* kRuns)
    SumGroups(const ColumnSumParameters parameters, int64_t groups) {
  constexpr int kColumns = kLanes * kWidth;
  __shared__ float runs[kRuns][kColumns];
  const int64_t column_begin = int64_t{blockIdx.x} * kColumns;
  const int64_t column = column_begin + threadIdx.x * kWidth;
  for (int64_t group = blockIdx.y; group < groups; group += gridDim.y) {
    if (column < parameters.columns) {
      float sum[kWidth];
      SumRun<kEncoding>(parameters, group * kColumnSumRows + threadIdx.y * kRunRows, column, sum);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) runs[threadIdx.y][threadIdx.x * kWidth + i] = sum[i];
    }
    __syncthreads();
    const int at = threadIdx.y * kLanes + threadIdx.x;
    if (at < kColumns && column_begin + at < parameters.columns) {
      const float total = ((runs[0][at] + runs[1][at]) + (runs[2][at] + runs[3][at])) +
                          ((runs[4][at] + runs[5][at]) + (runs[6][at] + runs[7][at]));
      parameters.sums[group * parameters.columns + column_begin + at] =
          parameters.canonical ? CanonicalFloat(total) : total;
    }
    __syncthreads();
  }
}

template <NumberEncoding kEncoding, int kWidth>
void Launch(const ColumnSumParameters& parameters, cudaStream_t stream) {
  constexpr int64_t kColumns = kLanes * kWidth;
  const int64_t groups = (parameters.rows + kColumnSumRows - 1) / kColumnSumRows;
  const dim3 grid(static_cast<unsigned>((parameters.columns + kColumns - 1) / kColumns),
                  static_cast<unsigned>(std::min<int64_t>(groups, 65535)));
  SumGroups<kEncoding, kWidth><<<grid, dim3(kLanes, kRuns), 0, stream>>>(parameters, groups);
}

template <NumberEncoding kEncoding, int kWidth>
void LaunchWidest(const ColumnSumParameters& parameters, KernelPath path, cudaStream_t stream) {
  if (path == KernelPath::kTuned && parameters.columns % kWidth == 0 &&
      reinterpret_cast<uintptr_t>(parameters.from) % 16 == 0) {
    Launch<kEncoding, kWidth>(parameters, stream);
  } else {
    Launch<kEncoding, 1>(parameters, stream);
  }
}

}  // namespace

cudaError_t LaunchColumnSums(const ColumnSumParameters& parameters, KernelPath path,
                             cudaStream_t stream) {
  if (parameters.rows == 0 || parameters.columns == 0) return cudaSuccess;
  switch (parameters.encoding) {
    case NumberEncoding::kF32:
      LaunchWidest<NumberEncoding::kF32, 4>(parameters, path, stream);
      break;
    case NumberEncoding::kBF16:
      LaunchWidest<NumberEncoding::kBF16, 8>(parameters, path, stream);
      break;
    case NumberEncoding::kF16:
      LaunchWidest<NumberEncoding::kF16, 8>(parameters, path, stream);
      break;
    default:
      return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

}  // namespace quantgate
