// The first pass of the tuned NVFP4 quantizer: the largest magnitudes of the source and of its
// Hadamard transform, and how many elements are zero (docs/quantizers.md sections 1.5 and 6.4).
#include <algorithm>

#include "kernels/numerics/nvfp4.h"
#include "kernels/quantize/element_kind.h"
#include "kernels/quantize/nvfp4/nvfp4_steps_cuda.h"
#include "kernels/quantize/nvfp4/nvfp4_tile_kernels.h"

namespace quantgate {
namespace {

namespace steps = nvfp4_steps;

constexpr int kThreads = 256;
constexpr int kBandRows = 16, kBandColumns = 64;  // What a warp takes at a time.

/// What one lane has seen.
struct Survey {
  uint32_t amax = 0;  ///< Magnitudes of two bf16, NaN ignored.
  float transformed_amax = 0.0f;
  uint32_t zeros = 0;  ///< Two bf16 counts.
};

/// The larger of magnitudes, NaN ignored.
__device__ uint32_t LargerNumbers(uint32_t a, uint32_t b) {
  uint32_t larger;
  asm("max.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
}

/// A lane's part of a band: eight columns of rows 2t, 2t + 1, 2t + 8 and 2t + 9.
struct BandPart {
  uint4 rows[4];
};

__device__ BandPart LoadPart(const uint16_t* source, int64_t columns, bool is_inside) {
  BandPart part = {};
  if (!is_inside) return part;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = i / 2 * 8 + i % 2;
    part.rows[i] = *reinterpret_cast<const uint4*>(source + row * columns);
  }
  return part;
}

/// Pairs of rows of one column, as operand B wants them; the transform's left factor is A. Which
/// column a lane's is does not matter to a maximum.
template <bool kCountsTransformed>
__device__ void SurveyTransform(const uint32_t (&words)[4][4], const uint32_t* signs,
                                Survey& survey) {
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    const uint32_t pick = c % 2 == 0 ? 0x5410 : 0x7632;
    const uint32_t b[2] = {__byte_perm(words[0][c / 2], words[1][c / 2], pick),
                           __byte_perm(words[2][c / 2], words[3][c / 2], pick)};
    float d[4];
    steps::MultiplyTile(signs, b, d);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      survey.transformed_amax = fmaxf(survey.transformed_amax, fabsf(d[i]));
    }
    if constexpr (kCountsTransformed) {
      survey.zeros = steps::CountZeros(steps::PackBF16(d[0], d[1]), survey.zeros);
      survey.zeros = steps::CountZeros(steps::PackBF16(d[2], d[3]), survey.zeros);
    }
  }
}

template <bool kTransforms, bool kCountsTransformed>
__device__ void SurveyPart(const BandPart& part, const uint32_t* signs, Survey& survey) {
  uint32_t words[4][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words[i][0] = part.rows[i].x;
    words[i][1] = part.rows[i].y;
    words[i][2] = part.rows[i].z;
    words[i][3] = part.rows[i].w;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      survey.amax = LargerNumbers(survey.amax, words[i][j]);
      if constexpr (!kCountsTransformed)
        survey.zeros = steps::CountZeros(words[i][j], survey.zeros);
    }
  }
  if constexpr (kTransforms) SurveyTransform<kCountsTransformed>(words, signs, survey);
}

/// A of the transform: rows are outputs.
__device__ void LoadSigns(uint32_t* signs) {
  const int j = threadIdx.x % 32 / 4, i = threadIdx.x % 4 * 2;
  signs[0] = steps::HadamardPair(i, j);
  signs[1] = steps::HadamardPair(i, j + 8);
  signs[2] = steps::HadamardPair(i + 8, j);
  signs[3] = steps::HadamardPair(i + 8, j + 8);
}

/// NaN ignored: a half of LargerNumbers is a NaN where all it has seen are.
__device__ uint32_t NumberBits(uint32_t magnitude) {
  return magnitude > steps::kInfinityBF16 ? 0 : magnitude << 16;
}

