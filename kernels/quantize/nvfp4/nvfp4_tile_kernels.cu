// The second pass of the tuned NVFP4 quantizer: a block of threads copies a tile of 128 x 128 to
// shared memory, each warp quantizes 16 of its rows and then 16 of its columns, a lane a block of
// 16 elements at a time (docs/quantizers.md section 6).
#include <algorithm>

#include "kernels/quantize/nvfp4/nvfp4_line_block_cuda.h"
#include "kernels/quantize/nvfp4/nvfp4_steps_cuda.h"
#include "kernels/quantize/nvfp4/nvfp4_tile_kernels.h"

namespace quantgate {
namespace {

namespace steps = nvfp4_steps;
using nvfp4_blocks::kKinds;
using nvfp4_blocks::kLength;

constexpr int kThreads = 256, kWarps = 8;
constexpr int kSide = 128;                   // Of a tile.
constexpr int kBlocks = kSide / kLength;     // Of a line in a tile: 8.
constexpr int kRowChunks = kSide * 2 / 16;   // Of 16 bytes.
constexpr int kRounds = kBlocks / 2;         // The lanes of a warp take 16 lines by 2 blocks.
constexpr int kLineBytes = kBlocks * 8 + 8;  // Codes of a line, padded against bank conflicts.
constexpr uint32_t kBandTiles = 4;           // Tiles one below the other that are written together.

enum class Directions { kRowwise, kColumnwise, kBoth };
enum class Blocks { kLines, kTurned, kTiles };  ///< kTurned: columns are transformed.

struct WarpScratch {
  uint4 turned[2][kLength][2];  ///< Blocks [half][line] of a round of columns.
  uint8_t codes[kLength][kLineBytes];
};

struct Shared {
  uint4 source[kSide][kRowChunks];  ///< Chunk c of row r at Place(r, c).
  WarpScratch warps[kWarps];
  uint4 transform[32];  ///< This and the next two as Nvfp4Tables.
  uint2 facts[2];
  uint32_t factors[2][kNvfp4TableCodes];
  int kinds[kKinds];
  uint64_t rows_there;  ///< An mbarrier: all warps have their rows.
};

/// What the kernel is launched with.
struct TileJob {
  Nvfp4TileParameters parameters;
  steps::RoundKeys keys;
};

/// A chunk of 16 bytes, against bank conflicts of columns of chunks.
__device__ int Place(int row, int chunk) { return chunk ^ (row & 7); }

/// An address in shared memory. Addresses are kept in registers this way: left alone, the compiler
/// computes them anew in every round of a loop.
using Address = uint32_t;
__device__ Address AddressOf(const void* shared) {
  auto address = static_cast<Address>(__cvta_generic_to_shared(shared));
  asm volatile("" : "+r"(address));
  return address;
}
template <typename T>
__device__ T* At(Address address) {
  return static_cast<T*>(__cvta_shared_to_generic(address));
}

__device__ void CopyChunk(Address to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}

/// Where a tile stands in the source.
struct Tile {
  uint32_t row, column;
  int rows, columns;  ///< Inside the source, multiples of 16.
};

/// Bands of kBandTiles high, so that lines of columnwise codes are written together; from the end,
/// which the first pass has left in the L2 cache.
__device__ Tile FindTile(const Nvfp4Parameters& source) {
  const uint32_t band = gridDim.y - 1 - blockIdx.y, place = gridDim.x - 1 - blockIdx.x;
  const uint32_t row = (band * kBandTiles + place % kBandTiles) * kSide;
  const uint32_t column = place / kBandTiles * kSide;
  return {row, column, min(kSide, static_cast<int>(source.rows) - static_cast<int>(row)),
          min(kSide, static_cast<int>(source.columns) - static_cast<int>(column))};
}

/// Starts copies of the rows of this warp. What lies outside the source is zeroed.
__device__ void CopyRows(const Nvfp4Parameters& source, const Tile& tile, Shared& shared) {
  constexpr int kStep = 32 / kRowChunks;  // Rows.
  constexpr int kStepBytes = kStep * sizeof(shared.source[0]);
  const int lane = threadIdx.x % 32, chunk = lane % kRowChunks;
  const int row = static_cast<int>(threadIdx.x) / 32 * kLength + lane / kRowChunks;
  const auto* from = static_cast<const uint16_t*>(source.source) +
                     int64_t{tile.row + row} * source.columns + tile.column + chunk * 8;
  const Address to = AddressOf(&shared.source[row][Place(row, chunk)]);
  if (tile.rows == kSide && tile.columns == kSide) {
#pragma unroll
    for (int i = 0; i < kLength / kStep; ++i) {
      // Place(row + 2 i, chunk) is Place(row, chunk) but for the bits of 2 i.
      CopyChunk((to ^ (i * kStep % 8 * 16)) + i * kStepBytes, from, 16);
      from += kStep * source.columns;
    }
  } else {
#pragma unroll 1
    for (int i = 0; i < kLength / kStep; ++i) {
      const bool is_inside = row + i * kStep < tile.rows && chunk * 8 < tile.columns;
      CopyChunk((to ^ (i * kStep % 8 * 16)) + i * kStepBytes, is_inside ? from : source.source,
                is_inside ? 16 : 0);
      from += kStep * source.columns;
    }
  }
}

/// Waits for this warp's rows, and tells the others of them.
__device__ void WaitForRows(Shared& shared) {
  asm volatile("cp.async.wait_all;" ::: "memory");
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(AddressOf(&shared.rows_there))
               : "memory");
  __syncwarp();
}

/// Waits for the rows of all warps. None waits for what the others make of theirs.
__device__ void WaitForAllRows(Shared& shared) {
  const Address barrier = AddressOf(&shared.rows_there);
  uint32_t is_done = 0;
  while (is_done == 0) {
    asm volatile(
        "{.reg .pred done; mbarrier.try_wait.parity.shared.b64 done, [%1], 0; "
        "selp.u32 %0, 1, 0, done;}"
        : "=r"(is_done)
        : "r"(barrier)
        : "memory");
  }
}

// ---- one block

struct BlockCodes {
  uint2 codes;
  uint32_t scale;
};

/// A block in shared memory: its halves.
struct BlockPlace {
  Address low, high;

