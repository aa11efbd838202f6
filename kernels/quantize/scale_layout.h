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

/// What is needed to interpret the scales of one direction.
struct ScaleArray {
  QuantizerFormat format = QuantizerFormat::kIdentity;
  int block_dim = 1;
  Usage usage = Usage::kRowwise;
  int64_t rows = 0;     ///< M of the quantized tensor.
  int64_t columns = 0;  ///< K of the quantized tensor.
};

/// Dtype and shape of the scales in a layout.
struct ScaleArrayType {
  DType dtype = DType::kF32;
  Shape shape;
};
/// INVALID_ARGUMENT for a format without block scales, for fp8_block swizzled, and for dims that
/// the format does not take.
absl::StatusOr<ScaleArrayType> ScaleArrayTypeOf(const ScaleArray& array, ScaleLayout layout);

/// The index of each scale in every layout. INVALID_ARGUMENT as ScaleArrayTypeOf with kLogical.
absl::StatusOr<ScaleGrid> ScaleGridOf(const ScaleArray& array);

/// INVALID_ARGUMENT naming dtype and shape of `scales` unless they are those of the array in this
/// layout.
absl::Status CheckScales(const Tensor& scales, const ScaleArray& array, ScaleLayout layout);

/// Copies `scales` from one layout to another. Padding of `from` is ignored, padding of `to` is
/// zero. INVALID_ARGUMENT as CheckScales and ScaleArrayTypeOf.
absl::StatusOr<Tensor> ConvertScales(const Tensor& scales, const ScaleArray& array,
                                     ScaleLayout from, ScaleLayout to);

}  // namespace quantgate
