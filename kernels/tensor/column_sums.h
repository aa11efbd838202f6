// Sums down the columns of a tensor, as bias gradients are, on the CPU; and the accumulator behind
// them, for rows that arrive one after the other.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/numerics/cast.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

/// What ColumnSums refuses on every engine: INVALID_ARGUMENT unless both are f32, bf16 or f16.
absl::Status CheckColumnSums(DType in, DType out);

/// [columns()] of `out`: per column the pairwise sum (pairwise.h) over rows of the f32 values, then
/// one rounding to nearest even. No rows give +0. INVALID_ARGUMENT as CheckColumnSums.
absl::StatusOr<Tensor> ColumnSums(const Tensor& tensor, DType out, const ExecutionContext& context);

/// The number of columns that are summed together. One level of partial sums is 1 KiB, so all
/// levels of a million rows stay in the L1 cache.
inline constexpr int64_t kAccumulatorColumns = 256;

/// How RowAccumulator loads the elements of a row.
struct F32Rows {
  using Storage = float;
  static float Load(Storage value) { return value; }
};
/// Does not make NaN canonical as DecodeFloat does, since the end of the sum does.
struct BF16Rows {
  using Storage = uint16_t;
  static float Load(Storage code) { return std::bit_cast<float>(uint32_t{code} << 16); }
};
struct F16Rows {
  using Storage = uint16_t;
  static float Load(Storage code) { return DecodeFloat<Float16>(code); }
};

/// PairwiseAccumulator (pairwise.h) for up to kAccumulatorColumns columns at once: the same binary
/// counter, with a row of sums in each cell. Eight rows at a time are summed in registers, as three
/// levels of the tree. `stride` is the distance between rows, in elements; `width` the number of
/// columns.
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

  /// Writes the `width` sums of the rows so far; NaN is canonical.
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
  /// Adds the sum of 2^level rows. count_ is a multiple of 2^level.
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
