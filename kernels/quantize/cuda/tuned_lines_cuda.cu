// fp8_block with a scale for 128 elements of a line, from bf16 at the speed of memory: one read of
// the source, both copies. A block of threads has a tile of 128 x 128: a warp brings 16 rows of it
// to shared memory and takes them, then 16 of its columns. A tile's scales lie in as many lines as
// it has, 4 bytes in each, where a sector of memory is 32: tiles come four below each other before
// they go right, and the L2 keeps scales until the tiles around have filled their sectors. A part
// of a sector that the L2 does not hold yet takes it longer than one that it holds, so it brings
// lines of scales from memory well before their turn. Tiles at the edges, and those with an
// infinity or a NaN, are left to the definition (tile_parts_cuda.h).
#include "kernels/quantize/cuda/code_tally_cuda.h"
#include "kernels/quantize/cuda/packed_casts_cuda.h"
#include "kernels/quantize/cuda/tile_bands_cuda.h"
#include "kernels/quantize/cuda/tile_parts_cuda.h"
#include "kernels/quantize/cuda/tuned_tiles_cuda.h"

namespace quantgate {
namespace {

constexpr int kSide = 128;  // Of a tile.
constexpr int kThreads = 256, kWarps = kThreads / kWarpLanes;
constexpr int kPatch = 8;                // A thread has a patch of 8 x 8, of rows and of columns.
constexpr int kAcross = kSide / kPatch;  // Patches in a row of the tile.
constexpr int kWarpRows = kSide / kWarps;
constexpr uint32_t kDoubledInfinityBf16 = 0xFF00;
constexpr int kBlocksPerMultiprocessor = 4;  // As many as registers allow without spills.
/// Four tiles below each other come together: their column scales fill sectors with those of the
/// next four, and their row scales with the tiles to the right, which come soon after.
using TileOrder = TileBands<kSide, 4>;
using TilePlace = TileOrder::Place;

struct Shared {
  uint4 source[kSide][kAcross];  ///< In chunks of 8 elements, see ChunkPlace.
  TileFactors<kSide> plain;
  WarpCounts<kWarps> counts;
};

/// Where a row has its chunk: eight lanes that read a chunk each, of one row or of two in each of
/// four patches below each other, touch every bank once.
__device__ uint32_t ChunkPlace(uint32_t row, uint32_t chunk) {
  return chunk ^ (row / kPatch * 2 % kAcross);
}

/// The larger of each half and a doubled magnitude. Doubling drops the sign of bf16 and leaves the
/// order, NaN above all.
__device__ uint32_t RaiseDoubled(uint32_t largest, uint32_t pair) {
  return __viaddmax_u16x2(pair, pair, largest);
}

/// Keeps one of two words of maxima and gives the other away to the lane at that distance.
__device__ uint32_t MaxOfKept(bool keeps_second, uint32_t first, uint32_t second, int lanes) {
  const uint32_t other = __shfl_xor_sync(0xFFFFFFFF, keeps_second ? first : second, lanes);
  return __vmaxu2(keeps_second ? second : first, other);
}

/// A scale's inverse, to be kept in the L2 while its sector is not whole: one that goes to memory
/// in parts costs several times its bytes.
__device__ void StoreScaleInverse(float* to, float scale) {
  asm volatile(
      "{ .reg .b64 policy; createpolicy.fractional.L2::evict_last.b64 policy, 1.0; "
      "st.global.L2::cache_hint.f32 [%0], %1, policy; }"
      :
      : "l"(to), "f"(ScaleInverse(scale))
      : "memory");
}

/// Has the L2 bring a line of scales and keep it as StoreScaleInverse asks. What it brings does not
/// matter: all of it is written.
__device__ void BringLine(const float* scales) {
  asm volatile("prefetch.global.L2::evict_last [%0];" ::"l"(scales));
}

/// Behind the tile at `place`: brings the lines of scales of tiles further down, those that begin
/// with the tile kTilesBelow it. Where a row of tiles has a line or more of scales, that is about
/// as far ahead as the tiles that are taken at a time, or further; narrower ones would be late, and
/// gain nothing.
__device__ void BringScales(const TileQuantization& job, const TileOrder& order, TilePlace place) {
  constexpr uint32_t kTilesBelow = 16, kLineScales = 32;
  const uint32_t down = place.down + kTilesBelow, line = threadIdx.x;
  if (order.across < kLineScales || down >= order.whole_down || line >= kSide) return;
  if (job.row_scales != nullptr && place.right % kLineScales == 0) {
    BringLine(static_cast<const float*>(job.row_scales) +
              (int64_t{down} * kSide + line) * order.across + place.right);
  }
  if (job.column_scales != nullptr && down % kLineScales == 0 && place.right < order.whole_across) {
    BringLine(static_cast<const float*>(job.column_scales) + (place.column() + line) * order.down +
              down);
  }
}

/// A whole tile. With kHasRows there are codes by rows, and codes are counted there.
template <class Element, bool kHasRows>
class LineTile {
 public:
  __device__ LineTile(const TileQuantization& job, const TileOrder& order, TilePlace place,
                      Shared& shared)
      : job_(job), order_(order), place_(place), shared_(shared) {}