  __device__ void Load(uint32_t (&words)[8]) const {
    LoadHalf(low, words);
    LoadHalf(high, words + 4);
  }
  __device__ uint16_t Element(int i) const { return At<const uint16_t>(i < 8 ? low : high)[i % 8]; }

 private:
  __device__ static void LoadHalf(Address from, uint32_t* words) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(from)
                 : "memory");
  }
};

/// A block with elements that are not finite, or whose factors the table does not have. `amax_bits`
/// is fp32. Adds to `kinds`, where that is not null.
__device__ __noinline__ BlockCodes EncodeSpecial(const Nvfp4Parameters& p, BlockPlace place,
                                                 uint32_t amax_bits, int64_t line, int64_t block,
                                                 int* kinds) {
  nvfp4_blocks::LineBlock<BFloat16> elements = {line, block, {}};
  for (int i = 0; i < kLength; ++i) elements.elements[i] = place.Element(i);
  const auto tensor = MakeNvfp4TensorScale(*p.amax, p.e4m3_max, p.scale_rule);
  const Nvfp4BlockScale scale = MakeNvfp4BlockScale(std::bit_cast<float>(amax_bits), tensor);
  int of_block[kKinds] = {};
  const uint64_t codes = nvfp4_blocks::EncodeBlock(p, elements, scale, of_block);
  if (kinds != nullptr) {
    // The first pass has counted all zeros, and taken them from what is flushed.
    of_block[static_cast<int>(ElementKind::kFlushedToZero)] +=
        of_block[static_cast<int>(ElementKind::kZero)];
    of_block[static_cast<int>(ElementKind::kZero)] = 0;
    for (int k = 0; k < kKinds; ++k) {
      if (of_block[k] != 0) atomicAdd(&kinds[k], of_block[k]);
    }
  }
  return {make_uint2(static_cast<uint32_t>(codes), static_cast<uint32_t>(codes >> 32)), scale.code};
}

/// max |x| of a block as bits of fp32, NaN ignored.
__device__ __noinline__ uint32_t AmaxOfSpecial(BlockPlace place) {
  uint32_t bits = 0;
  for (int i = 0; i < kLength; ++i) {
    bits = max(bits, nvfp4_blocks::MagnitudeBits<BFloat16>(place.Element(i)));
  }
  return bits;
}

