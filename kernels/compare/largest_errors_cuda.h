// The largest errors as errors_tuned_cuda.cu finds them: a segment is searched only where one of
// its errors exceeds what the block of threads has found. Included by .cu files only.
#pragma once

#include "kernels/compare/error_chunks_cuda.h"

namespace quantgate {

/// Elements of a segment that one thread adds up by itself.
inline constexpr int kRunElements = kSegmentElements / 32;
inline constexpr int kRunChunks = kRunElements / kChunkElements;

struct LargestPair {
  LargestFound absolute, relative;
};

/// The largest errors of a segment, and the lowest positions that have them, in every lane.
template <NumberEncoding kSubject, NumberEncoding kReference>
__device__ __noinline__ LargestPair FindLargest(const ErrorParameters& parameters,
                                                const BlockShape& block, uint32_t segment,
                                                const float* tables) {
  LargestPair found;
  const auto* subject = static_cast<const char*>(parameters.subject.data);
  const auto* reference = static_cast<const char*>(parameters.reference.data);
  const auto count = static_cast<uint32_t>(block.count), width = static_cast<uint32_t>(block.width);
  uint32_t position = segment * kSegmentElements + threadIdx.x % 32 * kRunElements;
  const uint32_t end = min(count, position + kRunElements);
#pragma unroll 1
  for (; position < end; position += kChunkElements) {
    const int64_t index = block.first + position / width * block.stride + position % width;
    const auto s = ReadChunk<kSubject>(subject + index * kElementBytes<kSubject>, tables);
    const auto r =
        ReadChunk<kReference>(reference + index * kElementBytes<kReference>, tables + 256);
#pragma unroll
    for (int i = 0; i < kChunkElements; ++i) {
      const double error = s.Double(i) - r.Double(i);
      if (!(IsFinite(s.Float(i)) && IsFinite(r.Float(i)))) continue;
      found.absolute.Offer(fabs(error), position + i);
      if (r.Float(i) == 0) continue;
      found.relative.Offer(fabs(Quotient(error, r.Double(i))), position + i);
    }
  }
  found.absolute.MergeLanes();
  found.relative.MergeLanes();
  return found;
}

/// Of numbers; fmax asks for NaN too.
__device__ inline double LargerOf(double a, double b) { return a > b ? a : b; }

/// What errors must exceed to matter to the block of threads: the largest numbers below the largest
/// errors that a warp has found, so that an equal error still exceeds them: its position may be
/// lower. Below 0 where nothing is found. As bits of doubles, which are ordered as these integers
/// where one of two is not negative. Read without waiting for other warps: any earlier value does
/// too.
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
  /// Takes an error that a warp has found. One of 0 changes nothing: every error exceeds what is
  /// below it.
  static __device__ void Raise(long long& bits, double value) {
    if (value > 0) atomicMax(&bits, __double_as_longlong(value) - 1);
  }
};

/// The largest errors of a warp's segments so far, which are in shared memory too.
class WarpLargest {
 public:
  __device__ WarpLargest(LargestPair& found, SharedLargest& shared)
      : found_(found), shared_(shared) {
    if (threadIdx.x % 32 == 0) found = {};
    __syncwarp();
  }

  /// What an error of the next segment must exceed to matter.
  __device__ ErrorPair Threshold() const {
    return {LargerOf(found_.absolute.value, SharedLargest::Read(shared_.absolute)),
            LargerOf(found_.relative.value, SharedLargest::Read(shared_.relative))};
  }
  /// Takes what a segment has, which every lane knows; segments come by their positions.
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
