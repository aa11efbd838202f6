// Attention beside its GEMMs. Of the softmax there are a kernel that takes every shape and
// alignment, with a warp per row, and one that reads each row once (row_sums_cuda.h).
#include <cmath>
#include <type_traits>

#include "kernels/numerics/attention.h"
#include "kernels/ops/attention/attention_kernels.h"
#include "kernels/ops/launch_cuda.h"
#include "kernels/ops/row_sums_cuda.h"

namespace quantgate {
namespace {

/// Rounds a float to the encoding's dtype, by the conversions of encode_lanes.h.
template <NumberEncoding kEncoding>
struct Rounding {
  __device__ float operator()(float value) const {
    if constexpr (kEncoding == NumberEncoding::kBF16) {
      return HalfWord<kEncoding>(EncodePair<BFloat16>(value, 0.0f), 0);
    } else if constexpr (kEncoding == NumberEncoding::kF16) {
      return HalfWord<kEncoding>(EncodePair<Float16>(value, 0.0f), 0);
    } else {
      return value;
    }
  }
};

/// Calls launch(std::integral_constant<NumberEncoding, ...>) for f32, bf16 or f16.
template <class Launch>
void ForEncoding(NumberEncoding encoding, const Launch& launch) {
  switch (encoding) {
    case NumberEncoding::kF32:
      return launch(std::integral_constant<NumberEncoding, NumberEncoding::kF32>());
    case NumberEncoding::kBF16:
      return launch(std::integral_constant<NumberEncoding, NumberEncoding::kBF16>());
    default:
      return launch(std::integral_constant<NumberEncoding, NumberEncoding::kF16>());
  }
}

// ---- dims

/// The size of an element must be a multiple of sizeof(Word).
template <class Word>
__global__ void SwapWords(const SwapParameters parameters) {
  const int64_t words = parameters.element_bytes / static_cast<int64_t>(sizeof(Word));
  const auto* from = reinterpret_cast<const Word*>(parameters.from);
  auto* to = reinterpret_cast<Word*>(parameters.to);
  const int64_t count = parameters.outer * parameters.inner * words;
  for (int64_t i = FirstItem(); i < count; i += ItemStride()) {
    const int64_t element = i / words;
    const int64_t source =
        element % parameters.outer * parameters.inner + element / parameters.outer;
    to[i] = from[source * words + i % words];
  }
}

template <class Word>
bool IsInWords(const SwapParameters& parameters) {
  const auto is_multiple = [](uintptr_t number) { return number % sizeof(Word) == 0; };
  return is_multiple(static_cast<uintptr_t>(parameters.element_bytes)) &&
         is_multiple(reinterpret_cast<uintptr_t>(parameters.from)) &&
         is_multiple(reinterpret_cast<uintptr_t>(parameters.to));
}

template <class Word>
void SwapIn(const SwapParameters& parameters, cudaStream_t stream) {
  const int64_t words = parameters.outer * parameters.inner *
                        (parameters.element_bytes / static_cast<int64_t>(sizeof(Word)));
  SwapWords<Word><<<BlocksFor(words), kItemThreads, 0, stream>>>(parameters);
}

// ---- rotary positions

template <int kWidth>
__device__ void LoadRun(const FloatsIn& from, int64_t at, float (&values)[kWidth]) {
  if constexpr (kWidth == 1) {
    values[0] = LoadFloat(from, at);
  } else {
    LoadLanes(from, at, values);
  }
}
template <int kWidth>
__device__ void StoreRun(const FloatsOut& to, int64_t at, const float (&values)[kWidth]) {
  if constexpr (kWidth == 1) {
    StoreFloat(to, at, values[0]);
  } else {
    StoreLanes(to, at, values);
  }
}

/// Copies kWidth elements as they are, NaN too.
template <NumberEncoding kEncoding, int kWidth>
__device__ void CopyRun(const void* from, void* to, int64_t at) {
  using Element = std::conditional_t<kEncoding == NumberEncoding::kF32, uint32_t, uint16_t>;
  const auto* source = static_cast<const Element*>(from) + at;
  auto* copy = static_cast<Element*>(to) + at;
  if constexpr (kWidth == 1) {
    *copy = *source;
  } else {
    static_assert(kWidth * sizeof(Element) % sizeof(uint4) == 0);
#pragma unroll
    for (int i = 0; i < static_cast<int>(kWidth * sizeof(Element) / sizeof(uint4)); ++i) {
      reinterpret_cast<uint4*>(copy)[i] = reinterpret_cast<const uint4*>(source)[i];
    }
  }
}

/// kWidth pairs a thread; `half` must be a multiple of kWidth and the tensors aligned for it.
template <NumberEncoding kEncoding, int kWidth>
__global__ void RotateRuns(const RotaryParameters parameters) {
  const int64_t half = parameters.half, runs = half / kWidth;
  const int64_t count = parameters.heads_count * parameters.positions * runs;
  for (int64_t item = FirstItem(); item < count; item += ItemStride()) {
    const int64_t row = item / runs, pair = item % runs * kWidth;
    const int64_t at = row * 2 * half + pair;
    if (row / parameters.positions % parameters.period >= parameters.rotated) {
      CopyRun<kEncoding, kWidth>(parameters.heads.data, parameters.to.data, at);
      CopyRun<kEncoding, kWidth>(parameters.heads.data, parameters.to.data, at + half);
      continue;
    }
    const int64_t entry = row % parameters.positions * half + pair;
    float low[kWidth], high[kWidth], cosines[kWidth], sines[kWidth];
    LoadRun(parameters.heads, at, low);
    LoadRun(parameters.heads, at + half, high);
    LoadRun(parameters.cosines, entry, cosines);
    LoadRun(parameters.sines, entry, sines);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const Rounding<kEncoding> round;
      const RotaryProducts exact =
          RotaryProductsOf({low[i], high[i]}, cosines[i], sines[i] * parameters.sign);
      const RotaryPair rotated = RotatedPair({round(exact.low_cosine), round(exact.high_cosine),
                                              round(exact.high_sine), round(exact.low_sine)});
      low[i] = rotated.low;
      high[i] = rotated.high;
    }
    StoreRun(parameters.to, at, low);
    StoreRun(parameters.to, at + half, high);
  }
}

template <NumberEncoding kEncoding, int kWidth>
void RotateIn(const RotaryParameters& parameters, cudaStream_t stream) {
  const int64_t items = parameters.heads_count * parameters.positions * (parameters.half / kWidth);
  RotateRuns<kEncoding, kWidth><<<BlocksFor(items), kItemThreads, 0, stream>>>(parameters);
}

// ---- softmax, every shape

constexpr int kRowsOfBlock = 4;

__device__ int64_t FirstScoreRow() { return int64_t{blockIdx.x} * blockDim.y + threadIdx.y; }
__device__ int64_t ScoreRowStride() { return int64_t{gridDim.x} * blockDim.y; }

__device__ int64_t TakenOf(const ScoreShape& shape, int64_t row) {
  return TakenKeys(shape.is_causal, row % shape.queries, shape.queries, shape.keys);
}

/// The largest number of a warp's lanes, in every lane. A NaN is left out, which changes no result,
/// since the row's sum is NaN.
__device__ float LargestOfWarp(float largest) {
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
  }
  return largest;
}

