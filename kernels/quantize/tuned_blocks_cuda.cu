// fp8_tensor and fp8_block from bf16 at the speed of memory: one read of the source, both copies.
// A block of threads has a tile of 128 x 128 in registers; the columnwise codes are turned in
// shared memory. Tiles at the edges, and those of fp8_block with an infinity or a NaN, are left to
// the definition (tile_parts_cuda.h).
#include <algorithm>

#include "kernels/quantize/code_tally_cuda.h"
#include "kernels/quantize/packed_casts_cuda.h"
#include "kernels/quantize/tile_parts_cuda.h"
#include "kernels/quantize/tuned_tiles_cuda.h"

namespace quantgate {
namespace {

constexpr int kSide = 128;
constexpr int kThreads = 256, kWarps = kThreads / kWarpLanes;
constexpr int kPatch = 8;                // A thread has a patch of 8 x 8.
constexpr int kAcross = kSide / kPatch;  // Patches in a row of the tile.
constexpr uint32_t kInfinityBf16 = 0x7F80;
/// Tiles that follow each other go down this far before they go right, so that the lines of
/// columnwise codes that are written at a time stand next to each other.
constexpr uint32_t kTilesDown = 4;
constexpr int kBlocksPerMultiprocessor = 3;

enum class Mode {
  kTensor,  ///< One scale of the tensor.
  kLines,   ///< Scales of 128 elements.
  kTiles,   ///< Scales of 128 x 128.
};

struct Shared {
  uint4 source[kPatch][kThreads];  ///< Rows of the next tile's patches, each for its thread alone.
  union {
    uint2 codes[kSide][kAcross];  ///< Columnwise: units of 8 codes, see TurnedUnit.
    TileFactors<kSide> plain;
  };
  uint16_t row_amax[kSide], column_amax[kWarps][kSide];  ///< bf16.
  float row_factor[kSide], column_factor[kSide];
  uint32_t warp_amax[kWarps];
  BlockCounts counts;
};

/// Where the unit of patch row `down` of a column of patches `right` stands: a warp that writes 16
/// patches side by side, or reads whole columns, touches every bank once.
__device__ uint32_t TurnedUnit(uint32_t down, uint32_t right) { return down ^ right; }

/// In tiles.
struct TilePlace {
  uint32_t down, right;

  __device__ int64_t row() const { return int64_t{down} * kSide; }
  __device__ int64_t column() const { return int64_t{right} * kSide; }
};

/// The tiles of a job, in bands of kTilesDown rows of tiles.
struct TileOrder {
  uint32_t across = 0, down = 0;
  uint32_t whole_across = 0, whole_down = 0;  ///< Without those at the edges.
  Divisor band;                               ///< Tiles in a band.

  static TileOrder Of(int64_t rows, int64_t columns) {
    TileOrder order;
    order.across = static_cast<uint32_t>((columns + kSide - 1) / kSide);
    order.down = static_cast<uint32_t>((rows + kSide - 1) / kSide);
    order.whole_across = static_cast<uint32_t>(columns / kSide);
    order.whole_down = static_cast<uint32_t>(rows / kSide);
    if (order.count() != 0) order.band = Divisor::Of(kTilesDown * order.across);
    return order;
  }
  __host__ __device__ uint32_t count() const { return across * down; }
  __device__ bool IsWhole(TilePlace place) const {
    return place.down < whole_down && place.right < whole_across;
  }
  __device__ TilePlace At(uint32_t index) const {
    const uint32_t of_band = band.Quotient(index), within = index - of_band * band.value;
    const uint32_t top = of_band * kTilesDown, height = min(kTilesDown, down - top);
    if (height == kTilesDown) return {top + within % kTilesDown, within / kTilesDown};
    return {top + within % height, within / height};
  }
};

/// One whole tile after the other: Prefetch, Take, Survey, perhaps the Prefetch of the next one,
/// Quantize.
template <class Element, Mode kMode>
class BlockTile {
 public:
  __device__ BlockTile(const TileQuantization& job, Shared& shared)
      : job_(job), shared_(shared), columns_(job.columns), thread_(threadIdx.x) {}

