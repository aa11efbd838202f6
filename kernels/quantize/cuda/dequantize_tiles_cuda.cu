// The values that codes and scales of fp8_tensor, fp8_block, fp8_rowwise and mxfp8 stand for.
#include "kernels/numerics/e8m0.h"
#include "kernels/quantize/cuda/packed_casts_cuda.h"
#include "kernels/quantize/cuda/quantize_tiles_cuda.h"

namespace quantgate {
namespace {

constexpr int kThreads = 256, kLanes = 32, kWarps = kThreads / kLanes;
constexpr int kSide =
    64;  // Of the tiles that are turned: codes are read and values written in lines.

struct DequantizeShared {
  float values[256];
  uint8_t codes[kSide][kSide + 4];
};

__device__ float ScaleAt(const TileDequantization& job, int64_t row, int64_t column) {
  if (job.scales == ScaleKind::kTensor) return *static_cast<const float*>(job.scale_inv);
  const int64_t line = job.is_columnwise ? column : row, at = job.is_columnwise ? row : column;
  if (job.scales == ScaleKind::kLine) return static_cast<const float*>(job.scale_inv)[line];
  const int64_t lines = job.is_columnwise ? job.columns : job.rows;
  const int64_t length = job.is_columnwise ? job.rows : job.columns;
  const int64_t blocks = (length + (int64_t{1} << job.block_bits) - 1) >> job.block_bits;
  const int64_t block = at >> job.block_bits;
  // E8M0 scales of a tile are stored once for each line of the tile.
  const bool has_one_a_tile = job.has_tiles && job.scales == ScaleKind::kF32;
  const int64_t index = job.is_columnwise && !job.is_turned
                            ? block * lines + line
                            : (has_one_a_tile ? line >> job.block_bits : line) * blocks + block;
  return job.scales == ScaleKind::kE8m0
             ? DecodeE8m0(static_cast<const uint8_t*>(job.scale_inv)[index])
             : static_cast<const float*>(job.scale_inv)[index];
}

__device__ void Store(const TileDequantization& job, int64_t index, float value) {
  if (job.out_format == kFormatId<BFloat16>) {
    static_cast<uint16_t*>(job.out)[index] = RoundToBf16(value);
  } else if (job.out_format == kFormatId<Float16>) {
    static_cast<uint16_t*>(job.out)[index] = RoundToF16(value);
  } else {
    static_cast<float*>(job.out)[index] = CanonicalFloat(value);
  }
}

/// The codes of a tile of a transposed array, at [column][row].
__device__ void LoadTurned(const TileDequantization& job, int64_t row_begin, int64_t column_begin,
                           DequantizeShared& shared) {
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  for (int j = static_cast<int>(threadIdx.x) / kLanes; j < kSide; j += kWarps) {
    const int64_t column = column_begin + j;
    for (int i = lane; i < kSide; i += kLanes) {
      const int64_t row = row_begin + i;
      if (row >= job.rows || column >= job.columns) continue;
      shared.codes[j][i] = job.codes[column * job.rows + row];
    }
  }
  __syncthreads();
}

template <class Element>
__global__ void __launch_bounds__(kThreads) DequantizeTiles(const TileDequantization job) {
  __shared__ DequantizeShared shared;
  constexpr int kCodes = 1 << FormatConstants<Element>::kBits;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kLanes;
  if (thread < kCodes) shared.values[thread] = DecodeFloat<Element>(static_cast<uint8_t>(thread));
  __syncthreads();
  const int64_t across = (job.columns + kSide - 1) / kSide;
  const int64_t tiles = (job.rows + kSide - 1) / kSide * across;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t row_begin = tile / across * kSide, column_begin = tile % across * kSide;
    if (job.is_turned) LoadTurned(job, row_begin, column_begin, shared);
    for (int i = thread / kLanes; i < kSide && row_begin + i < job.rows; i += kWarps) {
      for (int j = lane; j < kSide && column_begin + j < job.columns; j += kLanes) {
        const int64_t row = row_begin + i, column = column_begin + j;
        const int64_t index = row * job.columns + column;
        int code = 0;
        if (job.is_turned) {
          code = shared.codes[j][i];
        } else if constexpr (FormatConstants<Element>::kBits == 4) {
          code = job.codes[index / 2] >> (index % 2 * 4) & 0xF;
        } else {
          code = job.codes[index] & (kCodes - 1);
        }
        Store(job, index, shared.values[code] * ScaleAt(job, row, column));
      }
    }
  }
}

}  // namespace

cudaError_t LaunchDequantizeTiles(const TileDequantization& job, int multiprocessors,
                                  cudaStream_t stream) {
  if (job.rows == 0 || job.columns == 0) return cudaSuccess;
  const auto kernel =
      VisitFormatIn(GeneralFormats{}, job.element, [&]<class F>() { return &DequantizeTiles<F>; });
  kernel<<<multiprocessors * 8, kThreads, 0, stream>>>(job);
  return cudaGetLastError();
}

}  // namespace quantgate