  /// False, and nothing counted, where the tile is left to the definition.
  __device__ bool Quantize(ThreadCounts& counts) const {
    CodeTally<Element> tally;
    uint32_t largest = 0;
    AskForRows();
    WaitForCopies();
    if constexpr (kHasRows) {
      __syncwarp();  // The warp has its rows, and needs no others yet.
      largest = QuantizeRows(tally);
    }
    __syncthreads();
    if (job_.column_codes != nullptr) largest = QuantizeColumns(tally);
    if (__syncthreads_or(largest >= kDoubledInfinityBf16)) return false;
    tally.AddTo(counts, kPatch * kPatch);
    return true;
  }

 private:
  __device__ static uint32_t Lane() { return threadIdx.x % kWarpLanes; }
  __device__ static uint32_t Warp() { return threadIdx.x / kWarpLanes; }

  /// Has the rows that the warp takes brought to shared memory, two at a time.
  __device__ void AskForRows() const {
    constexpr uint32_t kStep = kWarpLanes / kAcross;
    const uint32_t first = kWarpRows * Warp() + Lane() / kAcross, chunk = Lane() % kAcross;
    const auto* source = static_cast<const uint16_t*>(job_.source) +
                         (place_.row() + first) * job_.columns + place_.column() + chunk * kPatch;
#pragma unroll
    for (uint32_t i = 0; i < kWarpRows; i += kStep) {
      CopyOnce(&shared_.source[first + i][ChunkPlace(first + i, chunk)], source);
      source += kStep * job_.columns;
    }
  }

  /// The patch of those rows from the eighth of `down`, in that chunk.
  __device__ void TakePatch(uint32_t down, uint32_t chunk, uint4 (&patch)[kPatch]) const {
    const uint32_t place = ChunkPlace(down * kPatch, chunk);
#pragma unroll
    for (int i = 0; i < kPatch; ++i) patch[i] = shared_.source[down * kPatch + i][place];
  }

  __device__ float ScaleOf(uint32_t doubled, bool is_upper) const {
    const float amax = __uint_as_float((is_upper ? doubled & 0xFFFF0000 : doubled << 16) >> 1);
    return ComputeScale(amax, MaxFinite<Element>(), job_.scale_options);
  }

  // ---- rows: a warp has two rows of patches