  __device__ void Prefetch(const TilePlace& place) {
    const auto* source = static_cast<const uint16_t*>(job_.source) + FirstOf(place);
#pragma unroll
    for (int i = 0; i < kPatch; ++i) {
      CopyAsync(&shared_.source[i][Thread()], source + i * columns_);
    }
  }

  __device__ void Take(const TilePlace& place) {
    place_ = place;
    // What addresses are made of, so that they are made again for each tile: kept from tile to tile
    // they would take registers that the patch needs.
    asm volatile("" : "+r"(thread_), "+l"(columns_));
    WaitForCopies();
#pragma unroll
    for (int i = 0; i < kPatch; ++i) patch_[i] = shared_.source[i][Thread()];
  }

  /// Reads all of the patch, whose place in shared memory is free then.
  __device__ void Survey() {
    if constexpr (kMode == Mode::kLines) {
      WriteRowAmaxes();
      WriteColumnAmaxes();
    } else {
      patch_amax_ = PatchAmax();
    }
  }

  /// Codes that this thread has added to tallies.
  __device__ uint32_t tallied() const { return tallied_; }

  /// False, with nothing written, where the tile is one for the definition.
  __device__ bool Quantize(CodeTally<Element>& tally) {
    if constexpr (kMode == Mode::kTensor) {
      TakeTensorScale();
    } else if constexpr (kMode == Mode::kTiles) {
      if (!MakeTileScale()) return false;
    } else {
      if (!MakeLineScales()) return false;
    }
    if (job_.column_codes == nullptr) {
      Encode<true, false>(tally);
    } else {
      if (job_.row_codes == nullptr) {
        Encode<false, true>(tally);
      } else {
        Encode<true, true>(tally);
      }
      WriteTurned();
    }
    return true;
  }

 private:
  __device__ uint32_t Thread() const { return thread_; }
  __device__ uint32_t Down() const {
    return Thread() / kAcross;
  }  ///< The patch's place in the tile.
  __device__ uint32_t Right() const { return Thread() % kAcross; }
  /// The patch's first element, in the source and in rowwise codes.
  __device__ int64_t FirstOf(const TilePlace& place) const {
    return (place.row() + Down() * kPatch) * columns_ + place.column() + Right() * kPatch;
  }
  __device__ int64_t First() const { return FirstOf(place_); }

  /// NaN where the patch has one.
  __device__ uint32_t PatchAmax() const {
    uint32_t amax = MaxOrNanOfBf16(patch_[0]);
#pragma unroll
    for (int i = 1; i < kPatch; ++i) amax = MaxOrNanOfBf16(amax, MaxOrNanOfBf16(patch_[i]));
    return LargerHalf(amax);
  }

  // ---- fp8_tensor

