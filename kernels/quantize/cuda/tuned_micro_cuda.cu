// mxfp8 from bf16 at the speed of memory: one read of the source, both copies. A warp has a tile of
// 32 x 64 in registers, a block of threads eight of them side by side. What is left at the right
// edge, and tiles with an infinity or a NaN, go to the definition (tile_parts_cuda.h).
#include "kernels/quantize/cuda/code_tally_cuda.h"
#include "kernels/quantize/cuda/packed_casts_cuda.h"
#include "kernels/quantize/cuda/tile_parts_cuda.h"
#include "kernels/quantize/cuda/tuned_tiles_cuda.h"

namespace quantgate {
namespace {

constexpr int kLength = 32;  // Of a block of elements.
constexpr int kThreads = 256, kWarps = kThreads / kWarpLanes;
constexpr int kPatch = 8;  // A thread has a patch of 8 x 8.
constexpr int kWidth = 2 * kLength, kAcross = kWidth / kPatch;
constexpr int kBlockWidth = kWarps * kWidth, kScalesAcross = kBlockWidth / kLength;
constexpr int kBlocksPerMultiprocessor = 3;
constexpr uint32_t kInfinityBf16 = 0x7F80;

struct Shared {
  uint4 source[kPatch][kThreads];  ///< A thread's own.
  uint8_t row_scales[kLength][kScalesAcross];
  bool is_gathered[kWarps];  ///< The warp's scales are in row_scales.
  TileFactors<kLength> plain[kWarps];
  WarpCounts<kWarps> counts;
};

/// Of a block's tiles: in rows of tiles, and in as many as a block has.
struct TilePlace {
  uint32_t down, right;

  __device__ int64_t row() const { return int64_t{down} * kLength; }
  __device__ int64_t column() const { return int64_t{right} * kBlockWidth; }
};

template <class Element>
class MicroTile {
 public:
  __device__ MicroTile(const TileQuantization& job, TilePlace place, Shared& shared)
      : job_(job), place_(place), shared_(shared) {
    const auto* source = static_cast<const uint16_t*>(job.source) + First();
#pragma unroll
    for (int i = 0; i < kPatch; ++i) {
      CopyOnce(&shared.source[i][threadIdx.x], source + i * job.columns);
    }
    WaitForCopies();
#pragma unroll
    for (int i = 0; i < kPatch; ++i) patch_[i] = shared.source[i][threadIdx.x];
  }

  /// Row scales go to shared memory. False, with nothing written, where the tile is one for the
  /// definition.
  __device__ bool Quantize(ThreadCounts& counts) {
    FindRowAmaxes();
    FindColumnAmaxes();
    const uint32_t largest = LargerHalf(MaxOrNanOfBf16(columns_amax_));
    if (__any_sync(0xFFFFFFFF, largest >= kInfinityBf16)) return false;
    if (job_.has_tiles) SpreadTileAmax(largest);
    if (job_.column_codes == nullptr) {
      Encode<true, false>(counts);
    } else if (job_.row_codes == nullptr) {
      Encode<false, true>(counts);
    } else {
      Encode<true, true>(counts);
    }
    return true;
  }

 private:
  __device__ static uint32_t Warp() { return threadIdx.x / kWarpLanes; }
  /// The patch's place in the tile.
  __device__ static uint32_t Down() { return threadIdx.x % kWarpLanes / kAcross; }
  __device__ static uint32_t Right() { return threadIdx.x % kAcross; }
  /// The patch's first element, in the source and in both code arrays.
  __device__ int64_t First() const {
    return (place_.row() + Down() * kPatch) * job_.columns + place_.column() + Warp() * kWidth +
           Right() * kPatch;
  }
  __device__ static uint32_t OfLane(uint32_t value, int distance) {
    return __shfl_xor_sync(0xFFFFFFFF, value, distance);
  }

