// How errors_tuned_cuda.cu finds the largest errors: in a segment it searches only the runs of
// those threads that have an error above the largest that the block of threads has found. Included
// by .cu files only.
#pragma once

#include "kernels/compare/error_chunks_cuda.h"

namespace quantgate {

/// The length of a run: the elements of a segment that one thread adds up by itself.
inline constexpr int kRunElements = kSegmentElements / 32;
inline constexpr int kRunChunks = kRunElements / kChunkElements;

struct LargestPair {
  LargestFound absolute, relative;
};

/// The largest errors in the runs of a segment whose bits in `runs` are set, with the lowest
/// positions that have them, in every lane. The warp takes one run after the other, with an element
/// for each lane.
template <NumberEncoding kSubject, NumberEncoding kReference>
__device__ __noinline__ LargestPair FindLargest(const ErrorParameters& parameters,
                                                const BlockShape& block, uint32_t segment,
                                                unsigned runs, const float* tables) {
  static_assert(kRunElements == 32);
  LargestPair found;
  const auto count = static_cast<uint32_t>(block.count), width = static_cast<uint32_t>(block.width);
  const uint32_t first = segment * kSegmentElements + threadIdx.x % 32;
#pragma unroll 2  // Runs whose elements are read together.
  for (; runs != 0; runs &= runs - 1) {
    const uint32_t position = first + (__ffs(static_cast<int>(runs)) - 1) * kRunElements;
    if (position >= count) continue;
    const int64_t index = block.first + position / width * block.stride + position % width;
    const double s = DoubleAt(parameters.subject.data, kSubject, tables, index);
    const double r = DoubleAt(parameters.reference.data, kReference, tables + 256, index);
    if (!(fabs(s) < INFINITY && fabs(r) < INFINITY)) continue;
    const double error = s - r;
    found.absolute.Offer(fabs(error), position);
    if (r != 0) found.relative.Offer(fabs(Quotient(error, r)), position);
  }
  found.absolute.MergeLanes();
  found.relative.MergeLanes();
  return found;
}

/// The larger of two numbers; fmax would check for NaN too.
__device__ inline double LargerOf(double a, double b) { return a > b ? a : b; }

/// Thresholds that errors must exceed to matter to the block of threads: the largest numbers below
/// the largest errors that a warp has found, so that an equal error, whose position may be lower,
/// still exceeds them; below 0 where nothing is found. They are bits of doubles, which are ordered
/// as integers where at least one of two is not negative. Warps read them without waiting for each
/// other, since an earlier value is correct too.
struct SharedLargest {
  long long absolute, relative;

  __device__ void Clear() { absolute = relative = __double_as_longlong(-1.0); }
  static __device__ double Read(const long long& bits) {
    long long value;
    asm volatile("ld.relaxed.cta.shared::cta.s64 %0, [%1];"
                 : "=l"(value)
                 : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(&bits))));
    return __longlong_as_double(value);
  }
  /// Raises a threshold to just below an error that a warp has found. An error of 0 changes
  /// nothing, since every error exceeds the number below 0.
  static __device__ void Raise(long long& bits, double value) {
    if (value > 0) atomicMax(&bits, __double_as_longlong(value) - 1);
  }
};

/// The largest errors of a warp's segments so far; `found` is in shared memory too.
class WarpLargest {
 public:
  __device__ WarpLargest(LargestPair& found, SharedLargest& shared)
      : found_(found), shared_(shared) {
    if (threadIdx.x % 32 == 0) found = {};
    __syncwarp();
  }

  /// The thresholds that errors of the next segment must exceed to matter.
  __device__ ErrorPair Threshold() const {
    return {LargerOf(found_.absolute.value, SharedLargest::Read(shared_.absolute)),
            LargerOf(found_.relative.value, SharedLargest::Read(shared_.relative))};
  }
  /// Takes the largest errors of a segment, which every lane has. Segments must come in the order
  /// of their positions.
  __device__ void Offer(const LargestPair& other) {
    if (threadIdx.x % 32 == 0) {
      found_.absolute.Offer(other.absolute.value, other.absolute.position);
      found_.relative.Offer(other.relative.value, other.relative.position);
      SharedLargest::Raise(shared_.absolute, found_.absolute.value);
      SharedLargest::Raise(shared_.relative, found_.relative.value);
    }
    __syncwarp();
  }
  __device__ const LargestPair& found() const { return found_; }

 private:
  LargestPair& found_;
  SharedLargest& shared_;
};

}  // namespace quantgate
