#include "kernels/quantize/scale_layout.h"

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/round_up.h"
#include "kernels/base/status_macros.h"

namespace quantgate {
namespace {

std::string Name(QuantizerFormat format) { return std::string(QuantizerFormatName(format)); }

ScaleGrid BlockGrid(const ScaleArray& array) {
  const bool is_rowwise = array.usage == Usage::kRowwise;
  const int64_t outer = is_rowwise ? array.rows : array.columns;
  const int64_t contracted = is_rowwise ? array.columns : array.rows;
  ScaleGrid grid;
  const int64_t length = BlockLength(array.format);
  grid.blocks = DivideUp(contracted, length);
  if (array.block_dim == 2) {
    grid.outer = DivideUp(outer, length);
    grid.padded_rows = grid.outer;
    grid.padded_columns = RoundUp(grid.blocks, 4);
    return grid;
  }
  grid.outer = outer;
  grid.padded_is_transposed = true;
  grid.padded_rows = grid.blocks;
  grid.padded_columns = RoundUp(outer, 4);
  return grid;
}

/// The grid of micro formats, whose 2-D scales are replicated to the shapes of 1-D ones.
ScaleGrid MicroGrid(const ScaleArray& array) {
  const bool is_rowwise = array.usage == Usage::kRowwise;
  const int64_t length = BlockLength(array.format);
  ScaleGrid grid;
  grid.outer = is_rowwise ? array.rows : array.columns;
  grid.blocks = (is_rowwise ? array.columns : array.rows) / length;
  grid.padded_rows = RoundUp(grid.outer, ScaleGrid::kTileRows);
  grid.padded_columns = RoundUp(grid.blocks, ScaleGrid::kTileBlocks);
  if (!TraitsOf(array.format).turns_columnwise && !is_rowwise) {
    grid.logical_is_transposed = grid.padded_is_transposed = true;
    std::swap(grid.padded_rows, grid.padded_columns);
  }
  return grid;
}

absl::Status CheckArray(const ScaleArray& array) {
  const std::string of_dims = absl::StrCat("of ", array.rows, "x", array.columns);
  if (array.rows < 0 || array.columns < 0) {
    return Refuse("scales", of_dims, "dims must not be negative");
  }
  const ScalingTraits& traits = TraitsOf(array.format);
  if (!traits.has_blocks()) {
    std::string others;
    for (const ScalingTraits& other : AllQuantizerFormats()) {
      if (!other.has_blocks()) continue;
      absl::StrAppend(&others, others.empty() ? "" : ", ", std::string(other.name));
    }
    return Refuse("scales", "of " + Name(array.format),
                  absl::StrCat("it has no block scales; ", others, " have"));
  }
  if (!traits.is_micro) return absl::OkStatus();
  const int64_t length = BlockLength(array.format);
  if (array.rows % length == 0 && array.columns % length == 0) return absl::OkStatus();
  return Refuse(
      "scales", of_dims,
      absl::StrCat("both dims must be multiples of ", length, " under ", Name(array.format)));
}

template <typename Scale>
void Move(const Tensor& from_scales, Tensor& to_scales, const ScaleGrid& grid, ScaleLayout from,
          ScaleLayout to) {
  const Scale* source = from_scales.as<Scale>();
  Scale* target = to_scales.as<Scale>();
  for (int64_t i = 0; i < grid.outer; ++i) {
    for (int64_t j = 0; j < grid.blocks; ++j) {
      target[grid.Index(to, i, j)] = source[grid.Index(from, i, j)];
    }
  }
}

}  // namespace

std::string_view ScaleLayoutName(ScaleLayout layout) {
  switch (layout) {
    case ScaleLayout::kLogical:
      return "logical";
    case ScaleLayout::kPadded:
      return "padded";
    case ScaleLayout::kSwizzled:
      return "swizzled";
  }
  return "unknown";
}

absl::StatusOr<ScaleLayout> ParseScaleLayout(std::string_view name) {
  for (const ScaleLayout layout :
       {ScaleLayout::kLogical, ScaleLayout::kPadded, ScaleLayout::kSwizzled}) {
    if (ScaleLayoutName(layout) == name) return layout;
  }
  return Refuse("scale_layout", absl::StrCat("\"", std::string(name.substr(0, 80)), "\""),
                "unknown name; known: logical, padded, swizzled");
}

absl::StatusOr<ScaleGrid> ScaleGridOf(const ScaleArray& array) {
  QG_RETURN_IF_ERROR(CheckArray(array));
  return TraitsOf(array.format).is_micro ? MicroGrid(array) : BlockGrid(array);
}

absl::StatusOr<ScaleArrayType> ScaleArrayTypeOf(const ScaleArray& array, ScaleLayout layout) {
  QG_ASSIGN_OR_RETURN(const ScaleGrid grid, ScaleGridOf(array));
  if (layout == ScaleLayout::kSwizzled && !TraitsOf(array.format).is_micro) {
    return Refuse(
        "scale_layout", "swizzled",
        absl::StrCat(Name(array.format), " has no such layout; its GEMM reads the padded one"));
  }
  Shape shape = {grid.padded_rows, grid.padded_columns};
  if (layout == ScaleLayout::kLogical) {
    shape = grid.logical_is_transposed ? Shape{grid.blocks, grid.outer}
                                       : Shape{grid.outer, grid.blocks};
  }
  return ScaleArrayType{ScaleDType(TraitsOf(array.format).scales), std::move(shape)};
}

absl::Status CheckScales(const Tensor& scales, const ScaleArray& array, ScaleLayout layout) {
  QG_ASSIGN_OR_RETURN(const ScaleArrayType expected, ScaleArrayTypeOf(array, layout));
  if (scales.dtype() == expected.dtype && scales.shape() == expected.shape) {
    return absl::OkStatus();
  }
  return Refuse(
      "scales", TensorText(scales),
      absl::StrCat("the ", std::string(ScaleLayoutName(layout)), " ",
                   std::string(UsageName(array.usage)), " scales of ", Name(array.format), " ",
                   array.rows, "x", array.columns, " are ", std::string(DTypeName(expected.dtype)),
                   "[", ShapeText(expected.shape), "]"));
}

absl::StatusOr<Tensor> ConvertScales(const Tensor& scales, const ScaleArray& array,
                                     ScaleLayout from, ScaleLayout to) {
  QG_RETURN_IF_ERROR(CheckScales(scales, array, from));
  QG_ASSIGN_OR_RETURN(const ScaleArrayType wanted, ScaleArrayTypeOf(array, to));
  QG_ASSIGN_OR_RETURN(const ScaleGrid grid, ScaleGridOf(array));
  QG_ASSIGN_OR_RETURN(Tensor converted, Tensor::Allocate(wanted.dtype, wanted.shape));
  if (converted.byte_size() != 0) std::memset(converted.data(), 0, converted.byte_size());
  if (wanted.dtype == DType::kF32) {
    Move<float>(scales, converted, grid, from, to);
  } else {
    Move<uint8_t>(scales, converted, grid, from, to);
  }
  return converted;
}

}  // namespace quantgate
