// Counting FP8 codes four at a time. Included by .cu files only.
#pragma once

#include "kernels/quantize/cuda/packed_casts_cuda.h"
#include "kernels/quantize/cuda/tile_parts_cuda.h"

namespace quantgate {

/// Counts the codes of finite sources that do not saturate, so that only zeros and subnormals must
/// be told from normal ones; most words have neither.
template <class F>
class CodeTally {
 public:
  static constexpr int kWords = 8;

  /// Adds 32 codes with their bf16 sources, which may be in any order.
  __device__ void Add(const uint32_t (&words)[kWords], const uint4* sources) {
    uint32_t all = kTops;
#pragma unroll
    for (const uint32_t word : words) all &= (word | kTops) - kNormals;
    if (all != kTops) AddRare(words, sources);
  }

  /// `codes` is the number of codes that were added.
  __device__ void AddTo(ThreadCounts& counts, uint32_t codes) const {
    counts.Add(ElementKind::kNormal, codes - subnormal_ - code_zero_);
    counts.Add(ElementKind::kSubnormal, subnormal_);
    counts.Add(ElementKind::kZero, zero_);
    counts.Add(ElementKind::kFlushedToZero, code_zero_ - zero_);
  }

 private:
  static constexpr uint32_t kTops = 0x80808080, kOnes = 0x01010101;
  /// The smallest normal code in every byte. Subtracted from 0x80 plus a magnitude code, it leaves
  /// the upper bit set if the code is normal.
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

/// Divides numbers below 2^31 by a divisor that the host knows, by a multiplication: the estimate
/// floor(n * floor(2^32 / d) / 2^32) is too small by at most 1.
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
