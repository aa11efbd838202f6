#include "kernels/tensor/column_sums.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/numerics/cast.h"
#include "kernels/tensor/convert.h"
#include "kernels/tensor/tensor_checks.h"

namespace quantgate {
namespace {

// Columns summed together. One level of partial sums is 1 KiB, so all levels of a million rows stay
// in the L1 cache.
constexpr int64_t kColumns = 256;

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

/// PairwiseAccumulator over rows of up to kColumns values at once: the same binary counter, each
/// cell a row of sums. Eight rows at a time go through registers, as three levels of the tree.
template <class Rows>
class RowAccumulator {
 public:
  using Storage = typename Rows::Storage;

  RowAccumulator(int64_t stride, int64_t width) : stride_(stride), width_(width) {}

  void AddEightRows(const Storage* rows) {
    float sum[kColumns];
    const auto at = [&](int row, int64_t i) { return Rows::Load(rows[row * stride_ + i]); };
    for (int64_t i = 0; i < width_; ++i) {
      sum[i] = ((at(0, i) + at(1, i)) + (at(2, i) + at(3, i))) +
               ((at(4, i) + at(5, i)) + (at(6, i) + at(7, i)));
    }
    Carry(sum, 3);
  }

  void AddRow(const Storage* row) {
    float sum[kColumns];
    for (int64_t i = 0; i < width_; ++i) sum[i] = Rows::Load(row[i]);
    Carry(sum, 0);
  }

  void Sum(float* out) const {
    std::fill(out, out + width_, 0.0f);
    bool is_first = true;
    size_t level = 0;
    for (uint64_t bits = count_; bits != 0; bits >>= 1, ++level) {
      if ((bits & 1) == 0) continue;
      const float* left = partial_.data() + level * kColumns;
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
      const float* left = partial_.data() + level * kColumns;
      for (int64_t i = 0; i < width_; ++i) sum[i] = left[i] + sum[i];
    }
    if (partial_.size() < (level + 1) * kColumns) partial_.resize((level + 1) * kColumns);
    std::copy(sum, sum + width_, partial_.data() + level * kColumns);
    count_ += rows;
  }

  const int64_t stride_;
  const int64_t width_;
  std::vector<float> partial_;
  uint64_t count_ = 0;
};

template <class Rows>
void SumColumns(const Tensor& tensor, float* out, const ExecutionContext& context) {
  const int64_t rows = tensor.rows(), columns = tensor.columns();
  const auto* from = tensor.as<typename Rows::Storage>();
  ParallelFor(context, columns, kColumns, [&](int64_t begin, int64_t end) {
    RowAccumulator<Rows> accumulator(columns, end - begin);
    int64_t r = 0;
    for (; r + 8 <= rows; r += 8) accumulator.AddEightRows(from + r * columns + begin);
    for (; r < rows; ++r) accumulator.AddRow(from + r * columns + begin);
    accumulator.Sum(out + begin);
  });
}

}  // namespace

absl::StatusOr<Tensor> ColumnSums(const Tensor& tensor, DType out,
                                  const ExecutionContext& context) {
  QG_RETURN_IF_ERROR(CheckColumnSums(tensor.dtype(), out));
  QG_ASSIGN_OR_RETURN(Tensor sums, Tensor::Allocate(DType::kF32, {tensor.columns()}));
  switch (tensor.dtype()) {
    case DType::kF32:
      SumColumns<F32Rows>(tensor, sums.as<float>(), context);
      break;
    case DType::kBF16:
      SumColumns<BF16Rows>(tensor, sums.as<float>(), context);
      break;
    default:
      SumColumns<F16Rows>(tensor, sums.as<float>(), context);
      break;
  }
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  return CastTensor(sums, out, context);
}

}  // namespace quantgate
