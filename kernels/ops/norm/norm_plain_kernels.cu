// Norms by the functions of kernels/numerics, with a warp per row or a thread per column, for every
// shape and alignment.
#include <algorithm>

#include "kernels/numerics/norm.h"
#include "kernels/numerics/pairwise.h"
#include "kernels/ops/norm/norm_kernels.h"
#include "kernels/ops/row_sums_cuda.h"

namespace quantgate {
namespace {

constexpr int kRowsPerBlock = 4;
constexpr int kColumnThreads = 128;

__device__ int64_t FirstRow() { return int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.y; }
__device__ int64_t RowStride() { return int64_t{gridDim.x} * kRowsPerBlock; }

__global__ void ForwardRows(const NormForwardParameters parameters) {
  const int64_t columns = parameters.columns;
  for (int64_t row = FirstRow(); row < parameters.rows; row += RowStride()) {
    const auto x = [&](int64_t i) { return LoadFloat(parameters.x, row * columns + i); };
    const float mean =
        parameters.mean != nullptr ? SumOfRow(columns, x) * parameters.inverse_count : 0.0f;
    const float squares = SumOfRow(columns, [&](int64_t i) {
      const float centered = x(i) - mean;
      return centered * centered;
    });
    const float rstd = NormRstd(squares * parameters.inverse_count, parameters.epsilon);
    for (int64_t i = threadIdx.x; i < columns; i += kWarp) {
      const float gamma = NormGamma(LoadFloat(parameters.gamma, i), parameters.zero_centered_gamma);
      const float scaled = NormScaled(NormHat(x(i), mean, rstd), gamma);
      StoreFloat(parameters.y, row * columns + i,
                 parameters.beta.data != nullptr ? scaled + LoadFloat(parameters.beta, i) : scaled);
    }
    if (threadIdx.x == 0) {
      parameters.rstd[row] = CanonicalFloat(rstd);
      if (parameters.mean != nullptr) parameters.mean[row] = CanonicalFloat(mean);
    }
  }
}

__global__ void BackwardRows(const NormBackwardParameters parameters) {
  const int64_t columns = parameters.columns;
  for (int64_t row = FirstRow(); row < parameters.rows; row += RowStride()) {
    const float mean = parameters.mean != nullptr ? parameters.mean[row] : 0.0f;
    const float rstd = parameters.rstd[row];
    const auto hat = [&](int64_t i) {
      return NormHat(LoadFloat(parameters.x, row * columns + i), mean, rstd);
    };
    const auto dyg = [&](int64_t i) {
      return NormGamma(LoadFloat(parameters.gamma, i), parameters.zero_centered_gamma) *
             LoadFloat(parameters.dz, row * columns + i);
    };
    const float mean_dyg_hat =
        SumOfRow(columns, [&](int64_t i) { return dyg(i) * hat(i); }) * parameters.inverse_count;
    const float mean_dyg =
        parameters.mean != nullptr ? SumOfRow(columns, dyg) * parameters.inverse_count : -0.0f;
    for (int64_t i = threadIdx.x; i < columns; i += kWarp) {
      float dx = NormGradient(dyg(i), hat(i), rstd, mean_dyg_hat, mean_dyg);
      if (parameters.residual.data != nullptr) {
        dx += LoadFloat(parameters.residual, row * columns + i);
      }
      StoreFloat(parameters.dx, row * columns + i, dx);
    }
  }
}

__global__ void GroupColumns(const NormColumnParameters parameters, int64_t groups) {
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= parameters.columns) return;
  for (int64_t group = blockIdx.y; group < groups; group += gridDim.y) {
    const int64_t begin = group * kColumnSumRows;
    const int64_t end =
        begin + kColumnSumRows < parameters.rows ? begin + kColumnSumRows : parameters.rows;
    PairwiseAccumulator<float> dgamma, dbeta;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t at = row * parameters.columns + column;
      const float dz = LoadFloat(parameters.dz, at);
      const float mean = parameters.mean != nullptr ? parameters.mean[row] : 0.0f;
      dgamma.Add(dz * NormHat(LoadFloat(parameters.x, at), mean, parameters.rstd[row]));
      dbeta.Add(dz);
    }
    const int64_t to = group * parameters.columns + column;
    if (parameters.dgamma != nullptr) parameters.dgamma[to] = dgamma.Sum();
    if (parameters.dbeta != nullptr) parameters.dbeta[to] = dbeta.Sum();
  }
}

void LaunchPlain(const NormForwardParameters& parameters, cudaStream_t stream) {
  ForwardRows<<<BlocksOfRows(parameters.rows, kRowsPerBlock), dim3(kWarp, kRowsPerBlock), 0,
                stream>>>(parameters);
}
void LaunchPlain(const NormBackwardParameters& parameters, cudaStream_t stream) {
  BackwardRows<<<BlocksOfRows(parameters.rows, kRowsPerBlock), dim3(kWarp, kRowsPerBlock), 0,
                 stream>>>(parameters);
}
void LaunchPlain(const NormColumnParameters& parameters, cudaStream_t stream) {
  const int64_t groups = (parameters.rows + kColumnSumRows - 1) / kColumnSumRows;
  const dim3 grid(static_cast<unsigned>((parameters.columns + kColumnThreads - 1) / kColumnThreads),
                  static_cast<unsigned>(std::min<int64_t>(groups, 65535)));
  GroupColumns<<<grid, kColumnThreads, 0, stream>>>(parameters, groups);
}

template <class Parameters>
cudaError_t LaunchOn(const Parameters& parameters, KernelPath path, cudaStream_t stream) {
  if (parameters.rows == 0) return cudaSuccess;
  if (path == KernelPath::kTuned && IsTunable(parameters)) {
    LaunchTuned(parameters, stream);
  } else {
    LaunchPlain(parameters, stream);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchNormForward(const NormForwardParameters& parameters, KernelPath path,
                              cudaStream_t stream) {
  return LaunchOn(parameters, path, stream);
}
cudaError_t LaunchNormBackward(const NormBackwardParameters& parameters, KernelPath path,
                               cudaStream_t stream) {
  return LaunchOn(parameters, path, stream);
}
cudaError_t LaunchNormColumns(const NormColumnParameters& parameters, KernelPath path,
                              cudaStream_t stream) {
  return LaunchOn(parameters, path, stream);
}

}  // namespace quantgate
