// fp8_tensor and fp8_block's tiles from bf16 at the speed of memory: one read of the source, both
// copies; fp8_block's lines: tuned_lines_cuda.cu.
// A block of threads has a tile of 128 x 128 in registers; the columnwise codes are turned in
// shared memory. Tiles at the edges, and those of fp8_block with an infinity or a NaN, are left to
// the definition (tile_parts_cuda.h).
#include "kernels/quantize/cuda/code_tally_cuda.h"
#include "kernels/quantize/cuda/packed_casts_cuda.h"
#include "kernels/quantize/cuda/tile_bands_cuda.h"
#include "kernels/quantize/cuda/tile_parts_cuda.h"
#include "kernels/quantize/cuda/tuned_tiles_cuda.h"

namespace quantgate {
namespace {

constexpr int kSide = 128;
constexpr int kThreads = 256, kWarps = kThreads / kWarpLanes;
constexpr int kPatch = 8;                // A thread has a patch of 8 x 8.
constexpr int kAcross = kSide / kPatch;  // Patches in a row of the tile.
constexpr uint32_t kInfinityBf16 = 0x7F80;
constexpr int kBlocksPerMultiprocessor = 4;  // As many tiles fit the registers.
using TileOrder = TileBands<kSide, 4>;
using TilePlace = TileOrder::Place;

enum class Mode {
  kTensor,  ///< One scale of the tensor.
  kTiles,   ///< Scales of 128 x 128.
};

struct Shared {
  union {
    uint2 codes[kSide][kAcross];  ///< Columnwise: units of 8 codes, see TurnedUnit.
    TileFactors<kSide> plain;
  };
  uint32_t warp_amax[kWarps];
  WarpCounts<kWarps> counts;
};

/// Where the unit of patch row `down` of a column of patches `right` stands: a warp that writes 16
/// patches side by side, or reads whole columns, touches every bank once.
__device__ uint32_t TurnedUnit(uint32_t down, uint32_t right) { return down ^ right; }

/// fp8_tensor: this kernel starts beside the one that makes the scale.
__device__ void WaitForScale() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

/// A whole tile.
template <class Element, Mode kMode>
class BlockTile {
 public:
  /// `copies`: room for kCopies.
  __device__ BlockTile(const TileQuantization& job, TilePlace place, Shared& shared, uint4* copies)
      : job_(job), place_(place), shared_(shared) {
    const auto* source = static_cast<const uint16_t*>(job.source) + First();
#pragma unroll
    for (int i = 0; i < kPatch; ++i) {
      CopyOnce(&copies[i * kThreads + threadIdx.x], source + i * job.columns);
    }
    if constexpr (kMode == Mode::kTensor) {
      WaitForScale();
      factor_ = *job.tensor_scale;
    }
    WaitForCopies();
#pragma unroll
    for (int i = 0; i < kPatch; ++i) patch_[i] = copies[i * kThreads + threadIdx.x];
  }

  /// False, with nothing counted, where the tile is one for the definition.
  __device__ bool Quantize(ThreadCounts& counts) {
    const bool has_rows = job_.row_codes != nullptr, has_columns = job_.column_codes != nullptr;
    if constexpr (kMode == Mode::kTensor) {
      TakeTensorScale();
    } else {
      if (!MakeTileScale()) return false;
    }
    if (has_columns) {
      Encode<true>(has_rows, counts);
      WriteTurned();
    } else {
      Encode<false>(true, counts);
    }
    return true;
  }

  /// By the definition.
  __device__ void QuantizePlainly(ThreadCounts& counts) {
    PlainTile<Element, BlockThreads, kSide>(job_, place_.row(), place_.column(), shared_.plain)
        .Quantize(counts);
  }

  /// kTensor: by one thread, behind a barrier.
  __device__ void RaiseTensorAmax() const {
    uint32_t amax = 0;
    for (const uint32_t of_warp : shared_.warp_amax) amax = max(amax, of_warp);
    atomicMax(job_.amax_bits, amax);
  }

 private:
  __device__ static uint32_t Thread() { return threadIdx.x; }
  __device__ static uint32_t Down() {
    return Thread() / kAcross;
  }  ///< The patch's place in the tile.
  __device__ static uint32_t Right() { return Thread() % kAcross; }
  /// The patch's first element, in the source and in rowwise codes.
  __device__ int64_t First() const {
    return (place_.row() + Down() * kPatch) * job_.columns + place_.column() + Right() * kPatch;
  }

  /// NaN where the patch has one.
  __device__ uint32_t PatchAmax() const {
    uint32_t amax = MaxOrNanOfBf16(patch_[0]);
#pragma unroll
    for (int i = 1; i < kPatch; ++i) amax = MaxOrNanOfBf16(amax, MaxOrNanOfBf16(patch_[i]));
    return LargerHalf(amax);
  }

