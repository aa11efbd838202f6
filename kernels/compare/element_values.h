// Elements of a tensor as fp64 numbers, exact for every floating type, and the checks of tensors
// that are compared.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/compare/parity_report.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

/// values[i] = the value of element begin + i; integers have their own values, pairs of codes that
/// of the byte.
void DecodeValues(const Tensor& tensor, int64_t begin, int64_t count, double* values);

/// The bits of one element, zero-extended.
uint64_t ElementBits(const Tensor& tensor, int64_t index);

/// An element of two tensors by its index and its bits on both sides.
struct PairBits {
  int64_t index = 0;
  uint64_t subject = 0;
  uint64_t reference = 0;
};
/// The pair as reports state it, of tensors with this shape and these dtypes.
ElementPair PairOfBits(const Shape& shape, DType subject, DType reference, const PairBits& bits);

/// Element `index` of both tensors, which have the same shape.
ElementPair PairAt(const Tensor& subject, const Tensor& reference, int64_t index);

/// INVALID_ARGUMENT naming both shapes unless they are equal.
absl::Status CheckSameShape(const Tensor& subject, const Tensor& reference);

/// INVALID_ARGUMENT unless shapes and dtypes are equal.
absl::Status CheckSameShapeAndType(const Tensor& subject, const Tensor& reference);
/// INVALID_ARGUMENT naming `field` unless the tensor is present and its elements are floating-point
/// numbers.
absl::Status CheckFloating(const Tensor& tensor, std::string_view field);

}  // namespace quantgate
