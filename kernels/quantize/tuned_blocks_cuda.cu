// fp8_tensor and fp8_block from bf16 at the speed of memory: one read of the source, both copies.
// A block of threads has a tile of 128 x 128 in registers; the columnwise codes are turned in
// shared memory. Tiles at the edges, and those of fp8_block with an infinity or a NaN, are left to
// the definition (tile_parts_cuda.h).
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
constexpr int kBlocksPerMultiprocessor = 4;  // As many tiles fit the registers.

enum class Mode {
  kTensor,  ///< One scale of the tensor.
  kLines,   ///< Scales of 128 elements.
  kTiles,   ///< Scales of 128 x 128.
};

struct Shared {
  union {
    uint2 codes[kSide][kAcross];  ///< Columnwise: units of 8 codes, see TurnedUnit.
    TileFactors<kSide> plain;
  };
  uint16_t column_amax[kWarps][kSide];  ///< bf16.
  float column_factor[kSide];
  uint32_t warp_amax[kWarps];
  WarpCounts<kWarps> counts;
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

/// A whole tile.
template <class Element, Mode kMode>
class BlockTile {
 public:
  __device__ BlockTile(const TileQuantization& job, TilePlace place, Shared& shared)
      : job_(job), place_(place), shared_(shared) {
    const auto* source = static_cast<const uint16_t*>(job.source) + First();
#pragma unroll
    for (int i = 0; i < kPatch; ++i) patch_[i] = LoadOnce(source + i * job.columns);
  }

