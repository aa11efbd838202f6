// NVFP4 on a GPU, plainly: a thread per block of 16 elements, sixteen threads side by side for the
// lines of a tile, every step a scalar function of kernels/numerics.
#include <algorithm>

#include "kernels/numerics/hadamard.h"
#include "kernels/quantize/nvfp4/nvfp4_kernels.h"
#include "kernels/quantize/nvfp4/nvfp4_line_block_cuda.h"

namespace quantgate {
namespace {

using nvfp4_blocks::EncodeBlock;
using nvfp4_blocks::kKinds;
using nvfp4_blocks::kLength;
using nvfp4_blocks::LineBlock;
using nvfp4_blocks::MagnitudeBits;

constexpr int kThreads = 256;

// ---- amaxes

/// Any number of lanes, all of the warp present.
__device__ void MergeAmax(uint32_t bits, float* amax) {
  bits = __reduce_max_sync(0xFFFFFFFFu, bits);
  if (threadIdx.x % 32 == 0 && bits != 0) atomicMax(reinterpret_cast<uint32_t*>(amax), bits);
}

template <class F>
__global__ void __launch_bounds__(kThreads)
    FindAmax(const typename F::Storage* source, int64_t count, float* amax) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  uint32_t bits = 0;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += stride) {
    bits = max(bits, MagnitudeBits<F>(source[i]));
  }
  MergeAmax(bits, amax);
}

/// A warp per row.
template <class F>
__global__ void __launch_bounds__(kThreads)
    FindRowAmaxes(const typename F::Storage* source, int64_t rows, int64_t columns, float* amax) {
  const int64_t stride = int64_t{gridDim.x} * (kThreads / 32);
  for (int64_t row = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32; row < rows;
       row += stride) {
    uint32_t bits = 0;
    for (int64_t i = threadIdx.x % 32; i < columns; i += 32) {
      bits = max(bits, MagnitudeBits<F>(source[row * columns + i]));
    }
    MergeAmax(bits, amax + row);
  }
}

/// A thread per column, in bands of rows.
constexpr int kBandRows = 256;
template <class F>
__global__ void __launch_bounds__(kThreads)
    FindColumnAmaxes(const typename F::Storage* source, int64_t rows, int64_t columns,
                     float* amax) {
  const int64_t column = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (column >= columns) return;
  for (int64_t band = blockIdx.y; band * kBandRows < rows; band += gridDim.y) {
    const int64_t end = min(rows, (band + 1) * kBandRows);
    uint32_t bits = 0;
    for (int64_t row = band * kBandRows; row < end; ++row) {
      bits = max(bits, MagnitudeBits<F>(source[row * columns + column]));
    }
    atomicMax(reinterpret_cast<uint32_t*>(amax + column), bits);
  }
}

/// A thread per block of 16 elements of a column.
__global__ void __launch_bounds__(kThreads)
    FindTransformedAmax(const uint16_t* source, int64_t rows, int64_t columns, float* amax) {
  const int64_t stride = int64_t{gridDim.x} * kThreads, blocks = rows / kLength * columns;
  uint32_t bits = 0;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < blocks; i += stride) {
    const uint16_t* from = source + i / columns * kLength * columns + i % columns;
    uint16_t group[kLength], transformed[kLength];
    for (int j = 0; j < kLength; ++j) group[j] = from[j * columns];
    HadamardTransform(group, transformed);
    for (int j = 0; j < kLength; ++j) bits = max(bits, MagnitudeBits<BFloat16>(transformed[j]));
  }
  MergeAmax(bits, amax);
}

// ---- codes

template <class Source>
__device__ LineBlock<Source> LoadBlock(const Nvfp4Parameters& p, int64_t line, int64_t block) {
  LineBlock<Source> loaded = {line, block, {}};
  const auto* source = static_cast<const typename Source::Storage*>(p.source);
  const int64_t element_stride = p.is_rowwise ? 1 : p.columns;
  const int64_t line_stride = p.is_rowwise ? p.columns : 1;
  source += line * line_stride + block * kLength * element_stride;
  for (int i = 0; i < kLength; ++i) loaded.elements[i] = source[i * element_stride];
  if constexpr (std::is_same_v<Source, BFloat16>) {
    if (p.hadamard) {
      uint16_t transformed[kLength];
      HadamardTransform(loaded.elements, transformed);
      for (int i = 0; i < kLength; ++i) loaded.elements[i] = transformed[i];
    }
  }
  return loaded;
}

