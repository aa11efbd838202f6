// fp8_block with a scale for 128 elements of a line, from bf16 at the speed of memory: one read of
// the source, both copies. A block of threads takes tiles of 128 x 128 below each other, each of
// which comes to shared memory while the one before is worked on. There a warp takes 16 of its
// rows, then 16 of its columns, so that a tile needs one barrier. A tile's scales lie in as many
// lines as it has, 4 bytes in each: those of eight tiles next to each other, of a cluster of blocks
// or of one block, are written together. Tiles at the edges, and those with an infinity or a NaN,
// are left to the definition (tile_parts_cuda.h).
#include <algorithm>

#include "kernels/quantize/cluster_cuda.h"
#include "kernels/quantize/code_tally_cuda.h"
#include "kernels/quantize/packed_casts_cuda.h"
#include "kernels/quantize/tile_parts_cuda.h"
#include "kernels/quantize/tuned_tiles_cuda.h"

namespace quantgate {
namespace {

constexpr int kSide = 128;  // Of a tile.
constexpr int kThreads = 256, kWarps = kThreads / kWarpLanes;
constexpr int kPatch = 8;                // A thread has a patch of 8 x 8, of rows and of columns.
constexpr int kAcross = kSide / kPatch;  // Patches in a row of the tile.
constexpr uint32_t kInfinityBf16 = 0x7F80;
constexpr int kBlocksPerMultiprocessor = 3;  // Of which shared memory has room for two tiles each.
/// Tiles of a block of threads whose scales are written together, and blocks of a cluster, at most:
/// they fill whole sectors of memory.
constexpr uint32_t kStripTiles = 8, kClusterBlocks = 8;

struct Shared {
  uint4 source[2][kSide][kAcross];       ///< In chunks of 8 elements, see ChunkPlace.
  float row_scales[kStripTiles][kSide];  ///< What multiplies.
  float column_scales[kStripTiles][kSide];
  TileFactors<kSide> plain;
  WarpCounts<kWarps> counts;
};

/// Where a row has its chunk: eight lanes that read a chunk each, of one row or of two in each of
/// four patches below each other, touch every bank once.
__device__ uint32_t ChunkPlace(uint32_t row, uint32_t chunk) {
  return chunk ^ (row / kPatch * 2 % kAcross);
}

/// In tiles.
struct TilePlace {
  uint32_t down, right;

  __device__ int64_t row() const { return int64_t{down} * kSide; }
  __device__ int64_t column() const { return int64_t{right} * kSide; }
};

/// The strips of a job: clusters by rows, and within a cluster from left to right.
struct StripOrder {
  uint32_t across = 0, down = 0;              ///< Tiles.
  uint32_t whole_across = 0, whole_down = 0;  ///< Without those at the edges.
  uint32_t length = kStripTiles;              ///< Tiles of a strip, at most.
  uint32_t cluster = 1;                       ///< Blocks.
  Divisor blocks_across;

  static StripOrder Of(int64_t rows, int64_t columns) {
    constexpr uint32_t kEnoughBlocks = 2 * 132 * kBlocksPerMultiprocessor;  // Of an H200.
    StripOrder order;
    order.across = static_cast<uint32_t>((columns + kSide - 1) / kSide);
    order.down = static_cast<uint32_t>((rows + kSide - 1) / kSide);
    order.whole_across = static_cast<uint32_t>(columns / kSide);
    order.whole_down = static_cast<uint32_t>(rows / kSide);
    while (order.cluster < kClusterBlocks && order.cluster < order.across) order.cluster *= 2;
    const uint32_t clusters = (order.across + order.cluster - 1) / order.cluster;
    order.blocks_across = Divisor::Of(std::max(1u, clusters * order.cluster));
    while (order.length > 1 && order.count() < kEnoughBlocks) order.length /= 2;
    return order;
  }
  uint32_t count() const { return (down + length - 1) / length * blocks_across.value; }
};

/// Tiles below each other, which a block of threads takes one after the other.
struct Strip {
  TilePlace first;
  uint32_t whole = 0, count = 0;  ///< Tiles, the whole ones first; none to the right of the tensor.

  __device__ Strip(const StripOrder& order, uint32_t block) {
    const uint32_t row = order.blocks_across.Quotient(block);
    first = {row * order.length, block - row * order.blocks_across.value};
    if (first.right >= order.across) return;
    count = min(order.length, order.down - first.down);
    if (first.right >= order.whole_across || first.down >= order.whole_down) return;
    whole = min(order.length, order.whole_down - first.down);
  }
  __device__ TilePlace At(uint32_t number) const { return {first.down + number, first.right}; }
};

/// Keeps one of two words of maxima and gives the other away to the lane at that distance.
__device__ uint32_t MaxOfKept(bool keeps_second, uint32_t first, uint32_t second, int lanes) {
  const uint32_t other = __shfl_xor_sync(0xFFFFFFFF, keeps_second ? first : second, lanes);
  return MaxOrNanOfBf16(keeps_second ? second : first, other);
}

template <class Element>
class LineTiles {
 public:
  __device__ LineTiles(const TileQuantization& job, const Strip& strip, Shared& shared)
      : job_(job), strip_(strip), shared_(shared) {}

