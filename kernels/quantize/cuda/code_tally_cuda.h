// Counting FP8 codes four at a time. Included by .cu files only.
#pragma once

#include "kernels/quantize/cuda/packed_casts_cuda.h"
#include "kernels/quantize/cuda/tile_parts_cuda.h"

namespace quantgate {

/// Counts codes of finite sources, none of which lies beyond the largest code: what is left to tell
/// are zeros and subnormals, which most words have none of.
template <class F>
class CodeTally {
 public:
  static constexpr int kWords = 8;

  /// 32 codes and, in any order, their bf16 sources.
  __device__ void Add(const uint32_t (&words)[kWords], const uint4* sources) {
    uint32_t all = kTops;
#pragma unroll
    for (const uint32_t word : words) all &= (word | kTops) - kNormals;
    if (all != kTops) AddRare(words, sources);
  }

  /// `codes` have been added.
  __device__ void AddTo(ThreadCounts& counts, uint32_t codes) const {
    counts.Add(ElementKind::kNormal, codes - subnormal_ - code_zero_);
    counts.Add(ElementKind::kSubnormal, subnormal_);
    counts.Add(ElementKind::kZero, zero_);
    counts.Add(ElementKind::kFlushedToZero, code_zero_ - zero_);
  }

 private:
  static constexpr uint32_t kTops = 0x80808080, kOnes = 0x01010101;
  /// The smallest normal code in every byte: taken from 0x80 plus a magnitude, it leaves the upper
  /// bit where that is normal.
  static constexpr uint32_t kNormals = kOnes << F::kMantissaBits;

  __device__ void AddRare(const uint32_t (&words)[kWords], const uint4* sources) {
    int normal = 0, nonzero = 0;
#pragma unroll
    for (const uint32_t word : words) {
      normal += __popc(((word | kTops) - kNormals) & kTops);
      nonzero += __popc(((word | kTops) - kOnes) & kTops);
    }
    subnormal_ += static_cast<uint32_t>(nonzero - normal);
    if (nonzero == 4 * kWords) return;
    code_zero_ += static_cast<uint32_t>(4 * kWords - nonzero);
#pragma unroll
    for (int i = 0; i < kWords / 2; ++i) {
      zero_ +=
          Zeros(sources[i].x) + Zeros(sources[i].y) + Zeros(sources[i].z) + Zeros(sources[i].w);
    }
  }
  __device__ static uint32_t Zeros(uint32_t pair) {
    return static_cast<uint32_t>(2 -
                                 __popc(((pair & kPairMagnitude) + kPairMagnitude) & kPairSigns));
  }

  uint32_t subnormal_ = 0, code_zero_ = 0, zero_ = 0;
};

/// Division of numbers below 2^31 by one divisor that the host knows: a multiplication, since the
/// estimate floor(n * floor(2^32 / d) / 2^32) falls short by at most 1.
struct Divisor {
  uint32_t value = 1, reciprocal = 0xFFFFFFFF;

  static Divisor Of(uint32_t value) {
    const uint64_t reciprocal = (uint64_t{1} << 32) / value;
    return {value, reciprocal > 0xFFFFFFFF ? 0xFFFFFFFF : static_cast<uint32_t>(reciprocal)};
  }
  __device__ uint32_t Quotient(uint32_t n) const {
    const uint32_t estimate = __umulhi(n, reciprocal);
    return estimate + (n - estimate * value >= value ? 1 : 0);
  }
};

}  // namespace quantgate