  /// False, with nothing counted, where the tile is one for the definition.
  __device__ bool Quantize(ThreadCounts& counts) {
    const bool has_rows = job_.row_codes != nullptr, has_columns = job_.column_codes != nullptr;
    if constexpr (kMode == Mode::kLines) {
      CodeTally<Element> tally;
      if (has_columns) WriteColumnAmaxes();
      if (has_rows) EncodeLines(tally);
      if (__syncthreads_or(HasSpecials())) return false;
      if (has_columns) {
        EncodeColumns(!has_rows, tally);
        WriteTurned();
      }
      tally.AddTo(counts, kPatch * kPatch);
    } else {
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
    }
    return true;
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
    factor_ = *job_.tensor_scale;
    uint32_t amax = PatchAmax();
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

  // ---- fp8_block, lines

  /// Rowwise codes before anyone has to wait: a warp has whole rows.
  __device__ void EncodeLines(CodeTally<Element>& tally) {
    const float scale = ComputeScale(RowAmax(), MaxFinite<Element>(), job_.scale_options);
    if (Right() < kPatch) {
      WriteScale(job_.row_scales, place_.row() + Down() * kPatch + Right(), place_.right,
                 job_.columns, scale);
    }
    float factors[kPatch];
#pragma unroll
    for (int i = 0; i < kPatch; ++i) factors[i] = __shfl_sync(0xFFFFFFFF, scale, i, kAcross);
#pragma unroll
    for (int i = 0; i < kPatch; i += 4) {
      uint32_t words[8];
      EncodeRows(i, &factors[i], words);
      WriteRows(i, words);
      tally.Add(words, &patch_[i]);
    }
  }

  /// Of row Right() % 8 of the patch, over the 16 lanes that have it, two rows to a word.
  __device__ float RowAmax() {
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
    const uint32_t lower = Right() & 2 ? rows[1] : rows[0], upper = Right() & 2 ? rows[3] : rows[2];
    const uint32_t pair = Right() & 4 ? upper : lower;
    return Right() & 1 ? UpperBf16(pair) : LowerBf16(pair);
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

  __device__ bool HasSpecials() const { return PatchAmax() >= kInfinityBf16; }

  /// A thread per column makes its scale.
  __device__ void MakeColumnScales() {
    if (Thread() < kSide) {
      uint32_t amax = 0;
      for (const auto& of_warp : shared_.column_amax) amax = max(amax, uint32_t{of_warp[Thread()]});
      const float scale = ComputeScale(LowerBf16(amax), MaxFinite<Element>(), job_.scale_options);
      shared_.column_factor[Thread()] = scale;
      WriteScale(job_.column_scales, place_.column() + Thread(), place_.down, job_.rows, scale);
    }
    __syncthreads();
  }

  __device__ void EncodeColumns(bool is_counted, CodeTally<Element>& tally) {
    MakeColumnScales();
    float factors[kPatch];
#pragma unroll
    for (int i = 0; i < kPatch; ++i) factors[i] = shared_.column_factor[Right() * kPatch + i];
#pragma unroll
    for (int i = 0; i < kPatch; i += 4) {
#pragma unroll
      for (int j = 0; j < 4; ++j) Forget(patch_[i + j]);
      uint32_t columns[8];
      EncodeFourRows(&patch_[i], factors, columns);
      WriteColumns(i, columns);
      if (is_counted) tally.Add(columns, &patch_[i]);
    }
  }

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

  __device__ static uint4 MaxOfFour(const uint4& a, const uint4& b) {
    return make_uint4(MaxOrNanOfBf16(a.x, b.x), MaxOrNanOfBf16(a.y, b.y), MaxOrNanOfBf16(a.z, b.z),
                      MaxOrNanOfBf16(a.w, b.w));
  }

  // ---- codes

  /// Under one scale: the codes of columns are those of rows, turned.
  template <bool kColumns>
  __device__ void Encode(bool has_rows, ThreadCounts& counts) {
    CodeTally<Element> tally;
    const float factors[] = {factor_, factor_, factor_, factor_};
#pragma unroll
    for (int i = 0; i < kPatch; i += 4) {
      uint32_t words[8];
      EncodeRows(i, factors, words);
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

  __device__ void EncodeRows(int first, const float* factors, uint32_t (&words)[8]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4& row = patch_[first + i];
      const float factor = factors[i];
      words[2 * i] = EncodeFour<Element>(LowerBf16(row.x) * factor, UpperBf16(row.x) * factor,
                                         LowerBf16(row.y) * factor, UpperBf16(row.y) * factor);
      words[2 * i + 1] = EncodeFour<Element>(LowerBf16(row.z) * factor, UpperBf16(row.z) * factor,
                                             LowerBf16(row.w) * factor, UpperBf16(row.w) * factor);
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
      const float value = LoadElement(job_.source, SourceFormat::kBF16,
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

template <class Element, Mode kMode>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    QuantizeBlocks(const __grid_constant__ TileQuantization job,
                   const __grid_constant__ TileOrder order) {
  __shared__ Shared shared;
  // A per-tensor scale was made by reading the source: its end is still in the L2.
  const TilePlace place =
      order.At(kMode == Mode::kTensor ? order.count() - 1 - blockIdx.x : blockIdx.x);
  ThreadCounts counts;
  bool is_done = false;
  if (order.IsWhole(place)) {
    is_done = BlockTile<Element, kMode>(job, place, shared).Quantize(counts);
  }
  if (!is_done) {
    PlainTile<Element, BlockThreads, kSide>(job, place.row(), place.column(), shared.plain)
        .Quantize(counts);
  }
  counts.AddTo(job.counts, shared.counts);
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

cudaError_t LaunchTunedBlocks(const TileQuantization& job, cudaStream_t stream) {
  const TileQuantization reshaped = Reshaped(job);
  const TileOrder order = TileOrder::Of(reshaped.rows, reshaped.columns);
  if (order.count() == 0) return cudaSuccess;
  const auto kernel =
      job.element == ElementFormat::kE4M3 ? FindKernel<E4M3>(job) : FindKernel<E5M2>(job);
  kernel<<<order.count(), kThreads, 0, stream>>>(reshaped, order);
  return cudaGetLastError();
}

}  // namespace quantgate