template <NumberEncoding kEncoding>
__global__ void ForwardByWarps(const SoftmaxParameters parameters) {
  const Rounding<kEncoding> round;
  const int64_t keys = parameters.shape.keys;
  for (int64_t row = FirstScoreRow(); row < parameters.shape.rows; row += ScoreRowStride()) {
    const int64_t taken = TakenOf(parameters.shape, row);
    const auto z = [&](int64_t i) {
      return round(LoadFloat(parameters.scores, row * keys + i) * parameters.scale);
    };
    float largest = -HUGE_VALF;
    for (int64_t i = threadIdx.x; i < taken; i += kWarp) largest = fmaxf(largest, z(i));
    largest = LargestOfWarp(largest);
    const auto term = [&](int64_t i) { return SoftmaxTerm(z(i), largest); };
    const float sum = MaskedRowSum(SumOfRow(taken, term), taken < keys);
    for (int64_t i = threadIdx.x; i < keys; i += kWarp) {
      const float probability = i < taken ? term(i) / sum : 0.0f;
      parameters.probabilities[row * keys + i] = CanonicalFloat(probability);
      if (parameters.rounded.data != nullptr) {
        StoreFloat(parameters.rounded, row * keys + i, probability);
      }
    }
  }
}

template <NumberEncoding kEncoding>
__global__ void BackwardByWarps(const SoftmaxBackwardParameters parameters) {
  const Rounding<kEncoding> round;
  const int64_t keys = parameters.shape.keys;
  for (int64_t row = FirstScoreRow(); row < parameters.shape.rows; row += ScoreRowStride()) {
    const int64_t taken = TakenOf(parameters.shape, row);
    const auto gradient = [&](int64_t i) { return LoadFloat(parameters.gradient, row * keys + i); };
    const float* probabilities = parameters.probabilities + row * keys;
    const auto term = [&](int64_t i) { return gradient(i) * probabilities[i]; };
    const float sum = MaskedRowSum(SumOfRow(taken, term), taken < keys);
    for (int64_t i = threadIdx.x; i < keys; i += kWarp) {
      float slope = 0;
      if (i < taken) {
        slope = round(SoftmaxSlope(gradient(i), probabilities[i], sum)) * parameters.scale;
      }
      StoreFloat(parameters.to, row * keys + i, slope);
    }
  }
}