  /// The whole tiles of the strip; then their scales are in shared memory. Those left to the
  /// definition are not in `counts`.
  __device__ void Quantize(ThreadCounts& counts) {
    CodeTally<Element> tally, before;
    uint32_t tuned = strip_.whole;
    bool is_special = false;
    if (strip_.whole != 0) Ask(0);
#pragma unroll 1
    for (uint32_t number = 0; number <= strip_.whole; ++number) {
      WaitForCopies();
      // The tile has come, and all are done with the one before.
      if (__syncthreads_or(is_special)) {
        QuantizePlainly(number - 1);
        tally = before;
        --tuned;
      }
      if (number == strip_.whole) break;
      if (number + 1 < strip_.whole) Ask(number + 1);
      before = tally;
      uint32_t largest = 0;
      if (job_.row_codes != nullptr) largest = QuantizeRows(number, tally);
      if (job_.column_codes != nullptr) largest = QuantizeColumns(number, tally);
      is_special = largest >= kInfinityBf16;
    }
    tally.AddTo(counts, tuned * kPatch * kPatch);
  }

 private:
  __device__ static uint32_t Lane() { return threadIdx.x % kWarpLanes; }
  __device__ static uint32_t Warp() { return threadIdx.x / kWarpLanes; }

  /// Has a tile brought to shared memory: a thread copies a chunk of every 16th row.
  __device__ void Ask(uint32_t number) {
    constexpr uint32_t kRows = kThreads / kAcross;
    const TilePlace place = strip_.At(number);
    const uint32_t first = threadIdx.x / kAcross, chunk = threadIdx.x % kAcross;
    const auto* source = static_cast<const uint16_t*>(job_.source) +
                         (place.row() + first) * job_.columns + place.column() + chunk * kPatch;
#pragma unroll
    for (uint32_t i = 0; i < kSide; i += kRows) {
      CopyOnce(&shared_.source[number % 2][first + i][ChunkPlace(first + i, chunk)],
               source + i * job_.columns);
    }
  }

  /// The patch of those rows from the eighth of `down`, in that chunk.
  __device__ void TakePatch(uint32_t number, uint32_t down, uint32_t chunk,
                            uint4 (&patch)[kPatch]) const {
    const uint32_t place = ChunkPlace(down * kPatch, chunk);
#pragma unroll
    for (int i = 0; i < kPatch; ++i) {
      patch[i] = shared_.source[number % 2][down * kPatch + i][place];
    }
  }

  __device__ float ScaleOf(uint32_t pair, bool is_upper) const {
    return ComputeScale(is_upper ? UpperBf16(pair) : LowerBf16(pair), MaxFinite<Element>(),
                        job_.scale_options);
  }

  // ---- rows: a warp has two rows of patches

  /// The largest magnitude seen; a NaN is larger than all.
  __device__ uint32_t QuantizeRows(uint32_t number, CodeTally<Element>& tally) {
    const uint32_t right = Lane() % kAcross, down = 2 * Warp() + Lane() / kAcross;
    uint4 patch[kPatch];
    TakePatch(number, down, right, patch);
    const uint32_t pair = MaxOfRows(patch);
    const float scale = ScaleOf(pair, right & 1);
    if (right < kPatch) shared_.row_scales[number][down * kPatch + right] = scale;
    const TilePlace place = strip_.At(number);
    uint8_t* codes = job_.row_codes + (place.row() + down * kPatch) * job_.columns +
                     place.column() + right * kPatch;
#pragma unroll
    for (int i = 0; i < kPatch; i += 4) {
      uint32_t words[8];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint2 row =
            EncodeEight<Element>(patch[i + j], __shfl_sync(0xFFFFFFFF, scale, i + j, kAcross));
        *reinterpret_cast<uint2*>(codes + (i + j) * job_.columns) = row;
        words[2 * j] = row.x;
        words[2 * j + 1] = row.y;
      }
      tally.Add(words, &patch[i]);
    }
    return LargerHalf(pair);
  }