  /// The largest doubled magnitude seen.
  __device__ uint32_t QuantizeRows(CodeTally<Element>& tally) const {
    const uint32_t right = Lane() % kAcross, down = 2 * Warp() + Lane() / kAcross;
    uint4 patch[kPatch];
    TakePatch(down, right, patch);
    const uint32_t pair = MaxOfRows(patch);
    const float scale = ScaleOf(pair, right & 1);
    const int64_t row = place_.row() + down * kPatch;
    if (right < kPatch) {
      StoreScaleInverse(
          static_cast<float*>(job_.row_scales) + (row + right) * order_.across + place_.right,
          scale);
    }
    uint8_t* codes = job_.row_codes + row * job_.columns + place_.column() + right * kPatch;
#pragma unroll
    for (int i = 0; i < kPatch; i += 4) {
      uint32_t words[8];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint2 of_row =
            EncodeEight<Element>(patch[i + j], __shfl_sync(0xFFFFFFFF, scale, i + j, kAcross));
        *reinterpret_cast<uint2*>(codes) = of_row;
        codes += job_.columns;
        words[2 * j] = of_row.x;
        words[2 * j + 1] = of_row.y;
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
      const uint32_t a = MaxOfChunk(patch[2 * i]), b = MaxOfChunk(patch[2 * i + 1]);
      rows[i] = __vmaxu2(LowerHalves(a, b), UpperHalves(a, b));
    }
    const bool has_upper = Lane() & 4, has_odd = Lane() & 2;
    const uint32_t even = MaxOfKept(has_upper, rows[0], rows[2], 4);
    const uint32_t odd = MaxOfKept(has_upper, rows[1], rows[3], 4);
    uint32_t pair = MaxOfKept(has_odd, even, odd, 2);
    pair = __vmaxu2(pair, __shfl_xor_sync(0xFFFFFFFF, pair, 1));
    return __vmaxu2(pair, __shfl_xor_sync(0xFFFFFFFF, pair, 8));
  }
  __device__ static uint32_t MaxOfChunk(const uint4& four) {
    return RaiseDoubled(RaiseDoubled(RaiseDoubled(RaiseDoubled(0, four.x), four.y), four.z),
                        four.w);
  }

  // ---- columns: a warp has two columns of patches, side by side in the lanes

  __device__ uint32_t QuantizeColumns(CodeTally<Element>& tally) const {
    const uint32_t down = Lane() / 2, right = 2 * Warp() + Lane() % 2;
    uint4 patch[kPatch];
    TakePatch(down, right, patch);
    const uint32_t pair = MaxOfColumns(patch);
    const float scale = ScaleOf(pair, Lane() & 8);
    const int64_t first = place_.column() + right * kPatch;
    if (Lane() < 16) {
      const uint32_t column = (Lane() & 2) * 2 | (Lane() & 4) / 2 | (Lane() & 8) / 8;
      StoreScaleInverse(
          static_cast<float*>(job_.column_scales) + (first + column) * order_.down + place_.down,
          scale);
    }
    uint8_t* codes = job_.column_codes + first * job_.rows + place_.row() + down * kPatch;
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      uint32_t words[8];
      // Two columns at a time: few factors and codes are in registers.
#pragma unroll
      for (uint32_t pair_of_half = 0; pair_of_half < 2; ++pair_of_half) {
        const uint32_t from = Lane() % 2 | half * 2 | pair_of_half * 4;
        uint32_t* of_pair = &words[4 * pair_of_half];
        EncodeTwoColumns(patch, 2 * half + pair_of_half,
                         __shfl_sync(0xFFFFFFFF, scale, static_cast<int>(from)),
                         __shfl_sync(0xFFFFFFFF, scale, static_cast<int>(from | 8)), of_pair);
        *reinterpret_cast<uint2*>(codes) = make_uint2(of_pair[0], of_pair[1]);
        codes += job_.rows;
        *reinterpret_cast<uint2*>(codes) = make_uint2(of_pair[2], of_pair[3]);
        codes += job_.rows;
      }
      if constexpr (!kHasRows) Count(words, patch, half, tally);
    }
    return LargerHalf(pair);
  }

