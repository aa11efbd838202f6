// The pairwise sum of docs/numerics.md section 1: pad v[0..n) with -0.0 to a power of two, then
// add v[2i] + v[2i+1], level by level, each addition rounded. The padding never changes a sum,
// since x + -0.0 = x for every x, -0.0 included.
#pragma once

#include <cstdint>

#include "kernels/base/host_device.h"

namespace quantgate {

/// The same sum over a stream: partial[level] is the sum of 2^level consecutive values that waits
/// for its neighbour, present when bit `level` of the count is set (a binary counter). T is float
/// or double.
template <class T>
class PairwiseAccumulator {
 public:
  QG_HOST_DEVICE void Add(T value) {
    int level = 0;
    for (uint64_t bits = count_++; (bits & 1) != 0; bits >>= 1) value = partial_[level++] + value;
    partial_[level] = value;
  }

  /// The sum so far; +0 without any value.
  QG_HOST_DEVICE T Sum() const {
    if (count_ == 0) return T(0);
    // Missing right neighbours are padding: a sum rises through their levels unchanged.
    int level = 0;
    uint64_t bits = count_;
    for (; (bits & 1) == 0; bits >>= 1) ++level;
    T sum = partial_[level];
    for (bits >>= 1, ++level; bits != 0; bits >>= 1, ++level) {
      if ((bits & 1) != 0) sum = partial_[level] + sum;
    }
    return sum;
  }

 private:
  static constexpr int kLevels = 48;
  T partial_[kLevels];
  uint64_t count_ = 0;
};

/// The pairwise sum of `count` values.
template <class T>
QG_HOST_DEVICE T PairwiseSum(const T* values, int64_t count) {
  PairwiseAccumulator<T> accumulator;
  for (int64_t i = 0; i < count; ++i) accumulator.Add(values[i]);
  return accumulator.Sum();
}

}  // namespace quantgate
