// fp8_tensor, fp8_block, fp8_rowwise and mxfp8 by the scalar functions, for every rule and source.
// The tuned kernels are tested against these.
#include "kernels/quantize/cuda/tile_parts_cuda.h"

namespace quantgate {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarpLanes;
constexpr int kBlockSide = 128, kMicroSide = 32;

/// Quantizes with one block of threads per tile of 128 x 128.
template <class Element>
__global__ void __launch_bounds__(kThreads) QuantizeBlocks(const TileQuantization job) {
  __shared__ TileFactors<kBlockSide> factors;
  const int64_t across = (job.columns + kBlockSide - 1) / kBlockSide;
  const int64_t tiles = (job.rows + kBlockSide - 1) / kBlockSide * across;
  ThreadCounts counts;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    PlainTile<Element, BlockThreads, kBlockSide>(job, tile / across * kBlockSide,
                                                 tile % across * kBlockSide, factors)
        .Quantize(counts);
  }
  __shared__ WarpCounts<kWarps> of_warps;
  counts.AddTo(job.counts, of_warps);
}

/// Raises the amaxes of all lines.
__global__ void __launch_bounds__(kThreads) MeasureLines(const TileQuantization job) {
  __shared__ TileFactors<kBlockSide> amaxes;
  const int64_t across = (job.columns + kBlockSide - 1) / kBlockSide;
  const int64_t tiles = (job.rows + kBlockSide - 1) / kBlockSide * across;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    // Amaxes do not depend on the element.
    PlainTile<E4M3, BlockThreads, kBlockSide>(job, tile / across * kBlockSide,
                                              tile % across * kBlockSide, amaxes)
        .RaiseLineAmaxes();
  }
}

/// Makes the factors of amaxes in place, and the scales. Lines without elements have scale 1
/// (docs/numerics.md section 4).
__device__ void MakeLineScales(const TileQuantization& job, float max_finite, uint32_t* lines,
                               void* scales, int64_t count) {
  if (lines == nullptr) return;
  const bool is_empty = job.rows == 0 || job.columns == 0;
  const int64_t threads = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += threads) {
    const float scale = is_empty ? 1.0f
                                 : ComputeScale(__uint_as_float(lines[i]), max_finite,
                                                job.scale_options, job.subnormals);
    lines[i] = __float_as_uint(scale);
    static_cast<float*>(scales)[i] = ScaleInverse(scale, job.subnormals);
  }
}

__global__ void __launch_bounds__(kThreads)
    MakeScalesOfLines(const TileQuantization job, float max_finite) {
  MakeLineScales(job, max_finite, job.row_lines, job.row_scales, job.rows);
  MakeLineScales(job, max_finite, job.column_lines, job.column_scales, job.columns);
}

/// Quantizes with one warp per tile of 32 x 32.
template <class Element>
__global__ void __launch_bounds__(kThreads) QuantizeMicro(const TileQuantization job) {
  __shared__ TileFactors<kMicroSide> factors[kWarps];
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const int64_t across = job.columns / kMicroSide, tiles = job.rows / kMicroSide * across;
  ThreadCounts counts;
  for (int64_t tile = int64_t{blockIdx.x} * kWarps + warp; tile < tiles;
       tile += int64_t{gridDim.x} * kWarps) {
    PlainTile<Element, WarpThreads, kMicroSide>(job, tile / across * kMicroSide,
                                                tile % across * kMicroSide, factors[warp])
        .Quantize(counts);
  }
  __shared__ WarpCounts<kWarps> of_warps;
  counts.AddTo(job.counts, of_warps);
}

using Kernel = void (*)(TileQuantization);

Kernel FindKernel(const TileQuantization& job) {
  // Tiles with f32 scales may be smaller at the edges; those with E8M0 scales are whole.
  if (job.scales == ScaleKind::kTensor || job.scales == ScaleKind::kLine ||
      (job.scales == ScaleKind::kF32 && job.block_length == kBlockSide)) {
    return VisitFormatIn(Fp8Formats{}, job.element,
                         [&]<class F>() -> Kernel { return &QuantizeBlocks<F>; });
  }
  if (job.scales != ScaleKind::kE8m0 || job.block_length != kMicroSide) return nullptr;
  return VisitFormatIn(QuantizedFormats{}, job.element,
                       [&]<class F>() -> Kernel { return &QuantizeMicro<F>; });
}

}  // namespace

cudaError_t LaunchLineScales(const TileQuantization& job, int multiprocessors,
                             cudaStream_t stream) {
  const unsigned blocks = static_cast<unsigned>(multiprocessors) * 8;
  if (job.rows != 0 && job.columns != 0) {
    MeasureLines<<<blocks, kThreads, 0, stream>>>(job);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  }
  const float max_finite =
      VisitFormatIn(Fp8Formats{}, job.element, [&]<class F>() { return MaxFinite<F>(); });
  MakeScalesOfLines<<<blocks, kThreads, 0, stream>>>(job, max_finite);
  return cudaGetLastError();
}

cudaError_t LaunchPlainTiles(const TileQuantization& job, int multiprocessors,
                             cudaStream_t stream) {
  if (job.rows == 0 || job.columns == 0) return cudaSuccess;
  const Kernel kernel = FindKernel(job);
  if (kernel == nullptr) return cudaErrorNotSupported;  // No tiles of this side are compiled.
  kernel<<<multiprocessors * 8, kThreads, 0, stream>>>(job);
  return cudaGetLastError();
}

}  // namespace quantgate
