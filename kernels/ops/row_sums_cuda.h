// Pairwise sums along rows in kernels: by a warp for every shape, and of rows that fit the
// registers of a block, each of which is read once, in 16-byte pieces. Piece v of thread t holds
// elements from (v * threads + t) * kWidth, so that the pieces of a warp are a segment of
// neighbours, and segments in order of v and warp make up the row: every sum is a subtree of the
// pairwise sum, of a thread, of a warp, of the segments.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/numerics/pairwise.h"
#include "kernels/tensor/number_source.h"

#if defined(__CUDACC__)

namespace quantgate {

inline constexpr int kWarp = 32;
inline constexpr int kRowThreadsMax = 512;
inline constexpr int kRowsOfWarps = 4;  // Rows of a block if each row has one warp.
inline constexpr int kPiecesMost = 8;   // The most pieces of a thread.
inline constexpr int kSegmentsMax = kPiecesMost * kRowThreadsMax / kWarp;
static_assert(kSegmentsMax == 4 * kWarp, "four segments for each lane");

/// The pairwise sum of term(0) ... term(count - 1), in every lane: 32 at a time by shuffles, which
/// are whole subtrees, then as a stream.
template <class Term>
__device__ inline float SumOfRow(int64_t count, const Term& term) {
  PairwiseAccumulator<float> accumulator;
  const int lane = threadIdx.x;
  for (int64_t begin = 0; begin < count; begin += kWarp) {
    float sum = begin + lane < count ? term(begin + lane) : -0.0f;
    for (int step = 1; step < kWarp; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
    accumulator.Add(sum);
  }
  return accumulator.Sum();
}

template <NumberEncoding kEncoding>
inline constexpr int kPieceWidth = kEncoding == NumberEncoding::kF32 ? 4 : 8;

/// Memory that two consecutive reductions must not share.
template <int kSums>
struct SegmentSums {
  float values[2][kSums][kSegmentsMax];
};

__device__ inline float SumOfWarp(float sum) {
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
  return sum;
}

/// Sums of the kWidth values of a piece.
template <int kWidth>
__device__ inline float SumOfPiece(const float (&v)[kWidth]) {
  const float quad = (v[0] + v[1]) + (v[2] + v[3]);
  if constexpr (kWidth == 4) {
    return quad;
  } else {
    return quad + ((v[4] + v[5]) + (v[6] + v[7]));
  }
}

template <int kPieces>
__device__ inline float SumOfPieces(const float (&sums)[kPieces]) {
  if constexpr (kPieces == 1) {
    return sums[0];
  } else if constexpr (kPieces == 4) {
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
  } else {
    static_assert(kPieces == 8);
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) +
           ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  }
}

/// The sums over a row of each thread's sums of pieces, in every thread.
template <int kSums, int kPieces>
class RowReduction {
 public:
  __device__ explicit RowReduction(SegmentSums<kSums>& shared) : shared_(shared) {}

  __device__ void Reduce(float (&pieces)[kSums][kPieces], float (&sums)[kSums]) {
#pragma unroll
    for (int s = 0; s < kSums; ++s) {
#pragma unroll
      for (int v = 0; v < kPieces; ++v) pieces[s][v] = SumOfWarp(pieces[s][v]);
    }
    if (blockDim.x == kWarp) {
#pragma unroll
      for (int s = 0; s < kSums; ++s) sums[s] = SumOfPieces(pieces[s]);
      return;
    }
    const int warps = blockDim.x / kWarp, warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    if (lane == 0) {
#pragma unroll
      for (int s = 0; s < kSums; ++s) {
#pragma unroll
        for (int v = 0; v < kPieces; ++v) {
          shared_.values[turn_][s][v * warps + warp] = pieces[s][v];
        }
      }
    }
    __syncthreads();
#pragma unroll
    for (int s = 0; s < kSums; ++s) {
      const auto segment = [&](int i) {
        const int at = 4 * lane + i;
        return at < kPieces * warps ? shared_.values[turn_][s][at] : -0.0f;
      };
      sums[s] = SumOfWarp((segment(0) + segment(1)) + (segment(2) + segment(3)));
    }
    // The next reduction writes elsewhere, since threads may still read these values until the
    // barrier of the next.
    turn_ ^= 1;
  }

 private:
  SegmentSums<kSums>& shared_;
  int turn_ = 0;
};

/// Column of piece v of this thread.
template <int kWidth>
__device__ inline int64_t PieceColumn(int v) {
  return (int64_t{v} * blockDim.x + threadIdx.x) * kWidth;
}

/// Threads of a row, and rows of a block.
inline dim3 BlockFor(int64_t pieces, int pieces_of_thread) {
  unsigned threads = kWarp;
  while (int64_t{threads} * pieces_of_thread < pieces) threads *= 2;
  return dim3(threads, threads == kWarp ? kRowsOfWarps : 1);
}

/// Calls launch(std::integral_constant<int, pieces of a thread>, block) for a row of `pieces`.
template <class Launch>
void ForPieces(int64_t pieces, const Launch& launch) {
  if (pieces <= kWarp) return launch(std::integral_constant<int, 1>(), BlockFor(pieces, 1));
  if (pieces <= 4 * kRowThreadsMax) {
    return launch(std::integral_constant<int, 4>(), BlockFor(pieces, 4));
  }
  launch(std::integral_constant<int, kPiecesMost>(), BlockFor(pieces, kPiecesMost));
}

/// How many blocks take `rows`, of which each takes `rows_of_block` at a time.
inline unsigned BlocksOfRows(int64_t rows, int64_t rows_of_block) {
  return static_cast<unsigned>(
      std::min<int64_t>((rows + rows_of_block - 1) / rows_of_block, int64_t{1} << 30));
}

}  // namespace quantgate

#endif
