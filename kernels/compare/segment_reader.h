// Kernel code shared by the comparisons that sum: the blocks of the heat map, their segments, and
// the sums over a warp in the order of docs/reports.md section 2.
#pragma once

#include <cstdint>

#include "kernels/compare/block_edges.h"
#include "kernels/compare/compare_kernels_cuda.h"

#if defined(__CUDACC__)

namespace quantgate {

inline constexpr unsigned kWholeWarp = 0xFFFFFFFFu;

inline constexpr int kSegmentWarps = 8;  // Warps of a block of threads; each takes a segment.
inline constexpr int kSegmentThreads = 32 * kSegmentWarps;

/// A chunk is the consecutive elements that one thread takes, a stretch those that one warp takes.
inline constexpr int kChunkElements = 8;
inline constexpr int kStretchElements = 32 * kChunkElements;
inline constexpr int kSegmentStretches = kSegmentElements / kStretchElements;

/// One block of the heat map.
struct BlockShape {
  int64_t first;  // Index in the tensor of the block's first element.
  int64_t width;
  int64_t stride;  // Columns of the tensor.
  int64_t count;   // Elements of the block.

  __device__ BlockShape(const BlockCut& cut, int block) {
    const int row = block / cut.columns, column = block % cut.columns;
    const int64_t row_begin = BlockEdge(row, cut.rows, cut.row_count);
    const int64_t column_begin = BlockEdge(column, cut.columns, cut.column_count);
    stride = cut.column_count;
    first = row_begin * stride + column_begin;
    width = BlockEdge(column + 1, cut.columns, cut.column_count) - column_begin;
    count = width * (BlockEdge(row + 1, cut.rows, cut.row_count) - row_begin);
  }
  __device__ int64_t segments() const { return (count + kSegmentElements - 1) / kSegmentElements; }
  /// Index in the tensor of element `position`.
  __device__ int64_t IndexOf(int64_t position) const {
    return first + position / width * stride + position % width;
  }
};

/// The indices in the tensor of consecutive positions in a block, with one division for all of
/// them.
class IndexWalk {
 public:
  __device__ IndexWalk(const BlockShape& block, int64_t position)
      : index_(block.IndexOf(position)),
        left_(block.width - position % block.width),
        wrap_(block.stride - block.width),
        width_(block.width) {}
  __device__ int64_t Next() {
    const int64_t index = index_++;
    if (--left_ == 0) {
      index_ += wrap_;
      left_ = width_;
    }
    return index;
  }

 private:
  int64_t index_, left_;
  const int64_t wrap_, width_;
};

/// kCount series side by side.
template <int kCount>
struct Series {
  double values[kCount];
  /// The terms of an element that is left out.
  static __device__ Series Nothing() {
    Series nothing;
    for (double& value : nothing.values) value = -0.0;
    return nothing;
  }
  friend __device__ Series operator+(const Series& a, const Series& b) {
    Series sum;
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum.values[i] = a.values[i] + b.values[i];
    return sum;
  }
};

/// The pairwise sum of measure(0) to measure(kCount - 1), called in that order.
template <int kCount, class Measure>
__device__ inline auto SumInOrder(Measure& measure, int begin = 0) {
  if constexpr (kCount == 1) {
    return measure(begin);
  } else {
    const auto low = SumInOrder<kCount / 2>(measure, begin);
    const auto high = SumInOrder<kCount / 2>(measure, begin + kCount / 2);
    return low + high;
  }
}

/// The pairwise sum over the lanes of a warp, in every lane. Addition commutes, so both lanes of a
/// pair find the same sum.
template <int kCount>
__device__ inline Series<kCount> SumOverLanes(Series<kCount> terms) {
  for (int distance = 1; distance < 32; distance *= 2) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      terms.values[i] += __shfl_xor_sync(kWholeWarp, terms.values[i], distance);
    }
  }
  return terms;
}

/// Writes the sums of one segment, which every lane has, to memory.
template <int kCount>
__device__ inline void StoreSums(const Series<kCount>& sums, double* to) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (lane == i) to[i] = sums.values[i];
  }
  if (lane >= kCount && lane < kSegmentSeries) to[lane] = 0;
}

/// Sums the segments of a block of the heat map that this block of threads takes, for any two
/// types. measure_element(subject, reference, position in the block, index in the tensor) gives an
/// element's terms as a Series.
template <class Parameters, class Measure>
__device__ inline void MeasureBlock(const Parameters& parameters, float (&tables)[2][256],
                                    const Measure& measure_element) {
  LoadByteValues(parameters.subject, tables[0]);
  LoadByteValues(parameters.reference, tables[1]);
  __syncthreads();
  const BlockShape block(parameters.cut, blockIdx.y);
  double* sums = parameters.sums + blockIdx.y * parameters.cut.segments * kSegmentSeries;
  const NumberSource &subject = parameters.subject, &reference = parameters.reference;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t segments = block.segments();
  for (int64_t segment = int64_t{blockIdx.x} * kSegmentWarps + warp; segment < segments;
       segment += int64_t{gridDim.x} * kSegmentWarps) {
    const auto stretch = [&](int number) {
      int64_t position =
          segment * kSegmentElements + number * kStretchElements + lane * kChunkElements;
      IndexWalk walk(block, position);
      const auto measure = [&](int) {
        using Terms = decltype(measure_element(0.0, 0.0, int64_t{0}, int64_t{0}));
        const int64_t here = position++;
        if (here >= block.count) return Terms::Nothing();
        const int64_t at = walk.Next();
        return measure_element(DoubleAt(subject.data, subject.encoding, tables[0], at),
                               DoubleAt(reference.data, reference.encoding, tables[1], at), here,
                               at);
      };
      return SumOverLanes(SumInOrder<kChunkElements>(measure));
    };
    StoreSums(SumInOrder<kSegmentStretches>(stretch), sums + segment * kSegmentSeries);
  }
}

}  // namespace quantgate

#endif