/// What a lane needs to encode the blocks of its line.
struct Encoder {
  const Nvfp4Parameters& parameters;
  const steps::RoundKeys& keys;
  int* kinds;            ///< Of the thread block.
  Address factors;       ///< Of the table.
  uint32_t line, block;  ///< The next block in the whole tensor.
  uint2 facts;           ///< As Nvfp4Tables.
  steps::CodeCounts counts = {};
  int blocks = 0;  ///< That `counts` is of.

  __device__ float FactorEighth(uint32_t scale) const {
    float factor;
    asm volatile("ld.shared.f32 %0, [%1];"
                 : "=f"(factor)
                 : "r"(factors + scale * static_cast<uint32_t>(sizeof(factor))));
    return factor;
  }
};

template <bool kStochastic, bool kCounts>
__device__ uint2 EncodeFinite(Encoder& encoder, const uint32_t (&words)[8], float factor) {
  steps::CodeCounts& counts = encoder.counts;
  if constexpr (kStochastic) {
    const StochasticStream& stream = encoder.parameters.stream;
    const PhiloxCounter random =
        steps::Draw({{encoder.block, encoder.line, stream.call_id, stream.usage}}, encoder.keys);
    return {steps::EncodeStochastic8<kCounts>(words, factor, random.word, counts),
            steps::EncodeStochastic8<kCounts>(words + 4, factor, random.word + 2, counts)};
  } else {
    return {steps::EncodeNearest8<kCounts>(words, factor, counts),
            steps::EncodeNearest8<kCounts>(words + 4, factor, counts)};
  }
}

/// The next block of the encoder's line. The lanes of a half warp, which hold the lines of a tile
/// of 16 x 16, call this together.
template <bool kStochastic, bool kTiles, bool kCounts>
__device__ BlockCodes Encode(Encoder& encoder, BlockPlace place) {
  uint32_t words[8];
  place.Load(words);
  const uint32_t magnitude = steps::LargestOfBlock(words);
  const bool is_special = magnitude >= encoder.facts.y;
  uint32_t amax = magnitude << 16;
  if constexpr (kTiles) {
    if (is_special) amax = AmaxOfSpecial(place);
    amax = __reduce_max_sync(0xFFFFu << (threadIdx.x & 16), amax);
  }
  if (is_special) {
    if constexpr (!kTiles) amax = AmaxOfSpecial(place);
    const Nvfp4Parameters& p = encoder.parameters;
    // Offsets are modulo 2^32, as what they are for.
    return EncodeSpecial(p, place, amax, encoder.line - p.line_offset,
                         encoder.block - p.block_offset, kCounts ? encoder.kinds : nullptr);
  }
  const uint32_t scale =
      steps::EncodeE4M3(__uint_as_float(amax) * __uint_as_float(encoder.facts.x));
  if constexpr (kCounts) ++encoder.blocks;
  return {EncodeFinite<kStochastic, kCounts>(encoder, words, encoder.FactorEighth(scale)), scale};
}

// ---- a warp's share: 16 lines of 8 blocks

/// Keeps a number in its register, as AddressOf does.
__device__ int Kept(int number) {
  asm volatile("" : "+r"(number));
  return number;
}

/// Of one direction.
struct Share {
  uint32_t line, block;  ///< The first.
  int blocks;            ///< Inside the tensor, of each line.
  uint32_t stride;       ///< Blocks of a whole line.

  __device__ uint64_t Index(uint32_t i, uint32_t j) const {
    return uint64_t{line + i} * stride + block + j;
  }
};

__device__ Encoder MakeEncoder(const TileJob& job, const Nvfp4Parameters& p, const Share& share,
                               int direction, Shared& shared) {
  const int lane = threadIdx.x % 32;
  Encoder encoder = {p, job.keys, shared.kinds, AddressOf(shared.factors[direction])};
  encoder.line = share.line + static_cast<uint32_t>(p.line_offset) + lane % 16;
  encoder.block = share.block + static_cast<uint32_t>(p.block_offset) + lane / 16 * kRounds;
  asm volatile("" : "+r"(encoder.line), "+r"(encoder.block));
  encoder.facts = shared.facts[direction];
  return encoder;
}

/// What a lane has encoded: codes go to shared memory, scales stay.
class Encoded {
 public:
  __device__ explicit Encoded(const WarpScratch& scratch)
      : codes_(AddressOf(&scratch.codes[threadIdx.x % 16][threadIdx.x % 32 / 16 * kRounds * 8])) {}
  __device__ void Add(const BlockCodes& block) {
    *At<uint2>(codes_) = block.codes;
    codes_ += sizeof(block.codes);
    scales_ = __funnelshift_r(scales_, block.scale, 8);
  }
  /// Byte i of round i, after all rounds.
  __device__ uint32_t scales() const { return scales_; }

