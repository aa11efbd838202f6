// Reductions over the tensors of several ranks in a given order: what a collective computes, with
// order and roundings specified (docs/numerics.md section 8).
#pragma once

#include <span>

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

/// What each partial sum is rounded to.
enum class SumAccumulation {
  kF32,      ///< fp32; the only other rounding is the last one.
  kElement,  ///< The dtype of the parts, as when ranks add what arrives to what they hold.
};

/// What the functions below and those of ops_cuda.h refuse: INVALID_ARGUMENT naming field, value
/// and rule.
absl::Status CheckOrderedSum(std::span<const Tensor> parts_in_order, DType out);
absl::Status CheckOrderedSumTo(std::span<const Tensor> parts_in_order, const Tensor& to);
absl::Status CheckMaximum(std::span<const Tensor> parts);

/// s = f32(parts[0]); s = rounded(s + f32(parts[i])) for i = 1, 2, ..., where the sum is rounded to
/// fp32 and then as `accumulation` says; the result is s, rounded to nearest even in `out`. There
/// must be at least one part, f32, bf16 or f16, all of one dtype and shape.
absl::StatusOr<Tensor> OrderedSumCpu(std::span<const Tensor> parts_in_order,
                                     SumAccumulation accumulation, DType out,
                                     const ExecutionContext& context);

/// The same, written to `to`, which has the shape of the parts and shares no memory with them; it
/// may be rows of a larger tensor.
absl::Status OrderedSumToCpu(std::span<const Tensor> parts_in_order, SumAccumulation accumulation,
                             const Tensor& to, const ExecutionContext& context);

/// The maximum of each element over the parts, as fmaxf on a GPU: NaN only if all are NaN, and +0
/// is larger than -0. There must be at least one part, all f32 and of one shape.
absl::StatusOr<Tensor> MaximumCpu(std::span<const Tensor> parts, const ExecutionContext& context);

}  // namespace quantgate