  /// Of rows (Lane() & 6) and one more, over the 16 lanes that have them.
  __device__ static uint32_t MaxOfRows(const uint4 (&patch)[kPatch]) {
    uint32_t rows[kPatch / 2];
#pragma unroll
    for (int i = 0; i < kPatch / 2; ++i) {
      const uint32_t a = MaxOrNanOfBf16(patch[2 * i]), b = MaxOrNanOfBf16(patch[2 * i + 1]);
      rows[i] = MaxOrNanOfBf16(LowerHalves(a, b), UpperHalves(a, b));
    }
    const bool has_upper = Lane() & 4, has_odd = Lane() & 2;
    const uint32_t even = MaxOfKept(has_upper, rows[0], rows[2], 4);
    const uint32_t odd = MaxOfKept(has_upper, rows[1], rows[3], 4);
    uint32_t pair = MaxOfKept(has_odd, even, odd, 2);
    pair = MaxOrNanOfBf16(pair, __shfl_xor_sync(0xFFFFFFFF, pair, 1));
    return MaxOrNanOfBf16(pair, __shfl_xor_sync(0xFFFFFFFF, pair, 8));
  }

  // ---- columns: a warp has two columns of patches, side by side in the lanes

  __device__ uint32_t QuantizeColumns(uint32_t number, CodeTally<Element>& tally) {
    const uint32_t down = Lane() / 2, right = 2 * Warp() + Lane() % 2;
    uint4 patch[kPatch];
    TakePatch(number, down, right, patch);
    const uint32_t pair = MaxOfColumns(patch);
    const float scale = ScaleOf(pair, Lane() & 8);
    if (Lane() < 16) {
      const uint32_t column = (Lane() & 2) * 2 | (Lane() & 4) / 2 | (Lane() & 8) / 8;
      shared_.column_scales[number][right * kPatch + column] = scale;
    }
    float factors[kPatch];
#pragma unroll
    for (uint32_t i = 0; i < kPatch; ++i) {
      const uint32_t from = (i & 4) / 2 | (i & 2) * 2 | (i & 1) * 8;
      factors[i] = __shfl_sync(0xFFFFFFFF, scale, static_cast<int>(Lane() % 2 | from));
    }
    uint32_t words[2][8];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      EncodeFourRows(&patch[4 * half], factors, words[half]);
      if (job_.row_codes == nullptr) tally.Add(words[half], &patch[4 * half]);
    }
    const TilePlace place = strip_.At(number);
    uint8_t* codes = job_.column_codes + (place.column() + right * kPatch) * job_.rows +
                     place.row() + down * kPatch;
#pragma unroll
    for (int i = 0; i < kPatch; ++i) {
      *reinterpret_cast<uint2*>(codes + i * job_.rows) = make_uint2(words[0][i], words[1][i]);
    }
    return LargerHalf(pair);
  }

  /// Of two columns over the 16 lanes that have them: bits 1 and 2 of the lane say which, from the
  /// upper bit of the number of the pair down.
  __device__ static uint32_t MaxOfColumns(const uint4 (&patch)[kPatch]) {
    uint4 columns = patch[0];
#pragma unroll
    for (int i = 1; i < kPatch; ++i) {
      columns =
          make_uint4(MaxOrNanOfBf16(columns.x, patch[i].x), MaxOrNanOfBf16(columns.y, patch[i].y),
                     MaxOrNanOfBf16(columns.z, patch[i].z), MaxOrNanOfBf16(columns.w, patch[i].w));
    }
    const bool has_upper = Lane() & 2, has_odd = Lane() & 4;
    const uint32_t even = MaxOfKept(has_upper, columns.x, columns.z, 2);
    const uint32_t odd = MaxOfKept(has_upper, columns.y, columns.w, 2);
    uint32_t pair = MaxOfKept(has_odd, even, odd, 4);
    pair = MaxOrNanOfBf16(pair, __shfl_xor_sync(0xFFFFFFFF, pair, 8));
    return MaxOrNanOfBf16(pair, __shfl_xor_sync(0xFFFFFFFF, pair, 16));
  }

  /// A word of four codes for each column.
  __device__ static void EncodeFourRows(const uint4* rows, const float* factors,
                                        uint32_t (&columns)[8]) {
    EncodeTwoColumns(rows[0].x, rows[1].x, rows[2].x, rows[3].x, factors, columns);
    EncodeTwoColumns(rows[0].y, rows[1].y, rows[2].y, rows[3].y, factors + 2, columns + 2);
    EncodeTwoColumns(rows[0].z, rows[1].z, rows[2].z, rows[3].z, factors + 4, columns + 4);
    EncodeTwoColumns(rows[0].w, rows[1].w, rows[2].w, rows[3].w, factors + 6, columns + 6);
  }
  __device__ static void EncodeTwoColumns(uint32_t a, uint32_t b, uint32_t c, uint32_t d,
                                          const float* factors, uint32_t* columns) {
    columns[0] = EncodeFour<Element>(LowerBf16(a) * factors[0], LowerBf16(b) * factors[0],
                                     LowerBf16(c) * factors[0], LowerBf16(d) * factors[0]);
    columns[1] = EncodeFour<Element>(UpperBf16(a) * factors[1], UpperBf16(b) * factors[1],
                                     UpperBf16(c) * factors[1], UpperBf16(d) * factors[1]);
  }