  __device__ void TakeTensorScale() {
    factor_ = *job_.tensor_scale;
    uint32_t amax = patch_amax_;
    // False for NaN: such a patch is counted element by element.
    is_plainly_countable_ = LowerBf16(amax) * factor_ < __uint_as_float(FirstBeyondBits<Element>());
    if (job_.amax_bits == nullptr) return;
    if (amax > kInfinityBf16) amax = PatchAmaxOfNumbers();
    amax = __reduce_max_sync(0xFFFFFFFF, amax) << 16;
    if (Thread() % kWarpLanes == 0 && amax > __ldcg(job_.amax_bits))
      atomicMax(job_.amax_bits, amax);
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
    const uint32_t of_warp = __reduce_max_sync(0xFFFFFFFF, patch_amax_);
    if (Thread() % kWarpLanes == 0) shared_.warp_amax[Thread() / kWarpLanes] = of_warp;
    __syncthreads();
    uint32_t amax = 0;
    for (const uint32_t other : shared_.warp_amax) amax = max(amax, other);
    __syncthreads();  // The next tile may write its own.
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

  // ---- fp8_block, lines

  /// A thread per row, then a thread per column.
  __device__ bool MakeLineScales() {
    __syncthreads();
    const bool is_row = Thread() < kSide;
    const uint32_t line = Thread() % kSide;
    uint32_t amax = is_row ? shared_.row_amax[line] : 0;
    if (!is_row) {
      for (const auto& of_warp : shared_.column_amax) amax = max(amax, uint32_t{of_warp[line]});
    }
    if (__syncthreads_or(amax >= kInfinityBf16)) return false;
    const float scale = ComputeScale(LowerBf16(amax), MaxFinite<Element>(), job_.scale_options);
    (is_row ? shared_.row_factor : shared_.column_factor)[line] = scale;
    if (is_row) {
      WriteScale(job_.row_scales, place_.row() + line, place_.right, job_.columns, scale);
    } else {
      WriteScale(job_.column_scales, place_.column() + line, place_.down, job_.rows, scale);
    }
    __syncthreads();
    return true;
  }

  /// Over the 16 lanes that have a row, two rows to a word.
  __device__ void WriteRowAmaxes() {
    uint32_t rows[kPatch / 2];
#pragma unroll
    for (int i = 0; i < kPatch / 2; ++i) {
      const uint32_t a = MaxOrNanOfBf16(patch_[2 * i]), b = MaxOrNanOfBf16(patch_[2 * i + 1]);
      rows[i] = MaxOrNanOfBf16(LowerHalves(a, b), UpperHalves(a, b));
#pragma unroll
      for (int lanes = 1; lanes < kAcross; lanes *= 2) {
        rows[i] = MaxOrNanOfBf16(rows[i], __shfl_xor_sync(0xFFFFFFFF, rows[i], lanes));
      }
    }
    if (Right() != 0) return;
    *reinterpret_cast<uint4*>(&shared_.row_amax[Down() * kPatch]) =
        make_uint4(rows[0], rows[1], rows[2], rows[3]);
  }

  /// Over a warp's two rows of patches.
  __device__ void WriteColumnAmaxes() {
    uint4 columns = patch_[0];
#pragma unroll
    for (int i = 1; i < kPatch; ++i) columns = MaxOfFour(columns, patch_[i]);
    columns = MaxOfFour(columns, make_uint4(__shfl_xor_sync(0xFFFFFFFF, columns.x, kAcross),
                                            __shfl_xor_sync(0xFFFFFFFF, columns.y, kAcross),
                                            __shfl_xor_sync(0xFFFFFFFF, columns.z, kAcross),
                                            __shfl_xor_sync(0xFFFFFFFF, columns.w, kAcross)));
    if (Thread() % kWarpLanes >= kAcross) return;
    *reinterpret_cast<uint4*>(&shared_.column_amax[Thread() / kWarpLanes][Right() * kPatch]) =
        columns;
  }

  __device__ static uint4 MaxOfFour(const uint4& a, const uint4& b) {
    return make_uint4(MaxOrNanOfBf16(a.x, b.x), MaxOrNanOfBf16(a.y, b.y), MaxOrNanOfBf16(a.z, b.z),
                      MaxOrNanOfBf16(a.w, b.w));
  }

  // ---- codes

  /// Four rows of the patch at a time.
  template <bool kRows, bool kColumns>
  __device__ void Encode(CodeTally<Element>& tally) {
    // Under one scale no barrier has parted this tile from the codes of the last.
    if (kMode == Mode::kTensor && kColumns) __syncthreads();
    float column_factors[kPatch];
    if constexpr (kMode == Mode::kLines && kColumns) {
#pragma unroll
      for (int i = 0; i < kPatch; ++i) {
        column_factors[i] = shared_.column_factor[Right() * kPatch + i];
      }
    }
#pragma unroll
    for (int i = 0; i < kPatch; i += 4) {
      uint32_t words[8];
      if constexpr (kRows || kMode != Mode::kLines) EncodeRows(i, words);
      if constexpr (kRows) WriteRows(i, words);
      if constexpr (kColumns) {
        uint32_t columns[8];
        if constexpr (kMode == Mode::kLines) {
          EncodeColumns(&patch_[i], column_factors, columns);
        } else {
          TurnRows(words, columns);
        }
        WriteColumns(i, columns);
        if constexpr (!kRows && kMode == Mode::kLines) {
#pragma unroll
          for (int j = 0; j < 8; ++j) words[j] = columns[j];
        }
      }
      if (kMode != Mode::kTensor || is_plainly_countable_) tally.Add(words, &patch_[i]);
    }
    tallied_ += kMode != Mode::kTensor || is_plainly_countable_ ? kPatch * kPatch : 0;
    if (kMode != Mode::kTensor) return;
    if (__any_sync(0xFFFFFFFF, !is_plainly_countable_)) CountEach();
  }

  __device__ float RowFactor(int i) const {
    return kMode == Mode::kLines ? shared_.row_factor[Down() * kPatch + i] : factor_;
  }

  __device__ void EncodeRows(int first, uint32_t (&words)[8]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4& row = patch_[first + i];
      const float factor = RowFactor(first + i);
      words[2 * i] = EncodeFour<Element>(LowerBf16(row.x) * factor, UpperBf16(row.x) * factor,
                                         LowerBf16(row.y) * factor, UpperBf16(row.y) * factor);
      words[2 * i + 1] = EncodeFour<Element>(LowerBf16(row.z) * factor, UpperBf16(row.z) * factor,
                                             LowerBf16(row.w) * factor, UpperBf16(row.w) * factor);
    }
  }