// ---- tables

/// The factors are kept as eighths, which for smaller ones would not be exact.
constexpr float kSmallestEncode = 0x1p-100f;

/// What to do with the amax of each direction.
struct Amaxes {
  float* amax[2];  ///< Null: the direction is not wanted.
  bool finds[2];   ///< Written, from Nvfp4Tables::amax_bits; read otherwise.
};

/// By a whole block of threads: half of them for each direction.
__device__ void FillTables(const Amaxes& amaxes, Nvfp4Tables* tables) {
  static_assert(kThreads == 2 * kNvfp4TableCodes);
  if (threadIdx.x < 32) tables->transform[threadIdx.x] = steps::MakeTransform(threadIdx.x);
  const int direction = threadIdx.x / kNvfp4TableCodes, code = threadIdx.x % kNvfp4TableCodes;
  float* amax = amaxes.amax[direction];
  if (amax == nullptr) {
    tables->factors[direction][code] = 0;  // Copied, not used.
    if (code == 0) tables->facts[direction] = make_uint2(0, 0);
    return;
  }
  float value;
  if (amaxes.finds[direction]) {
    value = __uint_as_float(__ldcg(&tables->amax_bits[direction]));
    if (code == 0) *amax = value;
  } else {
    value = *amax;
  }
  const auto tensor = MakeNvfp4TensorScale(value, 448, ScaleRule::kTwoLevel);
  if (code == kNvfp4TableCodes - 1) {
    const bool is_exact = tensor.encode >= kSmallestEncode;
    tables->facts[direction] =
        make_uint2(__float_as_uint(tensor.encode_sixth), is_exact ? steps::kInfinityBF16 : 0);
  }
  const float decoded = DecodeFloat<E4M3>(static_cast<uint8_t>(code));
  const float factor = BoundedReciprocal(decoded * tensor.decode);
  tables->factors[direction][code] = __float_as_uint(factor * 0.125f);
}

__global__ void __launch_bounds__(kThreads) FillGiven(const Amaxes amaxes, Nvfp4Tables* tables) {
  FillTables(amaxes, tables);
}

// ---- the survey

/// All threads of the block take part.
template <bool kTransforms>
__device__ void Merge(const Survey& survey, int zeros, unsigned long long* counts,
                      Nvfp4Tables* tables) {
  constexpr uint32_t kAll = 0xFFFFFFFF;
  const uint32_t amax = __reduce_max_sync(
      kAll, max(NumberBits(survey.amax & 0x7FFF), NumberBits(survey.amax >> 16 & 0x7FFF)));
  const uint32_t transformed = __reduce_max_sync(kAll, __float_as_uint(survey.transformed_amax));
  zeros = __reduce_add_sync(kAll, zeros);
  __shared__ uint32_t of_block[3];
  if (threadIdx.x < 3) of_block[threadIdx.x] = 0;
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    atomicMax(&of_block[0], amax);
    atomicMax(&of_block[1], transformed);
    atomicAdd(&of_block[2], static_cast<uint32_t>(zeros));
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  // Rounding keeps the order, so the largest output rounds to the largest.
  const uint32_t rounded = EncodeFloat<BFloat16>(__uint_as_float(of_block[1])) << 16;
  atomicMax(&tables->amax_bits[0], of_block[0]);
  atomicMax(&tables->amax_bits[1], kTransforms ? rounded : of_block[0]);
  if (counts == nullptr || of_block[2] == 0) return;
  // The second pass, which sees codes, counts zeros among what it flushes.
  const unsigned long long all = of_block[2];
  atomicAdd(counts + static_cast<int>(ElementKind::kZero), all);
  atomicAdd(counts + static_cast<int>(ElementKind::kFlushedToZero), 0 - all);
}

