// Norms of rows that fit the registers of a block: each row is read once, in 16-byte pieces, as
// row_sums_cuda.h divides it.
#include "kernels/numerics/norm.h"
#include "kernels/ops/norm/norm_kernels.h"
#include "kernels/ops/row_sums_cuda.h"

namespace quantgate {
namespace {

template <int kWidth>
__device__ void LoadGamma(const FloatsIn& from, bool zero_centered, int64_t column,
                          float (&gamma)[kWidth]) {
  LoadLanes(from, column, gamma);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) gamma[i] = NormGamma(gamma[i], zero_centered);
}

template <NumberEncoding kEncoding, int kPieces>
__global__ void __launch_bounds__(kRowThreadsMax)
    ForwardRows(const NormForwardParameters parameters) {
  constexpr int kWidth = kPieceWidth<kEncoding>;
  __shared__ SegmentSums<1> shared;
  RowReduction<1, kPieces> reduction(shared);
  const int64_t columns = parameters.columns;
  const int64_t rows_of_grid = int64_t{gridDim.x} * blockDim.y;
  for (int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; row < parameters.rows;
       row += rows_of_grid) {
    RowPiece<kEncoding, kWidth> x[kPieces];
#pragma unroll
    for (int v = 0; v < kPieces; ++v) {
      const int64_t column = PieceColumn<kWidth>(v);
      if (column < columns) x[v].Load(parameters.x.data, row * columns + column);
    }
    float pieces[1][kPieces], sum[1], terms[kWidth];
    float mean = 0;
    if (parameters.mean != nullptr) {
#pragma unroll
      for (int v = 0; v < kPieces; ++v) {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) terms[i] = x[v].Value(i);
        pieces[0][v] = SumOfPiece(terms);
      }
      reduction.Reduce(pieces, sum);
      mean = sum[0] * parameters.inverse_count;
    }
#pragma unroll
    for (int v = 0; v < kPieces; ++v) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float centered = x[v].Value(i) - mean;
        terms[i] = centered * centered;
      }
      pieces[0][v] = PieceColumn<kWidth>(v) < columns ? SumOfPiece(terms) : -0.0f;
    }
    reduction.Reduce(pieces, sum);
    const float rstd = NormRstd(sum[0] * parameters.inverse_count, parameters.epsilon);
#pragma unroll
    for (int v = 0; v < kPieces; ++v) {
      const int64_t column = PieceColumn<kWidth>(v);
      if (column >= columns) continue;
      float gamma[kWidth], beta[kWidth];
      LoadGamma(parameters.gamma, parameters.zero_centered_gamma, column, gamma);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        terms[i] = NormScaled(NormHat(x[v].Value(i), mean, rstd), gamma[i]);
      }
      if (parameters.beta.data != nullptr) {
        LoadLanes(parameters.beta, column, beta);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) terms[i] += beta[i];
      }
      StoreLanes(parameters.y, row * columns + column, terms);
    }
    if (threadIdx.x == 0) {
      parameters.rstd[row] = CanonicalFloat(rstd);
      if (parameters.mean != nullptr) parameters.mean[row] = CanonicalFloat(mean);
    }
  }
}