  /// Over the lanes that share a block, two rows to a word.
  __device__ void FindRowAmaxes() {
#pragma unroll
    for (int i = 0; i < kPatch / 2; ++i) {
      const uint32_t a = MaxOrNanOfBf16(patch_[2 * i]), b = MaxOrNanOfBf16(patch_[2 * i + 1]);
      uint32_t rows = MaxOrNanOfBf16(LowerHalves(a, b), UpperHalves(a, b));
#pragma unroll
      for (int lanes = 1; lanes < kLength / kPatch; lanes *= 2) {
        rows = MaxOrNanOfBf16(rows, OfLane(rows, lanes));
      }
      rows_[i] = rows;
    }
  }

  /// Over the four rows of patches.
  __device__ void FindColumnAmaxes() {
    columns_amax_ = patch_[0];
#pragma unroll
    for (int i = 1; i < kPatch; ++i) TakeColumns(patch_[i]);
#pragma unroll
    for (int lanes = kAcross; lanes < kWarpLanes; lanes *= 2) {
      TakeColumns(make_uint4(OfLane(columns_amax_.x, lanes), OfLane(columns_amax_.y, lanes),
                             OfLane(columns_amax_.z, lanes), OfLane(columns_amax_.w, lanes)));
    }
  }
  __device__ void TakeColumns(const uint4& other) {
    columns_amax_ = make_uint4(
        MaxOrNanOfBf16(columns_amax_.x, other.x), MaxOrNanOfBf16(columns_amax_.y, other.y),
        MaxOrNanOfBf16(columns_amax_.z, other.z), MaxOrNanOfBf16(columns_amax_.w, other.w));
  }

  /// One amax of 32 x 32 in place of all: `largest` is that of a lane's columns.
  __device__ void SpreadTileAmax(uint32_t largest) {
#pragma unroll
    for (int lanes = 1; lanes < kLength / kPatch; lanes *= 2) {
      largest = max(largest, OfLane(largest, lanes));
    }
    const uint32_t pair = largest | largest << 16;
    columns_amax_ = make_uint4(pair, pair, pair, pair);
    for (uint32_t& rows : rows_) rows = pair;
  }

  template <bool kRows, bool kColumns>
  __device__ void Encode(ThreadCounts& counts) {
    CodeTally<Element> tally;
    const int64_t first = First();
    float factors[kPatch];
    if constexpr (kColumns) MakeColumnScales(factors);
#pragma unroll
    for (int i = 0; i < kPatch; i += 4) {
      uint32_t words[8];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint4& row = patch_[i + j];
        uint2* codes = nullptr;
        if constexpr (kColumns) {
          EncodeColumns(row, factors, words[2 * j], words[2 * j + 1]);
          codes = reinterpret_cast<uint2*>(job_.column_codes + first + (i + j) * job_.columns);
          *codes = make_uint2(words[2 * j], words[2 * j + 1]);
        }
        if constexpr (kRows) {
          const uint2 of_row = EncodeEight<Element>(row, RowFactor(i + j));
          codes = reinterpret_cast<uint2*>(job_.row_codes + first + (i + j) * job_.columns);
          *codes = of_row;
          words[2 * j] = of_row.x;
          words[2 * j + 1] = of_row.y;
        }
      }
      tally.Add(words, &patch_[i]);
    }
    tally.AddTo(counts, kPatch * kPatch);
  }

  __device__ void MakeColumnScales(float* factors) const {
    const uint32_t pairs[] = {columns_amax_.x, columns_amax_.y, columns_amax_.z, columns_amax_.w};
    uint32_t codes[2] = {};
#pragma unroll
    for (int i = 0; i < kPatch; ++i) {
      const uint32_t code =
          RoundUpScale<Element>(i % 2 == 0 ? pairs[i / 2] & 0xFFFF : pairs[i / 2] >> 16);
      factors[i] = RoundUpMultiplier(code);
      codes[i / 4] |= code << (i % 4 * 8);
    }
    if (Down() != 0) return;
    uint8_t* to = static_cast<uint8_t*>(job_.column_scales) + place_.down * job_.columns +
                  place_.column() + Warp() * kWidth + Right() * kPatch;
    *reinterpret_cast<uint2*>(to) = make_uint2(codes[0], codes[1]);
  }