// ---- softmax of rows that fit the registers of a block

/// The largest number of a row's threads, in every thread. Between two calls the threads must meet
/// at another barrier after they have read the first result.
__device__ float LargestOfRow(float largest, float (&shared)[kRowThreadsMax / kWarp]) {
  largest = LargestOfWarp(largest);
  if (blockDim.x == kWarp) return largest;
  const int warps = blockDim.x / kWarp, lane = threadIdx.x % kWarp;
  if (lane == 0) shared[threadIdx.x / kWarp] = largest;
  __syncthreads();
  return LargestOfWarp(lane < warps ? shared[lane] : -HUGE_VALF);
}

/// Divides the terms of a piece by `divisor`, from 1 to 2^24, whose rounded reciprocal is
/// `inverse`; NaN stays NaN. A product by the rounded reciprocal is at most two units in the last
/// place off, a correction by its residual brings it within one, and the next one rounds as the
/// division does (P. Markstein, "Computation of elementary functions on the IBM RISC System/6000
/// processor", IBM J. Res. Dev. 34, 1990) where no residual underflows: not from terms of 2^-90 on,
/// since their residuals are multiples of 2^-137. The compiler's own division branches for each
/// element, so that no two of them overlap.
template <int kWidth>
__device__ void DividePiece(float (&terms)[kWidth], float divisor, float inverse) {
  bool is_small = false;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) is_small |= terms[i] < 0x1p-90f && terms[i] != 0;
  if (is_small) {
    for (int i = 0; i < kWidth; ++i) terms[i] = terms[i] / divisor;
    return;
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    float quotient = terms[i] * inverse;
    for (int correction = 0; correction < 2; ++correction) {
      quotient = fmaf(fmaf(-divisor, quotient, terms[i]), inverse, quotient);
    }
    terms[i] = quotient;
  }
}

template <NumberEncoding kEncoding, int kPieces>
__global__ void __launch_bounds__(kRowThreadsMax)
    ForwardByBlocks(const SoftmaxParameters parameters) {
  constexpr int kWidth = kPieceWidth<kEncoding>;
  __shared__ SegmentSums<1> shared;
  __shared__ float largest_of_warps[kRowThreadsMax / kWarp];
  RowReduction<1, kPieces> reduction(shared);
  const Rounding<kEncoding> round;
  const int64_t keys = parameters.shape.keys;
  for (int64_t row = FirstScoreRow(); row < parameters.shape.rows; row += ScoreRowStride()) {
    const int64_t taken = TakenOf(parameters.shape, row);
    float terms[kPieces][kWidth], largest = -HUGE_VALF;
#pragma unroll
    for (int v = 0; v < kPieces; ++v) {
      const int64_t column = PieceColumn<kWidth>(v);
      RowPiece<kEncoding, kWidth> piece;
      if (column < taken) piece.Load(parameters.scores.data, row * keys + column);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        terms[v][i] = round(piece.Value(i) * parameters.scale);
        if (column + i < taken) largest = fmaxf(largest, terms[v][i]);
      }
    }
    largest = LargestOfRow(largest, largest_of_warps);
    float pieces[1][kPieces], sum[1];
#pragma unroll
    for (int v = 0; v < kPieces; ++v) {
      const int64_t column = PieceColumn<kWidth>(v);
      pieces[0][v] = -0.0f;
      if (column >= taken) continue;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        // Computed for every element, so that no branch lies between two chains of operations.
        const float term = SoftmaxTerm(terms[v][i], largest);
        terms[v][i] = column + i < taken ? term : -0.0f;
      }
      pieces[0][v] = SumOfPiece(terms[v]);
    }
    reduction.Reduce(pieces, sum);
    const float divisor = MaskedRowSum(sum[0], taken < keys);
    const float inverse = 1.0f / divisor;
