// Sums and multiples of tensors (f32, bf16 and f16, computed in fp32), concatenations and slices.
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
absl::StatusOr<Shape> ConcatenatedColumnsShape(std::span<const Tensor> parts);
/// A slice as `rows` rows of `width` bytes, `pitch` bytes apart in the source, from byte `begin`.
struct SlicePlan {
  Shape shape;
  int64_t begin = 0, pitch = 0, width = 0, rows = 0;
};
absl::StatusOr<SlicePlan> PlanSlice(const Tensor& source, int dim, int64_t begin, int64_t count);

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
/// The parts side by side along the last dim: copies, of any dtype; what a part has may be no
/// column. At least one part; dtypes and the other dims are equal, rank is at least 1.
absl::StatusOr<Tensor> ConcatenateColumnsCpu(std::span<const Tensor> parts,
                                             const ExecutionContext& context);
/// Indices [begin, begin + count) of dim `dim`: a copy, of any dtype.
absl::StatusOr<Tensor> SliceCpu(const Tensor& source, int dim, int64_t begin, int64_t count,
                                const ExecutionContext& context);

}  // namespace quantgate