  __device__ float RowFactor(int i) const {
    const uint32_t code =
        RoundUpScale<Element>(i % 2 == 0 ? rows_[i / 2] & 0xFFFF : rows_[i / 2] >> 16);
    constexpr int kLanes = kLength / kPatch;
    if (Right() % kLanes == 0) {
      shared_.row_scales[Down() * kPatch + i][Warp() * 2 + Right() / kLanes] =
          static_cast<uint8_t>(code);
    }
    return RoundUpMultiplier(code);
  }

  __device__ static void EncodeColumns(const uint4& row, const float* factors, uint32_t& first,
                                       uint32_t& second) {
    first = EncodeFour<Element>(LowerBf16(row.x) * factors[0], UpperBf16(row.x) * factors[1],
                                LowerBf16(row.y) * factors[2], UpperBf16(row.y) * factors[3]);
    second = EncodeFour<Element>(LowerBf16(row.z) * factors[4], UpperBf16(row.z) * factors[5],
                                 LowerBf16(row.w) * factors[6], UpperBf16(row.w) * factors[7]);
  }

  const TileQuantization& job_;
  const TilePlace place_;
  Shared& shared_;
  uint4 patch_[kPatch];
  uint32_t rows_[kPatch / 2];  ///< Amaxes, bf16.
  uint4 columns_amax_;
};

/// What the warps of a block have left in shared memory, in lines.
__device__ void WriteRowScales(const TileQuantization& job, TilePlace place, const Shared& shared) {
  const int64_t stride = job.columns / kLength;
  auto* scales =
      static_cast<uint8_t*>(job.row_scales) + place.row() * stride + place.column() / kLength;
#pragma unroll
  for (uint32_t i = threadIdx.x; i < kLength * kScalesAcross; i += kThreads) {
    const uint32_t line = i / kScalesAcross, at = i % kScalesAcross;
    if (shared.is_gathered[at / 2]) scales[line * stride + at] = shared.row_scales[line][at];
  }
}

template <class Element>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    QuantizeMicro(const __grid_constant__ TileQuantization job, Divisor across) {
  extern __shared__ uint4 memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const uint32_t down = across.Quotient(blockIdx.x);
  const TilePlace place = {down, blockIdx.x - down * across.value};
  const uint32_t warp = threadIdx.x / kWarpLanes;
  const int64_t column = place.column() + warp * kWidth;
  ThreadCounts counts;
  bool is_done = false;
  if (column + kWidth <= job.columns) {
    is_done = MicroTile<Element>(job, place, shared).Quantize(counts);
  }
  if (!is_done) {
    for (int64_t at = column; at < min(column + kWidth, job.columns); at += kLength) {
      PlainTile<Element, WarpThreads, kLength>(job, place.row(), at, shared.plain[warp])
          .Quantize(counts);
    }
  }
  if (job.row_codes != nullptr) {
    if (threadIdx.x % kWarpLanes == 0) shared.is_gathered[warp] = is_done;
    __syncthreads();
    WriteRowScales(job, place, shared);
  }
  counts.AddTo(job.counts, shared.counts);
}

int64_t BlocksAcross(const TileQuantization& job) {
  return (job.columns + kBlockWidth - 1) / kBlockWidth;
}

}  // namespace

bool TunedMicroTake(const TileQuantization& job) {
  // Tiles are counted in 32 bits.
  return job.scale_options.rule == ScaleRule::kRoundUp &&
         job.rows / kLength * BlocksAcross(job) < int64_t{1} << 31;
}

cudaError_t LaunchTunedMicro(const TileQuantization& job, cudaStream_t stream) {
  const auto across = static_cast<uint32_t>(BlocksAcross(job));
  const auto count = static_cast<uint32_t>(job.rows / kLength * across);
  if (count == 0) return cudaSuccess;
  const auto kernel = job.element == kFormatId<E4M3> ? &QuantizeMicro<E4M3> : &QuantizeMicro<E5M2>;
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int{sizeof(Shared)});
  if (error != cudaSuccess) return error;
  kernel<<<count, kThreads, sizeof(Shared), stream>>>(job, Divisor::Of(across));
  return cudaGetLastError();
}

}  // namespace quantgate