  /// Of two columns over the 16 lanes that have them: bits 1 and 2 of the lane say which, from the
  /// upper bit of the number of the pair down.
  __device__ static uint32_t MaxOfColumns(const uint4 (&patch)[kPatch]) {
    uint4 columns = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (const uint4& row : patch) {
      columns = make_uint4(RaiseDoubled(columns.x, row.x), RaiseDoubled(columns.y, row.y),
                           RaiseDoubled(columns.z, row.z), RaiseDoubled(columns.w, row.w));
    }
    const bool has_upper = Lane() & 2, has_odd = Lane() & 4;
    const uint32_t even = MaxOfKept(has_upper, columns.x, columns.z, 2);
    const uint32_t odd = MaxOfKept(has_upper, columns.y, columns.w, 2);
    uint32_t pair = MaxOfKept(has_odd, even, odd, 4);
    pair = __vmaxu2(pair, __shfl_xor_sync(0xFFFFFFFF, pair, 8));
    return __vmaxu2(pair, __shfl_xor_sync(0xFFFFFFFF, pair, 16));
  }

  /// Pair `pair` of every chunk of the patch: two words of codes for its first column, then two for
  /// the other.
  __device__ static void EncodeTwoColumns(const uint4 (&patch)[kPatch], uint32_t pair, float first,
                                          float second, uint32_t* words) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4* rows = &patch[4 * i];
      const uint32_t a = PairOf(rows[0], pair), b = PairOf(rows[1], pair);
      const uint32_t c = PairOf(rows[2], pair), d = PairOf(rows[3], pair);
      words[i] = EncodeFour<Element>(LowerBf16(a) * first, LowerBf16(b) * first,
                                     LowerBf16(c) * first, LowerBf16(d) * first);
      words[2 + i] = EncodeFour<Element>(UpperBf16(a) * second, UpperBf16(b) * second,
                                         UpperBf16(c) * second, UpperBf16(d) * second);
    }
  }
  __device__ static uint32_t PairOf(const uint4& chunk, uint32_t pair) {
    return pair == 0 ? chunk.x : pair == 1 ? chunk.y : pair == 2 ? chunk.z : chunk.w;
  }

  /// The codes of the left or the right half of a patch.
  __device__ static void Count(const uint32_t (&words)[8], const uint4 (&patch)[kPatch],
                               uint32_t half, CodeTally<Element>& tally) {
    uint4 sources[kPatch / 2];
#pragma unroll
    for (int i = 0; i < kPatch / 2; ++i) {
      const uint4 &a = patch[2 * i], &b = patch[2 * i + 1];
      sources[i] = half == 0 ? make_uint4(a.x, a.y, b.x, b.y) : make_uint4(a.z, a.w, b.z, b.w);
    }
    tally.Add(words, sources);
  }

  const TileQuantization& job_;
  const TileOrder& order_;
  const TilePlace place_;
  Shared& shared_;
};

template <class Element, bool kHasRows>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    QuantizeLines(const __grid_constant__ TileQuantization job,
                  const __grid_constant__ TileOrder order) {
  __shared__ Shared shared;
  const TilePlace place = order.At(blockIdx.x);
  ThreadCounts counts;
  const bool is_done = order.IsWhole(place) &&
                       LineTile<Element, kHasRows>(job, order, place, shared).Quantize(counts);
  if (!is_done) {
    PlainTile<Element, BlockThreads, kSide>(job, place.row(), place.column(), shared.plain)
        .Quantize(counts);
  }
  counts.AddTo(job.counts, shared.counts);
  BringScales(job, order, place);
}

template <class Element>
cudaError_t Launch(const TileQuantization& job, const TileOrder& order, cudaStream_t stream) {
  const auto kernel =
      job.row_codes != nullptr ? &QuantizeLines<Element, true> : &QuantizeLines<Element, false>;
  kernel<<<order.count(), kThreads, 0, stream>>>(job, order);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchTunedLines(const TileQuantization& job, cudaStream_t stream) {
  const TileOrder order = TileOrder::Of(job.rows, job.columns);
  if (order.count() == 0) return cudaSuccess;
  return job.element == kFormatId<E4M3> ? Launch<E4M3>(job, order, stream)
                                        : Launch<E5M2>(job, order, stream);
}

}  // namespace quantgate