 private:
  Address codes_;
  uint32_t scales_ = 0;
};

/// Lane 16 h + i holds the scales of blocks 4 h to 4 h + 3 of line i; codes are in `codes`.
__device__ void StoreShare(const Nvfp4Parameters& p, const Share& share,
                           const uint8_t (&codes)[kLength][kLineBytes], uint32_t scales) {
  __syncwarp();
  const int lane = threadIdx.x % 32, block = lane % 8;
  if (block < share.blocks) {
    const auto* from = reinterpret_cast<const uint64_t*>(&codes[lane / 8][block * 8]);
    auto* to = reinterpret_cast<uint64_t*>(p.codes) + share.Index(lane / 8, block);
#pragma unroll
    for (int i = 0; i < kLength / 4; ++i) {
      *to = from[i * 4 * kLineBytes / 8];
      to += uint64_t{4} * share.stride;
    }
  }
  const int first = lane / 16 * kRounds, rounds = min(share.blocks - first, kRounds);
  uint8_t* scale = p.scales + share.Index(lane % 16, first);
  if (share.stride % 4 == 0 && rounds == kRounds) {
    *reinterpret_cast<uint32_t*>(scale) = scales;
  } else {
#pragma unroll 1
    for (int i = 0; i < rounds; ++i) scale[i] = static_cast<uint8_t>(scales >> (8 * i));
  }
}

template <bool kStochastic, bool kTiles, bool kCounts>
__device__ void QuantizeRows(Encoder& encoder, const Share& share, Shared& shared) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = lane / 16 * kRounds;
  const int row = warp * kLength + lane % 16;
  WarpScratch& scratch = shared.warps[warp];
  Encoded encoded(scratch);
  // Chunks 2 (first + i) and the next lie at Place: the places of one row differ by exclusive ors.
  const Address start = AddressOf(&shared.source[row][Place(row, 2 * first)]);
  const int rounds = Kept(min(share.blocks - first, kRounds));
#pragma unroll 1
  for (int i = 0; i < rounds; ++i) {
    const Address low = start ^ (i * 32);
    encoded.Add(Encode<kStochastic, kTiles, kCounts>(encoder, {low, low ^ 16}));
    ++encoder.block;
  }
  const uint32_t scales = encoded.scales() >> (8 * (kRounds - max(rounds, 1)));
  StoreShare(encoder.parameters, share, scratch.codes, scales);
}

/// Where this lane's row of LoadTurned's matrices begins, for the first block.
__device__ Address TurnedAddress(const Shared& shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row = lane / 16 * 8 + lane % 8, chunk = 2 * warp + lane / 8 % 2;
  return AddressOf(&shared.source[row][Place(row, chunk)]);
}

/// The columns of one warp in 16 rows, a column to each row of operand A.
__device__ void LoadTurned(uint32_t address, uint32_t* groups) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(groups[0]), "=r"(groups[1]), "=r"(groups[2]), "=r"(groups[3])
               : "r"(address));
}

/// The half of a line's block where a chunk of 16 bytes lies, against bank conflicts.
__device__ int TurnedPlace(int line, int chunk) { return chunk ^ (line / 4 & 1); }

/// Where this lane's first words of a transposed block go.
template <bool kHadamard>
__device__ Address WordsAddress(const WarpScratch& scratch) {
  const int lane = threadIdx.x % 32, line = lane / 4, place = lane % 4;
  if constexpr (kHadamard) {
    return AddressOf(&scratch.turned[0][line][TurnedPlace(line, place / 2)]) + place % 2 * 8;
  } else {
    return AddressOf(&scratch.turned[0][line][TurnedPlace(line, 0)]) + place * 4;
  }
}

/// Writes the blocks of sixteen columns from `from`, transformed if wished, to `to`.
template <bool kHadamard>
__device__ void TurnBlocks(Address from, const steps::TileTransform& transform, Address to) {
  constexpr int kEightLines = 8 * 32;
  uint32_t groups[4];
  LoadTurned(from, groups);
  if constexpr (kHadamard) {
    uint32_t transformed[4];
    transform.Apply(groups, transformed);
    *At<uint2>(to) = make_uint2(transformed[0], transformed[1]);
    *At<uint2>(to + kEightLines) = make_uint2(transformed[2], transformed[3]);
  } else {
    *At<uint32_t>(to) = groups[0];
    *At<uint32_t>(to + kEightLines) = groups[1];
    *At<uint32_t>(to ^ 16) = groups[2];
    *At<uint32_t>((to ^ 16) + kEightLines) = groups[3];
  }
}