  // ---- fp8_tensor

  __device__ void TakeTensorScale() {
    uint32_t amax = PatchAmax();
    // False for NaN: such a patch is counted element by element.
    is_plainly_countable_ = LowerBf16(amax) * factor_ < __uint_as_float(FirstBeyondBits<Element>());
    if (job_.amax_bits == nullptr) return;
    if (amax > kInfinityBf16) amax = PatchAmaxOfNumbers();
    amax = __reduce_max_sync(0xFFFFFFFF, amax) << 16;
    if (Thread() % kWarpLanes == 0) shared_.warp_amax[Thread() / kWarpLanes] = amax;
  }

  __device__ uint32_t PatchAmaxOfNumbers() const {
    uint32_t amax = 0;
    for (const uint4& row : patch_) {
      amax = MaxMagnitudesBf16(amax, row.x);
      amax = MaxMagnitudesBf16(amax, row.y);
      amax = MaxMagnitudesBf16(amax, row.z);
      amax = MaxMagnitudesBf16(amax, row.w);
    }
    return LargerHalf(amax);
  }

  // ---- fp8_block, tiles

  __device__ bool MakeTileScale() {
    const uint32_t of_warp = __reduce_max_sync(0xFFFFFFFF, PatchAmax());
    if (Thread() % kWarpLanes == 0) shared_.warp_amax[Thread() / kWarpLanes] = of_warp;
    __syncthreads();
    uint32_t amax = 0;
    for (const uint32_t other : shared_.warp_amax) amax = max(amax, other);
    if (amax >= kInfinityBf16) return false;
    factor_ = ComputeScale(LowerBf16(amax), MaxFinite<Element>(), job_.scale_options);
    if (Thread() != 0) return true;
    WriteScale(job_.row_scales, place_.down, place_.right, job_.columns, factor_);
    WriteScale(job_.column_scales, place_.right, place_.down, job_.rows, factor_);
    return true;
  }

  __device__ static void WriteScale(void* scales, int64_t line, int64_t block, int64_t length,
                                    float scale) {
    if (scales == nullptr) return;
    const int64_t across = (length + kSide - 1) / kSide;
    static_cast<float*>(scales)[line * across + block] = ScaleInverse(scale);
  }

  // ---- codes

  /// Under one scale: the codes of columns are those of rows, turned.
  template <bool kColumns>
  __device__ void Encode(bool has_rows, ThreadCounts& counts) {
    CodeTally<Element> tally;
#pragma unroll
    for (int i = 0; i < kPatch; i += 4) {
      uint32_t words[8];
      EncodeRows(i, words);
      if (has_rows) WriteRows(i, words);
      if constexpr (kColumns) {
        uint32_t columns[8];
        TurnRows(words, columns);
        WriteColumns(i, columns);
      }
      if (is_plainly_countable_) tally.Add(words, &patch_[i]);
    }
    if (is_plainly_countable_) {
      tally.AddTo(counts, kPatch * kPatch);
    } else {
      CountEach(counts);
    }
  }

  __device__ void EncodeRows(int first, uint32_t (&words)[8]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint2 row = EncodeEight<Element>(patch_[first + i], factor_);
      words[2 * i] = row.x;
      words[2 * i + 1] = row.y;
    }
  }

  __device__ void WriteRows(int first, const uint32_t (&words)[8]) const {
    uint8_t* codes = job_.row_codes + First() + first * job_.columns;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      *reinterpret_cast<uint2*>(codes + i * job_.columns) =
          make_uint2(words[2 * i], words[2 * i + 1]);
    }
  }

  __device__ static void TurnRows(const uint32_t (&words)[8], uint32_t (&columns)[8]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t four[] = {words[half], words[2 + half], words[4 + half], words[6 + half]};
      TransposeBytes(four);
#pragma unroll
      for (int i = 0; i < 4; ++i) columns[4 * half + i] = four[i];
    }
  }

  __device__ void WriteColumns(int first_row, const uint32_t (&columns)[8]) {
    const uint32_t unit = TurnedUnit(Down(), Right());
#pragma unroll
    for (int i = 0; i < kPatch; ++i) {
      uint2& codes = shared_.codes[Right() * kPatch + i][unit];
      (first_row == 0 ? codes.x : codes.y) = columns[i];
    }
  }

  /// A patch with something beyond the largest code, or a NaN: by the definition, from the source.
  __device__ void CountEach(ThreadCounts& counts) const {
#pragma unroll 1
    for (int i = 0; i < kPatch * kPatch; ++i) {
      const float value = LoadElement(job_.source, kFormatId<BFloat16>,
                                      First() + i / kPatch * job_.columns + i % kPatch);
      const float scaled = value * factor_;
      counts.Add(KindOfElement<Element>(ClassOf(value), scaled, EncodeFloat<Element>(scaled),
                                        ElementRounding::kNearestEven));
    }
  }

  /// Through shared memory, so that whole lines of 128 bytes are written.
  __device__ void WriteTurned() {
    __syncthreads();
    constexpr uint32_t kChunk = 16, kChunks = kSide / kChunk;
    const uint32_t chunk = Thread() % kChunks, first = Thread() / kChunks;
    uint8_t* to =
        job_.column_codes + (place_.column() + first) * job_.rows + place_.row() + chunk * kChunk;
#pragma unroll
    for (uint32_t i = 0; i < kSide; i += kThreads / kChunks) {
      const uint32_t unit = TurnedUnit(2 * chunk, (first + i) / kPatch);
      uint4 codes = *reinterpret_cast<const uint4*>(&shared_.codes[first + i][unit & ~1u]);
      if (unit & 1) codes = make_uint4(codes.z, codes.w, codes.x, codes.y);
      *reinterpret_cast<uint4*>(to + i * job_.rows) = codes;
    }
  }

  const TileQuantization& job_;
  const TilePlace place_;
  Shared& shared_;
  uint4 patch_[kPatch];
  float factor_ = 0;  ///< Of the tensor or the tile.
  bool is_plainly_countable_ = true;
};

