// Layouts of block scales: the logical one that this engine computes with and exports, the padded
// one that Transformer Engine keeps, and the swizzled one that tensor cores read
// (docs/quantizers.md sections 4, 5 and 6.3).
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/quantize/scale_grid.h"
#include "kernels/tensor/quantized_tensor.h"

namespace quantgate {

std::string_view ScaleLayoutName(ScaleLayout layout);  ///< "logical", "padded", "swizzled".
absl::StatusOr<ScaleLayout> ParseScaleLayout(std::string_view name);

/// What the scales of one direction are, which their bytes alone do not say.
struct ScaleArray {
  QuantizerFormat format = QuantizerFormat::kIdentity;
  int block_dim = 1;
  Usage usage = Usage::kRowwise;
  int64_t rows = 0;     ///< M of the quantized tensor.
  int64_t columns = 0;  ///< K.
};

/// The array of scales in a layout: dtype and shape. INVALID_ARGUMENT for a format without block
/// scales, for fp8_block swizzled, and for dims that the format does not take.
struct ScaleArrayType {
  DType dtype = DType::kF32;
  Shape shape;
};
absl::StatusOr<ScaleArrayType> ScaleArrayTypeOf(const ScaleArray& array, ScaleLayout layout);

/// Where each scale of the array stands. INVALID_ARGUMENT as ScaleArrayTypeOf.
absl::StatusOr<ScaleGrid> ScaleGridOf(const ScaleArray& array);

/// INVALID_ARGUMENT naming the shape of `scales` when it is not that of the array in this layout.
absl::Status CheckScales(const Tensor& scales, const ScaleArray& array, ScaleLayout layout);

/// `scales` from one layout to another. From a layout with padding, what stands there is ignored.
/// INVALID_ARGUMENT naming the shape when it is not that of `from`.
absl::StatusOr<Tensor> ConvertScales(const Tensor& scales, const ScaleArray& array,
                                     ScaleLayout from, ScaleLayout to);

}  // namespace quantgate