template <bool kStochastic, Blocks kKind, bool kCounts>
__device__ void QuantizeColumns(Encoder& encoder, const Share& share,
                                const steps::TileTransform& transform, Shared& shared) {
  constexpr bool kHadamard = kKind == Blocks::kTurned, kTiles = kKind == Blocks::kTiles;
  constexpr uint32_t kBlockBytes = kLength * sizeof(shared.source[0]);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = lane / 16 * kRounds;
  const int line = lane % 16;
  WarpScratch& scratch = shared.warps[warp];
  Encoded encoded(scratch);
  const Address low = AddressOf(&scratch.turned[lane / 16][line][TurnedPlace(line, 0)]);
  const Address words = WordsAddress<kHadamard>(scratch);
  const int rounds = Kept(min(share.blocks - first, kRounds));
  Address from = TurnedAddress(shared);
  __syncwarp();
#pragma unroll 1
  for (int i = 0; i < kRounds; ++i) {
    TurnBlocks<kHadamard>(from, transform, words);
    TurnBlocks<kHadamard>(from + kRounds * kBlockBytes, transform,
                          words + sizeof(scratch.turned[0]));
    from += kBlockBytes;
    __syncwarp();
    if (i < rounds) {
      encoded.Add(Encode<kStochastic, kTiles, kCounts>(encoder, {low, low ^ 16}));
      ++encoder.block;
    }
    __syncwarp();
  }
  const uint32_t scales = encoded.scales() >> (8 * (kRounds - max(rounds, 1)));
  StoreShare(encoder.parameters, share, scratch.codes, scales);
}

// ---- counts

/// The sum of eight nibbles.
__device__ int SumOfNibbles(uint32_t nibbles) {
  const uint32_t bytes = (nibbles & 0x0F0F0F0F) + (nibbles >> 4 & 0x0F0F0F0F);
  return static_cast<int>(bytes * 0x01010101 >> 24);
}

/// All lanes of the warp take part.
__device__ void AddCounts(const Encoder& encoder, Shared& shared) {
  const int nonzero = SumOfNibbles(encoder.counts.nonzero);
  const int normal = SumOfNibbles(encoder.counts.normal);
  const int saturated = SumOfNibbles(encoder.counts.saturated);
  // Of a warp none is above 32 * 4 * 16.
  const uint32_t small =
      static_cast<uint32_t>(encoder.blocks * kLength - nonzero) | (nonzero - normal) << 16;
  const uint32_t large = static_cast<uint32_t>(saturated) | (normal - saturated) << 16;
  const uint32_t smalls = __reduce_add_sync(0xFFFFFFFFu, small);
  const uint32_t larges = __reduce_add_sync(0xFFFFFFFFu, large);
  if (threadIdx.x % 32 != 0) return;
  const auto add = [&](ElementKind kind, uint32_t count) {
    // atomicAdd would look for other lanes that add.
    asm volatile(
        "red.shared.add.u32 [%0], %1;" ::"r"(AddressOf(&shared.kinds[static_cast<int>(kind)])),
        "r"(count)
        : "memory");
  };
  add(ElementKind::kFlushedToZero, smalls & 0xFFFF);
  add(ElementKind::kSubnormal, smalls >> 16);
  add(ElementKind::kSaturated, larges & 0xFFFF);
  add(ElementKind::kNormal, larges >> 16);
}

// ---- the kernel

/// Waits for the first pass, and copies its tables.
__device__ void CopyTables(const Nvfp4Tables& tables, Shared& shared) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  (&shared.factors[0][0])[threadIdx.x] = (&tables.factors[0][0])[threadIdx.x];
  if (threadIdx.x < 2) shared.facts[threadIdx.x] = tables.facts[threadIdx.x];
  if (threadIdx.x < 32) shared.transform[threadIdx.x] = tables.transform[threadIdx.x];
  if (threadIdx.x < kKinds) shared.kinds[threadIdx.x] = 0;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(AddressOf(&shared.rows_there)),
                 "r"(kThreads)
                 : "memory");
  }
  __syncthreads();
}