/// Asked for at a launch: the source, then what the threads share.
constexpr int kCopies = kThreads * kPatch;
constexpr int kSharedBytes = kCopies * int{sizeof(uint4)} + int{sizeof(Shared)};

template <class Element, Mode kMode>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    QuantizeBlocks(const __grid_constant__ TileQuantization job,
                   const __grid_constant__ TileOrder order) {
  extern __shared__ uint4 copies[];
  Shared& shared = *reinterpret_cast<Shared*>(copies + kCopies);
  // A per-tensor scale was made by reading the source: its end is still in the L2.
  const TilePlace place =
      order.At(kMode == Mode::kTensor ? order.count() - 1 - blockIdx.x : blockIdx.x);
  ThreadCounts counts;
  if (!order.IsWhole(place)) {
    if constexpr (kMode == Mode::kTensor) WaitForScale();
    PlainTile<Element, BlockThreads, kSide>(job, place.row(), place.column(), shared.plain)
        .Quantize(counts);
    counts.AddTo(job.counts, shared.counts);
    return;
  }
  BlockTile<Element, kMode> tile(job, place, shared, copies);
  if (!tile.Quantize(counts)) tile.QuantizePlainly(counts);
  counts.AddTo(job.counts, shared.counts);
  if constexpr (kMode == Mode::kTensor) {
    if (job.amax_bits != nullptr && threadIdx.x == kThreads - 1) tile.RaiseTensorAmax();
  }
}

/// fp8_tensor or fp8_block's tiles.
template <class Element>
cudaError_t LaunchBlocks(const TileQuantization& job, const TileOrder& order, cudaStream_t stream) {
  const bool is_tensor = job.scales == ScaleKind::kTensor;
  const auto kernel =
      is_tensor ? &QuantizeBlocks<Element, Mode::kTensor> : &QuantizeBlocks<Element, Mode::kTiles>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute beside_scale = {};
  beside_scale.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  beside_scale.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(order.count());
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = stream;
  config.attrs = &beside_scale;
  config.numAttrs = is_tensor ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, job, order);
}

/// Without a columnwise copy a tensor's shape means nothing to a per-tensor cast: as narrow as a
/// tile is, it has the fewest edges.
TileQuantization Reshaped(TileQuantization job) {
  const int64_t count = job.rows * job.columns;
  if (job.scales == ScaleKind::kTensor && job.column_codes == nullptr && count % kSide == 0) {
    job.rows = count / kSide;
    job.columns = kSide;
  }
  return job;
}

}  // namespace

bool TunedBlocksTake(const TileQuantization& job) {
  const TileQuantization reshaped = Reshaped(job);
  // Vectors of 8 elements and codes along rows, of 16 codes along columns; tiles are counted in 32
  // bits.
  return reshaped.columns % 8 == 0 && (job.column_codes == nullptr || job.rows % 16 == 0) &&
         (reshaped.rows / kSide + 1) * (reshaped.columns / kSide + 1) < int64_t{1} << 31;
}

cudaError_t LaunchTunedBlocks(const TileQuantization& job, cudaStream_t stream) {
  if (job.scales == ScaleKind::kF32 && !job.has_tiles) return LaunchTunedLines(job, stream);
  const TileQuantization reshaped = Reshaped(job);
  const TileOrder order = TileOrder::Of(reshaped.rows, reshaped.columns);
  if (order.count() == 0) return cudaSuccess;
  return job.element == kFormatId<E4M3> ? LaunchBlocks<E4M3>(reshaped, order, stream)
                                        : LaunchBlocks<E5M2>(reshaped, order, stream);
}

}  // namespace quantgate