/// True in all threads of the block that comes here last, which then sees what all have merged.
__device__ bool IsLastBlock(uint32_t* blocks_done) {
  __shared__ bool is_last;
  if (threadIdx.x == 0) {
    __threadfence();
    is_last = atomicAdd(blocks_done, 1) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  return is_last;
}

/// Blocks that a multiprocessor holds at once; the grid is as many, as all take the same time.
constexpr int kResident = 6;

template <bool kTransforms, bool kCountsTransformed>
__global__ void __launch_bounds__(kThreads, kResident)
    SurveySource(const uint16_t* source, uint32_t bands, uint32_t across, int64_t columns,
                 unsigned long long* counts, const Amaxes amaxes, Nvfp4Tables* tables) {
  // The second pass may take its place on the device, and waits there until this one has ended.
  asm volatile("griddepcontrol.launch_dependents;");
  const uint32_t lane = threadIdx.x % 32, stride = gridDim.x * (kThreads / 32);
  uint32_t signs[4];
  if constexpr (kTransforms) LoadSigns(signs);
  Survey survey;
  int zeros = 0, outside = 0;
  for (uint32_t i = blockIdx.x * (kThreads / 32) + threadIdx.x / 32; i < bands; i += stride) {
    const int64_t row = int64_t{i / across} * kBandRows + lane % 4 * 2;
    const int64_t column = int64_t{i % across} * kBandColumns + lane / 4 * 8;
    const bool is_inside = column < columns;
    outside += is_inside ? 0 : 32;
    const BandPart part = LoadPart(source + row * columns + column, columns, is_inside);
    SurveyPart<kTransforms, kCountsTransformed>(part, signs, survey);
    zeros += steps::CountOf(survey.zeros);
    survey.zeros = 0;
  }
  // What lies outside was taken for zeros, and its transform is zero.
  Merge<kTransforms>(survey, zeros - outside, counts, tables);
  if (IsLastBlock(&tables->blocks_done)) FillTables(amaxes, tables);
}

template <bool kTransforms, bool kCountsTransformed>
cudaError_t Start(const Nvfp4TileParameters& p, const Amaxes& amaxes, cudaStream_t stream) {
  const Nvfp4Parameters& source = p.rowwise;
  const int64_t across = (source.columns + kBandColumns - 1) / kBandColumns;
  const int64_t bands = source.rows / kBandRows * across;
  const int64_t blocks = (bands + kThreads / 32 - 1) / (kThreads / 32);
  const int64_t grid = std::min<int64_t>(blocks, int64_t{p.multiprocessors} * kResident);
  const cudaError_t error = cudaMemsetAsync(p.tables, 0, kNvfp4ZeroedBytes, stream);
  if (error != cudaSuccess) return error;
  SurveySource<kTransforms, kCountsTransformed>
      <<<static_cast<unsigned>(grid), kThreads, 0, stream>>>(
          static_cast<const uint16_t*>(source.source), static_cast<uint32_t>(bands),
          static_cast<uint32_t>(across), source.columns, p.counts, amaxes, p.tables);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchNvfp4Survey(const Nvfp4TileParameters& p, cudaStream_t stream) {
  const bool has_rowwise = p.rowwise.codes != nullptr, transforms = p.columnwise.hadamard;
  const Amaxes amaxes = {{p.rowwise.amax, p.columnwise.amax},
                         {p.finds_rowwise, p.finds_columnwise}};
  if (!p.finds_rowwise && !p.finds_columnwise && p.counts == nullptr) {
    FillGiven<<<1, kThreads, 0, stream>>>(amaxes, p.tables);
    return cudaGetLastError();
  }
  if (!transforms) return Start<false, false>(p, amaxes, stream);
  const bool counts_transformed = p.counts != nullptr && !has_rowwise;
  return counts_transformed ? Start<true, true>(p, amaxes, stream)
                            : Start<true, false>(p, amaxes, stream);
}

}  // namespace quantgate
