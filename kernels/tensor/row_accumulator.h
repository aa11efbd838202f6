// Pairwise sums down the columns of rows that arrive one after the other.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "kernels/numerics/cast.h"

namespace quantgate {

/// Columns summed together. One level of partial sums is 1 KiB, so all levels of a million rows
/// stay in the L1 cache.
inline constexpr int64_t kAccumulatorColumns = 256;

struct F32Rows {
  using Storage = float;
  static float Load(Storage value) { return value; }
};
/// Without DecodeFloat's canonical NaN, which the end of the sum makes anyway.
struct BF16Rows {
  using Storage = uint16_t;
  static float Load(Storage code) { return std::bit_cast<float>(uint32_t{code} << 16); }
};
struct F16Rows {
  using Storage = uint16_t;
  static float Load(Storage code) { return DecodeFloat<Float16>(code); }
};

/// PairwiseAccumulator over rows of up to kAccumulatorColumns values at once: the same binary
/// counter, each cell a row of sums. Eight rows at a time go through registers, as three levels of
/// the tree.
template <class Rows>
class RowAccumulator {
 public:
  using Storage = typename Rows::Storage;

  RowAccumulator(int64_t stride, int64_t width) : stride_(stride), width_(width) {}

  void AddEightRows(const Storage* rows) {
    float sum[kAccumulatorColumns];
    const auto at = [&](int row, int64_t i) { return Rows::Load(rows[row * stride_ + i]); };
    for (int64_t i = 0; i < width_; ++i) {
      sum[i] = ((at(0, i) + at(1, i)) + (at(2, i) + at(3, i))) +
               ((at(4, i) + at(5, i)) + (at(6, i) + at(7, i)));
    }
    Carry(sum, 3);
  }

  void AddRow(const Storage* row) {
    float sum[kAccumulatorColumns];
    for (int64_t i = 0; i < width_; ++i) sum[i] = Rows::Load(row[i]);
    Carry(sum, 0);
  }

  void Sum(float* out) const {
    std::fill(out, out + width_, 0.0f);
    bool is_first = true;
    size_t level = 0;
    for (uint64_t bits = count_; bits != 0; bits >>= 1, ++level) {
      if ((bits & 1) == 0) continue;
      const float* left = partial_.data() + level * kAccumulatorColumns;
      for (int64_t i = 0; i < width_; ++i) out[i] = is_first ? left[i] : left[i] + out[i];
      is_first = false;
    }
    for (int64_t i = 0; i < width_; ++i) out[i] = CanonicalFloat(out[i]);
  }

 private:
  /// Adds the sum of 2^level rows, of which count_ is a multiple.
  void Carry(float* sum, size_t level) {
    const uint64_t rows = uint64_t{1} << level;
    for (uint64_t bits = count_ >> level; (bits & 1) != 0; bits >>= 1, ++level) {
      const float* left = partial_.data() + level * kAccumulatorColumns;
      for (int64_t i = 0; i < width_; ++i) sum[i] = left[i] + sum[i];
    }
    if (partial_.size() < (level + 1) * kAccumulatorColumns)
      partial_.resize((level + 1) * kAccumulatorColumns);
    std::copy(sum, sum + width_, partial_.data() + level * kAccumulatorColumns);
    count_ += rows;
  }

  const int64_t stride_;
  const int64_t width_;
  std::vector<float> partial_;
  uint64_t count_ = 0;
};

}  // namespace quantgate
