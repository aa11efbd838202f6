// Layouts of block scales: the logical one that this engine computes with, and those in which
// libraries and tensor cores hold them (docs/file-formats.md section 2.1).
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/quantize/scale_grid.h"
#include "kernels/tensor/quantized_tensor.h"

namespace quantgate {

inline constexpr std::array<ScaleLayout, kScaleLayoutCount> kScaleLayouts = {
    ScaleLayout::kLogical, ScaleLayout::kPadded,     ScaleLayout::kSwizzled,
    ScaleLayout::kKMajor,  ScaleLayout::kMnMajor,    ScaleLayout::kTmaAligned,
    ScaleLayout::kUe8m0,   ScaleLayout::kPackedUe8m0};

std::string_view ScaleLayoutName(ScaleLayout layout);  ///< "logical", "packed_ue8m0", ...
/// All names, for error texts: "logical, padded, ...".
const std::string& ScaleLayoutNames();
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
/// INVALID_ARGUMENT for a format without block scales or without this layout, and for dims that the
/// format does not take.
absl::StatusOr<ScaleArrayType> ScaleArrayTypeOf(const ScaleArray& array, ScaleLayout layout);

/// The index of each scale in every layout. INVALID_ARGUMENT as ScaleArrayTypeOf with kLogical.
absl::StatusOr<ScaleGrid> ScaleGridOf(const ScaleArray& array);

/// INVALID_ARGUMENT naming dtype and shape of `scales` unless they are those of the array in this
/// layout.
absl::Status CheckScales(const Tensor& scales, const ScaleArray& array, ScaleLayout layout);

/// Whether ConvertScales may refuse scales for their values.
bool MayFailToMove(const ScaleArray& array, ScaleLayout from, ScaleLayout to);
/// The refusal of an fp32 scale that E8M0 does not have, and of a tile whose lines differ.
absl::Status NotE8m0Error(ScaleLayout to, int64_t line, int64_t block, float scale);
absl::Status CopiesDifferError(ScaleLayout from, int64_t line, int64_t block);

/// Copies `scales` from one layout to another. Padding of `from` is ignored, padding of `to` is
/// zero. INVALID_ARGUMENT as CheckScales and ScaleArrayTypeOf, and for the first scale, in the
/// order of lines and blocks, that `to` cannot hold or that `from` has twice and differently.
absl::StatusOr<Tensor> ConvertScales(const Tensor& scales, const ScaleArray& array,
                                     ScaleLayout from, ScaleLayout to);

}  // namespace quantgate
