// Gathers rows, and sums a few rows each: how tokens get to experts and results come back
// (docs/ranks.md section 8).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/ops/reduction/ordered_reduction.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

/// Stands for a row of zeros in place of a row number.
inline constexpr int64_t kNoRow = -1;

/// What SumRows reads.
struct RowSums {
  Tensor rows;                         ///< [R][K]: f32, bf16 or f16.
  std::span<const int64_t> positions;  ///< Row numbers, `choices` for each row of the result.
  int64_t choices = 1;                 ///< Rows per sum, at least 1.
  Tensor weights = {};                 ///< f32, one per position; absent if rows are not weighted.
  /// Whether terms and partial sums are rounded to fp32 or to the dtype of `rows`.
  SumAccumulation accumulation = SumAccumulation::kF32;
  DType out = DType::kBF16;
};
inline std::vector<Tensor*> TensorsOf(RowSums& sums) { return {&sums.rows, &sums.weights}; }

/// What the functions below and those of ops_cuda.h refuse: INVALID_ARGUMENT naming field, value
/// and rule.
absl::Status CheckGatherRows(const Tensor& source, std::span<const int64_t> rows);
absl::Status CheckScaleRows(const Tensor& source, const Tensor& factors);
absl::Status CheckSumRows(const RowSums& sums);

/// Copies index rows[i] of the first dim of `source` to index i; zero bytes for kNoRow; any dtype.
absl::StatusOr<Tensor> GatherRowsCpu(const Tensor& source, std::span<const int64_t> rows,
                                     const ExecutionContext& context);

/// f32(source[i][k]) * factors[i] in fp32, rounded to nearest even in the dtype of `source`,
/// [R][K]; `factors` is f32 [R].
absl::StatusOr<Tensor> ScaleRowsCpu(const Tensor& source, const Tensor& factors,
                                    const ExecutionContext& context);

/// [positions / choices][K]: the terms rows[position] * weight in fp32, added in the order of the
/// choices from the first one on; terms and sums are rounded as `accumulation` says, the result to
/// nearest even in `out`. kNoRow gives the term +0.
absl::StatusOr<Tensor> SumRowsCpu(const RowSums& sums, const ExecutionContext& context);

}  // namespace quantgate