#pragma unroll
    for (int v = 0; v < kPieces; ++v) {
      const int64_t column = PieceColumn<kWidth>(v);
      if (column >= keys) continue;
      if (column < taken) DividePiece(terms[v], divisor, inverse);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        if (column + i >= taken) terms[v][i] = 0.0f;
      }
      StoreLanes({parameters.probabilities, NumberEncoding::kF32}, row * keys + column, terms[v]);
      if constexpr (kEncoding != NumberEncoding::kF32) {
        StoreLanes(parameters.rounded, row * keys + column, terms[v]);
      }
    }
  }
}

template <NumberEncoding kEncoding, int kPieces>
__global__ void __launch_bounds__(kRowThreadsMax)
    BackwardByBlocks(const SoftmaxBackwardParameters parameters) {
  constexpr int kWidth = kPieceWidth<kEncoding>;
  __shared__ SegmentSums<1> shared;
  RowReduction<1, kPieces> reduction(shared);
  const Rounding<kEncoding> round;
  const int64_t keys = parameters.shape.keys;
  for (int64_t row = FirstScoreRow(); row < parameters.shape.rows; row += ScoreRowStride()) {
    const int64_t taken = TakenOf(parameters.shape, row);
    RowPiece<kEncoding, kWidth> gradient[kPieces];
    float probabilities[kPieces][kWidth], pieces[1][kPieces], sum[1];
#pragma unroll
    for (int v = 0; v < kPieces; ++v) {
      const int64_t column = PieceColumn<kWidth>(v);
      pieces[0][v] = -0.0f;
      if (column >= taken) continue;
      gradient[v].Load(parameters.gradient.data, row * keys + column);
      LoadLanes({parameters.probabilities, NumberEncoding::kF32}, row * keys + column,
                probabilities[v]);
      float terms[kWidth];
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        terms[i] = column + i < taken ? gradient[v].Value(i) * probabilities[v][i] : -0.0f;
      }
      pieces[0][v] = SumOfPiece(terms);
    }
    reduction.Reduce(pieces, sum);
    const float masked = MaskedRowSum(sum[0], taken < keys);
#pragma unroll
    for (int v = 0; v < kPieces; ++v) {
      const int64_t column = PieceColumn<kWidth>(v);
      if (column >= keys) continue;
      float slopes[kWidth];
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        slopes[i] = 0;
        if (column + i < taken) {
          slopes[i] = round(SoftmaxSlope(gradient[v].Value(i), probabilities[v][i], masked)) *
                      parameters.scale;
        }
      }
      StoreLanes(parameters.to, row * keys + column, slopes);
    }
  }
}

// ---- the choice between the two

bool IsTunable(const ScoreShape& shape, NumberEncoding encoding) {
  const int64_t width = encoding == NumberEncoding::kF32 ? 4 : 8;
  return shape.keys % 8 == 0 && shape.keys <= width * kPiecesMost * kRowThreadsMax;
}
bool IsTunable(const SoftmaxParameters& parameters) {
  return IsTunable(parameters.shape, parameters.scores.encoding) &&
         IsAlignedForLanes(parameters.scores.data) && IsAlignedForLanes(parameters.probabilities) &&
         IsAlignedForLanes(parameters.rounded.data);
}
bool IsTunable(const SoftmaxBackwardParameters& parameters) {
  return IsTunable(parameters.shape, parameters.gradient.encoding) &&
         IsAlignedForLanes(parameters.gradient.data) &&
         IsAlignedForLanes(parameters.probabilities) && IsAlignedForLanes(parameters.to.data);
}

