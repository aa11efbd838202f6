#include "kernels/gemm/cublaslt/rearrange_scales.h"

namespace quantgate {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kBlocksMax = 4096;

__global__ void __launch_bounds__(kThreads) RearrangeKernel(RearrangeParameters p) {
  const int64_t count = p.outer * p.out_stride;
  const int64_t step = int64_t{kThreads} * gridDim.x;
  for (int64_t at = int64_t{kThreads} * blockIdx.x + threadIdx.x; at < count; at += step) {
    const int64_t outer = at / p.out_stride;
    const int64_t inner = at - outer * p.out_stride;
    p.out[at] =
        inner < p.inner ? p.in[outer * p.in_outer_stride + inner * p.in_inner_stride] : 0.0f;
  }
}

}  // namespace

cudaError_t LaunchRearrange(const RearrangeParameters& parameters, cudaStream_t stream) {
  const int64_t count = parameters.outer * parameters.out_stride;
  if (count == 0) return cudaSuccess;
  const int64_t blocks = (count + kThreads - 1) / kThreads;
  RearrangeKernel<<<static_cast<unsigned>(blocks < kBlocksMax ? blocks : kBlocksMax), kThreads, 0,
                    stream>>>(parameters);
  return cudaGetLastError();
}

}  // namespace quantgate