  __device__ void WriteRows(int first, const uint32_t (&words)[8]) const {
    uint8_t* codes = job_.row_codes + First() + first * columns_;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      *reinterpret_cast<uint2*>(codes + i * columns_) = make_uint2(words[2 * i], words[2 * i + 1]);
    }
  }

  /// Under one scale the codes of columns are those of rows.
  __device__ static void TurnRows(const uint32_t (&words)[8], uint32_t (&columns)[8]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t four[] = {words[half], words[2 + half], words[4 + half], words[6 + half]};
      TransposeBytes(four);
#pragma unroll
      for (int i = 0; i < 4; ++i) columns[4 * half + i] = four[i];
    }
  }

  __device__ static void EncodeColumns(const uint4* rows, const float* factors,
                                       uint32_t (&columns)[8]) {
    EncodeTwoColumns(rows[0].x, rows[1].x, rows[2].x, rows[3].x, factors, columns);
    EncodeTwoColumns(rows[0].y, rows[1].y, rows[2].y, rows[3].y, factors + 2, columns + 2);
    EncodeTwoColumns(rows[0].z, rows[1].z, rows[2].z, rows[3].z, factors + 4, columns + 4);
    EncodeTwoColumns(rows[0].w, rows[1].w, rows[2].w, rows[3].w, factors + 6, columns + 6);
  }
  __device__ static void EncodeTwoColumns(uint32_t a, uint32_t b, uint32_t c, uint32_t d,
                                          const float* factors, uint32_t* columns) {
    // So that values are unpacked again: 32 of them kept from the rows would not fit the registers.
    asm("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d));
    columns[0] = EncodeFour<Element>(LowerBf16(a) * factors[0], LowerBf16(b) * factors[0],
                                     LowerBf16(c) * factors[0], LowerBf16(d) * factors[0]);
    columns[1] = EncodeFour<Element>(UpperBf16(a) * factors[1], UpperBf16(b) * factors[1],
                                     UpperBf16(c) * factors[1], UpperBf16(d) * factors[1]);
  }

  __device__ void WriteColumns(int first_row, const uint32_t (&columns)[8]) {
    const uint32_t unit = TurnedUnit(Down(), Right());
#pragma unroll
    for (int i = 0; i < kPatch; ++i) {
      uint2& codes = shared_.codes[Right() * kPatch + i][unit];
      (first_row == 0 ? codes.x : codes.y) = columns[i];
    }
  }

  /// Patches with something beyond the largest code, or a NaN: by the definition, from the source.
  __device__ void CountEach() {
    ThreadCounts counts;
#pragma unroll 1
    for (int i = 0; i < kPatch * kPatch && !is_plainly_countable_; ++i) {
      const float value = LoadElement(job_.source, SourceFormat::kBF16,
                                      First() + i / kPatch * job_.columns + i % kPatch);
      const float scaled = value * factor_;
      counts.Add(KindOfElement<Element>(ClassOf(value), scaled, EncodeFloat<Element>(scaled),
                                        ElementRounding::kNearestEven));
    }
    counts.AddTo(shared_.counts);
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
  Shared& shared_;
  int64_t columns_;
  uint32_t thread_;
  TilePlace place_ = {};
  uint4 patch_[kPatch];
  uint32_t patch_amax_ = 0;
  uint32_t tallied_ = 0;
  float factor_ = 0;
  bool is_plainly_countable_ = true;
};

/// Not inlined: it shall not cost the others registers.
template <class Element>
__device__ __noinline__ void QuantizePlainly(const TileQuantization& job, TilePlace place,
                                             Shared& shared) {
  __syncthreads();  // The last tile's codes have been read.
  ThreadCounts counts;
  PlainTile<Element, BlockThreads, kSide>(job, place.row(), place.column(), shared.plain)
      .Quantize(counts);
  counts.AddTo(shared.counts);
}

template <class Element, Mode kMode>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    QuantizeBlocks(const __grid_constant__ TileQuantization job,
                   const __grid_constant__ TileOrder order) {
  extern __shared__ uint4 memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  shared.counts.Clear();
  CodeTally<Element> tally;
  BlockTile<Element, kMode> tile(job, shared);
  // A per-tensor scale was made by reading the source: its end is still in the L2.
  const auto place_of = [&](uint32_t index) {
    return order.At(kMode == Mode::kTensor ? order.count() - 1 - index : index);
  };
  uint32_t index = blockIdx.x;
  TilePlace place = place_of(index);
  if (order.IsWhole(place)) tile.Prefetch(place);
  while (index < order.count()) {
    const bool is_whole = order.IsWhole(place);
    if (is_whole) {
      tile.Take(place);
      tile.Survey();
    }
    const TilePlace here = place;
    index += gridDim.x;
    if (index < order.count()) {
      place = place_of(index);
      if (order.IsWhole(place)) tile.Prefetch(place);
    }
    if (!is_whole || !tile.Quantize(tally)) QuantizePlainly<Element>(job, here, shared);
  }
  tally.Counts(tile.tallied()).AddTo(shared.counts);
  shared.counts.WriteTo(job.counts);
}

template <class Element>
auto FindKernel(const TileQuantization& job) {
  if (job.scales == TileScales::kTensor) return &QuantizeBlocks<Element, Mode::kTensor>;
  return job.has_tiles ? &QuantizeBlocks<Element, Mode::kTiles>
                       : &QuantizeBlocks<Element, Mode::kLines>;
}

/// Without a columnwise copy a tensor's shape means nothing to a per-tensor cast: as narrow as a
/// tile is, it has the fewest edges.
TileQuantization Reshaped(TileQuantization job) {
  const int64_t count = job.rows * job.columns;
  if (job.scales == TileScales::kTensor && job.column_codes == nullptr && count % kSide == 0) {
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

cudaError_t LaunchTunedBlocks(const TileQuantization& job, int multiprocessors,
                              cudaStream_t stream) {
  const TileQuantization reshaped = Reshaped(job);
  const TileOrder order = TileOrder::Of(reshaped.rows, reshaped.columns);
  if (order.count() == 0) return cudaSuccess;
  const auto kernel =
      job.element == ElementFormat::kE4M3 ? FindKernel<E4M3>(job) : FindKernel<E5M2>(job);
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int{sizeof(Shared)});
  if (error != cudaSuccess) return error;
  const auto resident = static_cast<uint32_t>(multiprocessors * kBlocksPerMultiprocessor);
  kernel<<<std::min(order.count(), resident), kThreads, sizeof(Shared), stream>>>(reshaped, order);
  return cudaGetLastError();
}

}  // namespace quantgate