template <bool kStochastic, Blocks kKind, Directions kDirections>
__global__ void __launch_bounds__(kThreads, 4) QuantizeTiles(const __grid_constant__ TileJob job) {
  extern __shared__ uint4 dynamic[];
  Shared& shared = *reinterpret_cast<Shared*>(dynamic);
  const Nvfp4TileParameters& p = job.parameters;
  const Tile tile = FindTile(p.rowwise);
  if (tile.rows <= 0) return;  // Below the last: bands are full.
  CopyRows(p.rowwise, tile, shared);
  CopyTables(*p.tables, shared);
  WaitForRows(shared);
  const int lane = threadIdx.x % 32;
  const int first = static_cast<int>(threadIdx.x) / 32 * kLength;  // Line of this warp.
  if (kDirections != Directions::kColumnwise && first < tile.rows) {
    const Share share = {tile.row + first, tile.column / 16, tile.columns >> 4,
                         static_cast<uint32_t>(p.rowwise.columns) / 16};
    Encoder encoder = MakeEncoder(job, p.rowwise, share, 0, shared);
    QuantizeRows<kStochastic, kKind == Blocks::kTiles, true>(encoder, share, shared);
    AddCounts(encoder, shared);
  }
  if (kDirections != Directions::kRowwise && first < tile.columns) {
    WaitForAllRows(shared);
    constexpr bool kCounts = kDirections == Directions::kColumnwise;
    const Share share = {tile.column + first, tile.row / 16, tile.rows >> 4,
                         static_cast<uint32_t>(p.rowwise.rows) / 16};
    Encoder encoder = MakeEncoder(job, p.columnwise, share, 1, shared);
    const steps::TileTransform transform(&shared.transform[lane]);
    QuantizeColumns<kStochastic, kKind, kCounts>(encoder, share, transform, shared);
    if constexpr (kCounts) AddCounts(encoder, shared);
  }
  __syncthreads();
  if (p.counts != nullptr && threadIdx.x < kKinds && shared.kinds[threadIdx.x] != 0) {
    atomicAdd(p.counts + threadIdx.x, static_cast<unsigned long long>(shared.kinds[threadIdx.x]));
  }
}

template <bool kStochastic, Blocks kKind, Directions kDirections>
cudaError_t Start(const Nvfp4TileParameters& p, cudaStream_t stream) {
  const auto kernel = &QuantizeTiles<kStochastic, kKind, kDirections>;
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(sizeof(Shared)));
  if (error != cudaSuccess) return error;
  const auto tiles_of = [](int64_t elements, int64_t side) { return (elements + side - 1) / side; };
  const TileJob job = {p, steps::MakeRoundKeys(p.rowwise.stream.seed)};
  const dim3 grid(static_cast<unsigned>(kBandTiles * tiles_of(p.rowwise.columns, kSide)),
                  static_cast<unsigned>(tiles_of(p.rowwise.rows, kBandTiles * kSide)));
  // It may take its place on the device while the first pass ends.
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = sizeof(Shared);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, job);
}

template <bool kStochastic, Blocks kKind>
cudaError_t StartKind(const Nvfp4TileParameters& p, cudaStream_t stream) {
  if (p.rowwise.codes == nullptr) {
    return Start<kStochastic, kKind, Directions::kColumnwise>(p, stream);
  }
  if constexpr (kKind != Blocks::kTurned) {
    if (p.columnwise.codes == nullptr) {
      return Start<kStochastic, kKind, Directions::kRowwise>(p, stream);
    }
  }
  return Start<kStochastic, kKind, Directions::kBoth>(p, stream);
}

template <bool kStochastic>
cudaError_t StartRounding(const Nvfp4TileParameters& p, cudaStream_t stream) {
  if (p.rowwise.has_tiles) return StartKind<kStochastic, Blocks::kTiles>(p, stream);
  if (p.columnwise.codes != nullptr && p.columnwise.hadamard) {
    return StartKind<kStochastic, Blocks::kTurned>(p, stream);
  }
  return StartKind<kStochastic, Blocks::kLines>(p, stream);
}

}  // namespace

cudaError_t LaunchNvfp4Tiles(const Nvfp4TileParameters& p, cudaStream_t stream) {
  if (p.rowwise.rounding == ElementRounding::kStochastic) return StartRounding<true>(p, stream);
  return StartRounding<false>(p, stream);
}

}  // namespace quantgate