template <NumberEncoding kEncoding>
void LaunchPlain(const SoftmaxParameters& parameters, unsigned blocks, cudaStream_t stream) {
  ForwardByWarps<kEncoding><<<blocks, dim3(kWarp, kRowsOfBlock), 0, stream>>>(parameters);
}
template <NumberEncoding kEncoding>
void LaunchPlain(const SoftmaxBackwardParameters& parameters, unsigned blocks,
                 cudaStream_t stream) {
  BackwardByWarps<kEncoding><<<blocks, dim3(kWarp, kRowsOfBlock), 0, stream>>>(parameters);
}
template <NumberEncoding kEncoding, int kPieces>
void LaunchTuned(const SoftmaxParameters& parameters, unsigned blocks, dim3 block,
                 cudaStream_t stream) {
  ForwardByBlocks<kEncoding, kPieces><<<blocks, block, 0, stream>>>(parameters);
}
template <NumberEncoding kEncoding, int kPieces>
void LaunchTuned(const SoftmaxBackwardParameters& parameters, unsigned blocks, dim3 block,
                 cudaStream_t stream) {
  BackwardByBlocks<kEncoding, kPieces><<<blocks, block, 0, stream>>>(parameters);
}

template <NumberEncoding kEncoding, class Parameters>
void LaunchAs(const Parameters& parameters, KernelPath path, cudaStream_t stream) {
  const ScoreShape& shape = parameters.shape;
  if (path != KernelPath::kTuned || !IsTunable(parameters)) {
    return LaunchPlain<kEncoding>(parameters, BlocksOfRows(shape.rows, kRowsOfBlock), stream);
  }
  ForPieces(shape.keys / kPieceWidth<kEncoding>, [&](auto pieces, dim3 block) {
    const unsigned blocks = BlocksOfRows(shape.rows, block.y);
    LaunchTuned<kEncoding, decltype(pieces)::value>(parameters, blocks, block, stream);
  });
}

}  // namespace

cudaError_t LaunchSwapDims(const SwapParameters& parameters, cudaStream_t stream) {
  if (parameters.outer * parameters.inner * parameters.element_bytes == 0) return cudaSuccess;
  if (IsInWords<uint4>(parameters)) {
    SwapIn<uint4>(parameters, stream);
  } else if (IsInWords<uint32_t>(parameters)) {
    SwapIn<uint32_t>(parameters, stream);
  } else if (IsInWords<uint16_t>(parameters)) {
    SwapIn<uint16_t>(parameters, stream);
  } else {
    SwapIn<uint8_t>(parameters, stream);
  }
  return cudaGetLastError();
}

cudaError_t LaunchRotate(const RotaryParameters& parameters, cudaStream_t stream) {
  if (parameters.heads_count * parameters.positions == 0) return cudaSuccess;
  bool is_aligned = parameters.half % 8 == 0;
  for (const void* data : {parameters.heads.data, parameters.cosines.data, parameters.sines.data,
                           static_cast<const void*>(parameters.to.data)}) {
    is_aligned = is_aligned && IsAlignedForLanes(data);
  }
  ForEncoding(parameters.heads.encoding, [&](auto encoding) {
    if (is_aligned) {
      RotateIn<decltype(encoding)::value, 8>(parameters, stream);
    } else {
      RotateIn<decltype(encoding)::value, 1>(parameters, stream);
    }
  });
  return cudaGetLastError();
}

cudaError_t LaunchSoftmax(const SoftmaxParameters& parameters, KernelPath path,
                          cudaStream_t stream) {
  if (parameters.shape.rows == 0) return cudaSuccess;
  ForEncoding(parameters.scores.encoding, [&](auto encoding) {
    LaunchAs<decltype(encoding)::value>(parameters, path, stream);
  });
  return cudaGetLastError();
}

cudaError_t LaunchSoftmax(const SoftmaxBackwardParameters& parameters, KernelPath path,
                          cudaStream_t stream) {
  if (parameters.shape.rows == 0) return cudaSuccess;
  ForEncoding(parameters.gradient.encoding, [&](auto encoding) {
    LaunchAs<decltype(encoding)::value>(parameters, path, stream);
  });
  return cudaGetLastError();
}

}  // namespace quantgate
