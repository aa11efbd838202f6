// dgamma and dbeta: as column_sums_cuda.cu, of two sums at once. A block adds kColumnSumRows rows
// of its columns, each thread a run of rows in registers, then the runs through shared memory; all
// are whole subtrees.
#include <algorithm>

#include "kernels/numerics/norm.h"
#include "kernels/ops/norm/norm_kernels.h"
#include "kernels/tensor/row_piece_cuda.h"

namespace quantgate {
namespace {

constexpr int kLanes = 32;  // Threads side by side in a row.
constexpr int kRuns = 8;    // Threads one above the other.
constexpr int kWidth = 2;   // Columns of a thread.
constexpr int kColumns = kLanes * kWidth;
constexpr int kRunRows = kColumnSumRows / kRuns;
constexpr int kStepRows = 8;  // Rows in flight.

/// Sums of dz * xhat and of dz, of each column of a thread.
struct Sums {
  float dgamma[kWidth], dbeta[kWidth];

  __device__ void Add(const Sums& right) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      dgamma[i] += right.dgamma[i];
      dbeta[i] += right.dbeta[i];
    }
  }
};

/// Of kStepRows rows from `row`; rows past the end stand as -0.0.
template <NumberEncoding kEncoding>
__device__ Sums SumStep(const NormColumnParameters& parameters, int64_t row, int64_t column) {
  RowPiece<kEncoding, kWidth> x[kStepRows], dz[kStepRows];
  float mean[kStepRows], rstd[kStepRows];
#pragma unroll
  for (int r = 0; r < kStepRows; ++r) {
    mean[r] = rstd[r] = 0;
    if (row + r >= parameters.rows) continue;
    const int64_t at = (row + r) * parameters.columns + column;
    x[r].Load(parameters.x.data, at);
    dz[r].Load(parameters.dz.data, at);
    rstd[r] = parameters.rstd[row + r];
    if (parameters.mean != nullptr) mean[r] = parameters.mean[row + r];
  }
  Sums sums;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    float terms[kStepRows];
#pragma unroll
    for (int r = 0; r < kStepRows; ++r) {
      const float term = dz[r].Value(i) * NormHat(x[r].Value(i), mean[r], rstd[r]);
      terms[r] = row + r < parameters.rows ? term : -0.0f;
    }
    const auto tree = [](const auto& at) {
      return ((at(0) + at(1)) + (at(2) + at(3))) + ((at(4) + at(5)) + (at(6) + at(7)));
    };
    sums.dgamma[i] = tree([&](int r) { return terms[r]; });
    sums.dbeta[i] = tree([&](int r) { return dz[r].Value(i); });
  }
  return sums;
}

/// Of kRows rows from `row`.
template <NumberEncoding kEncoding, int kRows>
__device__ Sums SumRows(const NormColumnParameters& parameters, int64_t row, int64_t column) {
  if constexpr (kRows == kStepRows) {
    return SumStep<kEncoding>(parameters, row, column);
  } else {
    Sums sums = SumRows<kEncoding, kRows / 2>(parameters, row, column);
    sums.Add(SumRows<kEncoding, kRows / 2>(parameters, row + kRows / 2, column));
    return sums;
  }
}

__device__ float SumRuns(const float (&runs)[kRuns][kColumns], int at) {
  return ((runs[0][at] + runs[1][at]) + (runs[2][at] + runs[3][at])) +
         ((runs[4][at] + runs[5][at]) + (runs[6][at] + runs[7][at]));
}

template <NumberEncoding kEncoding>
__global__ void __launch_bounds__(kLanes* kRuns)
    SumGroups(const NormColumnParameters parameters, int64_t groups) {
  __shared__ float dgamma[kRuns][kColumns], dbeta[kRuns][kColumns];
  const int64_t column_begin = int64_t{blockIdx.x} * kColumns;
  const int64_t column = column_begin + threadIdx.x * kWidth;
  for (int64_t group = blockIdx.y; group < groups; group += gridDim.y) {
    if (column < parameters.columns) {
      const int64_t row = group * kColumnSumRows + threadIdx.y * kRunRows;
      const Sums sums = SumRows<kEncoding, kRunRows>(parameters, row, column);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        dgamma[threadIdx.y][threadIdx.x * kWidth + i] = sums.dgamma[i];
        dbeta[threadIdx.y][threadIdx.x * kWidth + i] = sums.dbeta[i];
      }
    }
    __syncthreads();
    // Half of the block has a column of either.
    const int thread = threadIdx.y * kLanes + threadIdx.x;
    const int at = thread % kColumns;
    if (thread < 2 * kColumns && column_begin + at < parameters.columns) {
      float* const to = thread < kColumns ? parameters.dgamma : parameters.dbeta;
      if (to != nullptr) {
        to[group * parameters.columns + column_begin + at] =
            SumRuns(thread < kColumns ? dgamma : dbeta, at);
      }
    }
    __syncthreads();
  }
}

template <NumberEncoding kEncoding>
void LaunchAs(const NormColumnParameters& parameters, cudaStream_t stream) {
  const int64_t groups = (parameters.rows + kColumnSumRows - 1) / kColumnSumRows;
  const dim3 grid(static_cast<unsigned>((parameters.columns + kColumns - 1) / kColumns),
                  static_cast<unsigned>(std::min<int64_t>(groups, 65535)));
  SumGroups<kEncoding><<<grid, dim3(kLanes, kRuns), 0, stream>>>(parameters, groups);
}

}  // namespace

bool IsTunable(const NormColumnParameters& parameters) {
  return parameters.columns % kWidth == 0 && parameters.x.encoding == parameters.dz.encoding &&
         IsAlignedForLanes(parameters.x.data) && IsAlignedForLanes(parameters.dz.data);
}

void LaunchTuned(const NormColumnParameters& parameters, cudaStream_t stream) {
  switch (parameters.x.encoding) {
    case NumberEncoding::kF32:
      return LaunchAs<NumberEncoding::kF32>(parameters, stream);
    case NumberEncoding::kBF16:
      return LaunchAs<NumberEncoding::kBF16>(parameters, stream);
    default:
      return LaunchAs<NumberEncoding::kF16>(parameters, stream);
  }
}

}  // namespace quantgate
