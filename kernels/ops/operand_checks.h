// Checks that the operations of this folder share; errors name field, value and rule.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

/// INVALID_ARGUMENT naming `field` unless the tensor is present and is f32, bf16 or f16.
absl::Status CheckHighPrecision(const Tensor& tensor, std::string_view field);
/// INVALID_ARGUMENT naming `field` unless `dtype` is f32, bf16 or f16.
absl::Status CheckHighPrecision(DType dtype, std::string_view field);
/// INVALID_ARGUMENT naming `field` unless the tensor is present and has dtype `dtype`.
absl::Status CheckDType(const Tensor& tensor, DType dtype, std::string_view field);
/// INVALID_ARGUMENT naming `field` unless the tensor has this shape; `rule` says where the shape
/// comes from.
absl::Status CheckShape(const Tensor& tensor, const Shape& shape, std::string_view field,
                        std::string_view rule);

}  // namespace quantgate