  /// In place of what has been written of the tile.
  __device__ void QuantizePlainly(uint32_t number) {
    const TilePlace place = strip_.At(number);
    ThreadCounts counts;
    PlainTile<Element, BlockThreads, kSide>(job_, place.row(), place.column(), shared_.plain)
        .Quantize(counts);
    counts.AddTo(job_.counts, shared_.counts);
    if (threadIdx.x < kSide) {
      shared_.row_scales[number][threadIdx.x] = __uint_as_float(shared_.plain.row[threadIdx.x]);
      shared_.column_scales[number][threadIdx.x] =
          __uint_as_float(shared_.plain.column[threadIdx.x]);
    }
    __syncthreads();  // The counts are free for other tiles.
  }

  const TileQuantization& job_;
  const Strip& strip_;
  Shared& shared_;
};

/// Those of the strip's whole tiles, which stand next to each other.
__device__ void WriteColumnScales(const TileQuantization& job, const StripOrder& order,
                                  const Strip& strip, const Shared& shared) {
  float* scales =
      static_cast<float*>(job.column_scales) + strip.first.column() * order.down + strip.first.down;
  for (uint32_t i = threadIdx.x; i < kSide * order.length; i += kThreads) {
    const uint32_t line = i / order.length, tile = i % order.length;
    if (tile >= strip.whole) continue;
    scales[int64_t{line} * order.down + tile] = ScaleInverse(shared.column_scales[tile][line]);
  }
}

/// Of a share of the rows, those of all whole tiles in the cluster's strips, which stand next to
/// each other.
__device__ void WriteRowScales(const TileQuantization& job, const StripOrder& order,
                               const Strip& strip, const Shared& shared) {
  const uint32_t blocks = order.cluster, rank = blockIdx.x % blocks;
  const uint32_t left = strip.first.right - rank;
  if (strip.first.down >= order.whole_down) return;
  const uint32_t tiles = min(order.length, order.whole_down - strip.first.down);
  const uint32_t lines = kSide / blocks;
  float* scales = static_cast<float*>(job.row_scales) + strip.first.row() * order.across + left;
  for (uint32_t i = threadIdx.x; i < tiles * kSide; i += kThreads) {
    const uint32_t of_block = i % blocks, at = i / blocks;
    const uint32_t line = rank * lines + at % lines, tile = at / lines;
    if (left + of_block >= order.whole_across) continue;
    const float scale = ReadOfBlock(&shared.row_scales[tile][line], of_block);
    scales[(int64_t{tile} * kSide + line) * order.across + of_block] = ScaleInverse(scale);
  }
}

template <class Element>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    QuantizeLines(const __grid_constant__ TileQuantization job,
                  const __grid_constant__ StripOrder order) {
  extern __shared__ uint4 memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const Strip strip(order, blockIdx.x);
  ThreadCounts counts;
  LineTiles<Element>(job, strip, shared).Quantize(counts);
  AnnounceToCluster();
  for (uint32_t i = strip.whole; i < strip.count; ++i) {
    const TilePlace place = strip.At(i);
    PlainTile<Element, BlockThreads, kSide>(job, place.row(), place.column(), shared.plain)
        .Quantize(counts);
  }
  WaitForCluster();
  if (job.column_codes != nullptr) WriteColumnScales(job, order, strip, shared);
  if (job.row_codes != nullptr) WriteRowScales(job, order, strip, shared);
  AnnounceReads();
  counts.AddTo(job.counts, shared.counts);
  WaitForCluster();  // The others have read this block's scales.
}

template <class Element>
cudaError_t Launch(const TileQuantization& job, const StripOrder& order, cudaStream_t stream) {
  const auto kernel = &QuantizeLines<Element>;
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int{sizeof(Shared)});
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = order.cluster;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(order.count());
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = sizeof(Shared);
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, job, order);
}

}  // namespace

cudaError_t LaunchTunedLines(const TileQuantization& job, cudaStream_t stream) {
  const StripOrder order = StripOrder::Of(job.rows, job.columns);
  if (order.across == 0 || order.down == 0) return cudaSuccess;
  return job.element == ElementFormat::kE4M3 ? Launch<E4M3>(job, order, stream)
                                             : Launch<E5M2>(job, order, stream);
}

}  // namespace quantgate