/// The lanes that hold the sixteen lines of this lane's tile.
__device__ uint32_t TileLanes() { return 0xFFFFu << (threadIdx.x & 16); }

template <class Source>
__device__ float BlockAmax(const Nvfp4Parameters& p, const LineBlock<Source>& block) {
  uint32_t bits = 0;
  for (int i = 0; i < kLength; ++i) bits = max(bits, MagnitudeBits<Source>(block.elements[i]));
  if (p.has_tiles) bits = __reduce_max_sync(TileLanes(), bits);
  return std::bit_cast<float>(bits);
}

/// The error of a candidate of 4over6: of the line, or of the tile by pairs of lines at distances
/// 8, 4, 2, 1.
template <class Source>
__device__ float CandidateError(const Nvfp4Parameters& p, const LineBlock<Source>& block,
                                const Nvfp4BlockScale& scale, float amax) {
  float sum = 0.0f;
  for (int i = 0; i < kLength; ++i) {
    const float value = block.Value(i);
    const uint8_t code = EncodeFloat<E2M1>(scale.Scaled(value));
    sum += FourOverSixError(value, code, scale.code, amax, p.e4m3_max, p.squares);
  }
  if (!p.has_tiles) return sum;
  for (int distance = kLength / 2; distance > 0; distance /= 2) {
    sum += __shfl_down_sync(TileLanes(), sum, distance, kLength);
  }
  return __shfl_sync(TileLanes(), sum, 0, kLength);
}

template <class Source>
__device__ Nvfp4BlockScale PickScale(const Nvfp4Parameters& p, const LineBlock<Source>& block) {
  const float amax = p.amax == nullptr ? 0.0f : p.amax[p.row_scaled ? block.line : 0];
  const Nvfp4TensorScale tensor = MakeNvfp4TensorScale(amax, p.e4m3_max, p.scale_rule);
  const float block_amax = BlockAmax(p, block);
  if (!p.picks) return MakeNvfp4BlockScale(block_amax, tensor);
  const FourOverSixScales both = MakeFourOverSixScales(block_amax, tensor);
  const float error4 = CandidateError(p, block, both.four, amax);
  const float error6 = CandidateError(p, block, both.six, amax);
  return error4 < error6 ? both.four : both.six;
}

/// All threads of the block take part.
__device__ void AddKinds(const int* kinds, unsigned long long* counts) {
  __shared__ int sums[kKinds];
  if (threadIdx.x < kKinds) sums[threadIdx.x] = 0;
  __syncthreads();
  for (int k = 0; k < kKinds; ++k) {
    const int sum = __reduce_add_sync(0xFFFFFFFFu, kinds[k]);
    if (threadIdx.x % 32 == 0) atomicAdd(&sums[k], sum);
  }
  __syncthreads();
  if (threadIdx.x < kKinds && sums[threadIdx.x] != 0) {
    atomicAdd(counts + threadIdx.x, static_cast<unsigned long long>(sums[threadIdx.x]));
  }
}

/// Threads 16u to 16u + 15 take the same block of sixteen adjacent lines; u goes along the rows of
/// the source.
template <class Source>
__global__ void __launch_bounds__(kThreads) Quantize(const Nvfp4Parameters p) {
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t bands = p.lines() / kLength, blocks = p.length() / kLength;
  const int64_t unit = thread / kLength;
  int kinds[kKinds] = {};
  if (unit < bands * blocks) {
    const int64_t band = p.is_rowwise ? unit / blocks : unit % bands;
    const int64_t line = band * kLength + thread % kLength;
    const auto block = LoadBlock<Source>(p, line, p.is_rowwise ? unit % blocks : unit / bands);
    const Nvfp4BlockScale scale = PickScale(p, block);
    const uint64_t codes = EncodeBlock(p, block, scale, kinds);
    reinterpret_cast<uint64_t*>(p.codes)[line * blocks + block.block] = codes;
    p.scales[line * blocks + block.block] = scale.code;
  }
  if (p.counts != nullptr) AddKinds(kinds, p.counts);
}

// ---- values

template <class Out>
__device__ typename Out::Storage RoundTo(float value) {
  if constexpr (std::is_same_v<Out, Float32>) {
    return std::bit_cast<uint32_t>(CanonicalFloat(value));
  } else {
    return EncodeFloat<Out>(value);
  }
}

