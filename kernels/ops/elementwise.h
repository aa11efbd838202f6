// Sums, multiples and concatenations of tensors: f32, bf16 and f16, computed in fp32.
#pragma once

#include <span>

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

/// What the functions below and their device versions refuse: INVALID_ARGUMENT naming field, value
/// and rule.
absl::Status CheckAdd(const Tensor& a, const Tensor& b, DType out);
absl::Status CheckScale(const Tensor& x, DType out);
/// The shape of the concatenation.
absl::StatusOr<Shape> ConcatenatedShape(std::span<const Tensor> parts);

/// f32(a) + f32(b), rounded to nearest even in `out`. Shapes are equal.
absl::StatusOr<Tensor> AddCpu(const Tensor& a, const Tensor& b, DType out,
                              const ExecutionContext& context);
/// f32(x) * factor in fp32, rounded to nearest even in `out`.
absl::StatusOr<Tensor> ScaleCpu(const Tensor& x, float factor, DType out,
                                const ExecutionContext& context);
/// The parts one after the other along the first dim: copies, of any dtype. At least one part;
/// dtypes and the other dims are equal, rank is at least 1.
absl::StatusOr<Tensor> ConcatenateRowsCpu(std::span<const Tensor> parts,
                                          const ExecutionContext& context);

}  // namespace quantgate
