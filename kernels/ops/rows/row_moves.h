// Rows of one tensor into the rows of another, and sums of a few rows each: how tokens come to
// their experts and their results come back (docs/ranks.md section 8).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/ops/reduction/ordered_reduction.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

/// In place of a row's number: zeros.
inline constexpr int64_t kNoRow = -1;

struct RowSums {
  Tensor rows;                         ///< [R][K]: f32, bf16 or f16.
  std::span<const int64_t> positions;  ///< Row numbers, `choices` for each row of the result.
  int64_t choices = 1;                 ///< At least 1.
  Tensor weights = {};                 ///< f32, as many as positions; absent: rows as they are.
  /// What terms and partial sums are rounded to: fp32, or the dtype of `rows`.
  SumAccumulation accumulation = SumAccumulation::kF32;
  DType out = DType::kBF16;
};
inline std::vector<Tensor*> TensorsOf(RowSums& sums) { return {&sums.rows, &sums.weights}; }

/// What the functions below and their device versions refuse: INVALID_ARGUMENT naming field, value
/// and rule.
absl::Status CheckGatherRows(const Tensor& source, std::span<const int64_t> rows);
absl::Status CheckScaleRows(const Tensor& source, const Tensor& factors);
absl::Status CheckSumRows(const RowSums& sums);

/// Row rows[i] of the first dim of `source` as row i, zero bytes for kNoRow: copies, of any dtype.
absl::StatusOr<Tensor> GatherRowsCpu(const Tensor& source, std::span<const int64_t> rows,
                                     const ExecutionContext& context);

/// f32(source[i][k]) * factors[i] in fp32, rounded to nearest even in source's dtype. [R][K]; f32
/// [R].
absl::StatusOr<Tensor> ScaleRowsCpu(const Tensor& source, const Tensor& factors,
                                    const ExecutionContext& context);

/// [positions / choices][K]: the terms rows[position] * weight in fp32, added in the order of the
/// choices from the first one on; terms and sums are rounded as `accumulation` says, the result to
/// nearest even in `out`. kNoRow gives the term +0.
absl::StatusOr<Tensor> SumRowsCpu(const RowSums& sums, const ExecutionContext& context);

}  // namespace quantgate
