// fp8_tensor, fp8_block and mxfp8 by the definition, whatever the rule and the source: the kernels
// that the tuned ones are tested against.
#include "kernels/quantize/cuda/tile_parts_cuda.h"

namespace quantgate {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarpLanes;
constexpr int kBlockSide = 128, kMicroSide = 32;

/// A block of threads per tile of 128 x 128.
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

/// A warp per tile of 32 x 32.
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
  // Tiles of f32 scales may be cut short at the edges, those of E8M0 scales are whole.
  if (job.scales == ScaleKind::kTensor ||
      (job.scales == ScaleKind::kF32 && job.block_length == kBlockSide)) {
    return VisitFormatIn(Fp8Formats{}, job.element,
                         [&]<class F>() -> Kernel { return &QuantizeBlocks<F>; });
  }
  if (job.scales != ScaleKind::kE8m0 || job.block_length != kMicroSide) return nullptr;
  return VisitFormatIn(QuantizedFormats{}, job.element,
                       [&]<class F>() -> Kernel { return &QuantizeMicro<F>; });
}

}  // namespace

cudaError_t LaunchPlainTiles(const TileQuantization& job, int multiprocessors,
                             cudaStream_t stream) {
  if (job.rows == 0 || job.columns == 0) return cudaSuccess;
  const Kernel kernel = FindKernel(job);
  if (kernel == nullptr) return cudaErrorNotSupported;  // No tiles of this side are compiled.
  kernel<<<multiprocessors * 8, kThreads, 0, stream>>>(job);
  return cudaGetLastError();
}

}  // namespace quantgate