/// A thread per byte of codes.
template <class Out>
__global__ void __launch_bounds__(kThreads) Dequantize(const Nvfp4DequantizeParameters p) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= p.rows * p.columns / 2) return;
  const uint8_t scale_code = p.scales[i / (kLength / 2)];
  float scale = DecodeFloat<E4M3>(scale_code);
  if (p.amax != nullptr) {
    const float amax = p.amax[p.row_scaled ? i / (p.columns / 2) : 0];
    scale = Nvfp4DequantizeScale(scale_code, amax, Nvfp4AmaxFactor(p.e4m3_max));
  }
  auto* out = static_cast<typename Out::Storage*>(p.out) + 2 * i;
  out[0] = RoundTo<Out>(DecodeFloat<E2M1>(p.codes[i] & 0xF) * scale);
  out[1] = RoundTo<Out>(DecodeFloat<E2M1>(p.codes[i] >> 4) * scale);
}

// ---- launches

/// Enough blocks to fill the device, for loops that stride over all their work.
unsigned StridedGrid(int64_t threads) {
  return static_cast<unsigned>(std::clamp<int64_t>((threads + kThreads - 1) / kThreads, 1, 2048));
}

template <class F>
void StartAmax(const Nvfp4Parameters& p, cudaStream_t stream) {
  const auto* source = static_cast<const typename F::Storage*>(p.source);
  if (!p.row_scaled) {
    const int64_t count = p.rows * p.columns;
    FindAmax<F><<<StridedGrid(count / 8), kThreads, 0, stream>>>(source, count, p.amax);
  } else if (p.is_rowwise) {
    FindRowAmaxes<F>
        <<<StridedGrid(p.rows * 32), kThreads, 0, stream>>>(source, p.rows, p.columns, p.amax);
  } else {
    const dim3 grid(
        static_cast<unsigned>((p.columns + kThreads - 1) / kThreads),
        static_cast<unsigned>(std::min<int64_t>((p.rows + kBandRows - 1) / kBandRows, 65535)));
    FindColumnAmaxes<F><<<grid, kThreads, 0, stream>>>(source, p.rows, p.columns, p.amax);
  }
}

unsigned GridOf(int64_t threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

}  // namespace

cudaError_t LaunchNvfp4Amax(const Nvfp4Parameters& p, cudaStream_t stream) {
  const size_t count = p.row_scaled ? static_cast<size_t>(p.lines()) : 1;
  const cudaError_t error = cudaMemsetAsync(p.amax, 0, count * sizeof(float), stream);
  if (error != cudaSuccess || p.rows == 0 || p.columns == 0) return error;
  if (p.hadamard) {
    FindTransformedAmax<<<StridedGrid(p.rows / kLength * p.columns), kThreads, 0, stream>>>(
        static_cast<const uint16_t*>(p.source), p.rows, p.columns, p.amax);
  } else if (p.source_type == Nvfp4Float::kF32) {
    StartAmax<Float32>(p, stream);
  } else if (p.source_type == Nvfp4Float::kBF16) {
    StartAmax<BFloat16>(p, stream);
  } else {
    StartAmax<Float16>(p, stream);
  }
  return cudaGetLastError();
}

cudaError_t LaunchNvfp4Quantize(const Nvfp4Parameters& p, cudaStream_t stream) {
  const int64_t threads = p.rows * p.columns / kLength;
  if (threads == 0) return cudaSuccess;
  if (p.source_type == Nvfp4Float::kF32) {
    Quantize<Float32><<<GridOf(threads), kThreads, 0, stream>>>(p);
  } else if (p.source_type == Nvfp4Float::kBF16) {
    Quantize<BFloat16><<<GridOf(threads), kThreads, 0, stream>>>(p);
  } else {
    Quantize<Float16><<<GridOf(threads), kThreads, 0, stream>>>(p);
  }
  return cudaGetLastError();
}

cudaError_t LaunchNvfp4Dequantize(const Nvfp4DequantizeParameters& p, cudaStream_t stream) {
  const int64_t threads = p.rows * p.columns / 2;
  if (threads == 0) return cudaSuccess;
  if (p.out_type == Nvfp4Float::kF32) {
    Dequantize<Float32><<<GridOf(threads), kThreads, 0, stream>>>(p);
  } else if (p.out_type == Nvfp4Float::kBF16) {
    Dequantize<BFloat16><<<GridOf(threads), kThreads, 0, stream>>>(p);
  } else {
    Dequantize<Float16><<<GridOf(threads), kThreads, 0, stream>>>(p);
  }
  return cudaGetLastError();
}

}  // namespace quantgate