template <NumberEncoding kEncoding, int kPieces>
__global__ void __launch_bounds__(kRowThreadsMax)
    BackwardRows(const NormBackwardParameters parameters) {
  constexpr int kWidth = kPieceWidth<kEncoding>;
  __shared__ SegmentSums<2> shared;
  RowReduction<2, kPieces> reduction(shared);
  const int64_t columns = parameters.columns;
  const int64_t rows_of_grid = int64_t{gridDim.x} * blockDim.y;
  for (int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; row < parameters.rows;
       row += rows_of_grid) {
    const float mean = parameters.mean != nullptr ? parameters.mean[row] : 0.0f;
    const float rstd = parameters.rstd[row];
    RowPiece<kEncoding, kWidth> x[kPieces], dz[kPieces];
    float pieces[2][kPieces], sums[2];
#pragma unroll
    for (int v = 0; v < kPieces; ++v) {
      const int64_t column = PieceColumn<kWidth>(v);
      if (column >= columns) continue;
      x[v].Load(parameters.x.data, row * columns + column);
      dz[v].Load(parameters.dz.data, row * columns + column);
    }
#pragma unroll
    for (int v = 0; v < kPieces; ++v) {
      const int64_t column = PieceColumn<kWidth>(v);
      pieces[0][v] = pieces[1][v] = -0.0f;
      if (column >= columns) continue;
      float gamma[kWidth], dyg[kWidth], products[kWidth];
      LoadGamma(parameters.gamma, parameters.zero_centered_gamma, column, gamma);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        dyg[i] = gamma[i] * dz[v].Value(i);
        products[i] = dyg[i] * NormHat(x[v].Value(i), mean, rstd);
      }
      pieces[0][v] = SumOfPiece(products);
      pieces[1][v] = SumOfPiece(dyg);
    }
    reduction.Reduce(pieces, sums);
    const float mean_dyg_hat = sums[0] * parameters.inverse_count;
    const float mean_dyg = parameters.mean != nullptr ? sums[1] * parameters.inverse_count : -0.0f;
#pragma unroll
    for (int v = 0; v < kPieces; ++v) {
      const int64_t column = PieceColumn<kWidth>(v);
      if (column >= columns) continue;
      float dx[kWidth], other[kWidth];
      LoadGamma(parameters.gamma, parameters.zero_centered_gamma, column, other);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        dx[i] = NormGradient(other[i] * dz[v].Value(i), NormHat(x[v].Value(i), mean, rstd), rstd,
                             mean_dyg_hat, mean_dyg);
      }
      if (parameters.residual.data != nullptr) {
        LoadLanes(parameters.residual, row * columns + column, other);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) dx[i] += other[i];
      }
      StoreLanes(parameters.dx, row * columns + column, dx);
    }
  }
}

template <NumberEncoding kEncoding, int kPieces>
void LaunchRows(const NormForwardParameters& parameters, dim3 grid, dim3 block,
                cudaStream_t stream) {
  ForwardRows<kEncoding, kPieces><<<grid, block, 0, stream>>>(parameters);
}
template <NumberEncoding kEncoding, int kPieces>
void LaunchRows(const NormBackwardParameters& parameters, dim3 grid, dim3 block,
                cudaStream_t stream) {
  BackwardRows<kEncoding, kPieces><<<grid, block, 0, stream>>>(parameters);
}

template <NumberEncoding kEncoding, class Parameters>
void LaunchAs(const Parameters& parameters, cudaStream_t stream) {
  ForPieces(parameters.columns / kPieceWidth<kEncoding>, [&](auto pieces, dim3 block) {
    const dim3 grid(BlocksOfRows(parameters.rows, block.y));
    LaunchRows<kEncoding, decltype(pieces)::value>(parameters, grid, block, stream);
  });
}

template <class Parameters>
void LaunchFor(const Parameters& parameters, cudaStream_t stream) {
  switch (parameters.x.encoding) {
    case NumberEncoding::kF32:
      return LaunchAs<NumberEncoding::kF32>(parameters, stream);
    case NumberEncoding::kBF16:
      return LaunchAs<NumberEncoding::kBF16>(parameters, stream);
    default:
      return LaunchAs<NumberEncoding::kF16>(parameters, stream);
  }
}

bool IsRowTunable(const FloatsIn& x, const FloatsOut& to, int64_t columns) {
  const int64_t width = x.encoding == NumberEncoding::kF32 ? 4 : 8;
  return columns % 8 == 0 && columns <= width * kPiecesMost * kRowThreadsMax &&
         IsAlignedForLanes(x.data) && IsAlignedForLanes(to.data);
}

}  // namespace

bool IsTunable(const NormForwardParameters& parameters) {
  return IsRowTunable(parameters.x, parameters.y, parameters.columns) &&
         IsAlignedForLanes(parameters.gamma.data) && IsAlignedForLanes(parameters.beta.data);
}
bool IsTunable(const NormBackwardParameters& parameters) {
  return IsRowTunable(parameters.x, parameters.dx, parameters.columns) &&
         parameters.x.encoding == parameters.dz.encoding && IsAlignedForLanes(parameters.dz.data) &&
         IsAlignedForLanes(parameters.gamma.data) && IsAlignedForLanes(parameters.residual.data);
}

void LaunchTuned(const NormForwardParameters& parameters, cudaStream_t stream) {
  LaunchFor(parameters, stream);
}
void LaunchTuned(const NormBackwardParameters& parameters, cudaStream_t stream) {
  LaunchFor(parameters, stream);
}

}  // namespace quantgate
