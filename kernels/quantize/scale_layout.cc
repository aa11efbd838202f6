#include "kernels/quantize/scale_layout.h"

#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/round_up.h"
#include "kernels/base/status_macros.h"

namespace quantgate {
namespace {

constexpr std::array<std::string_view, kScaleLayoutCount> kLayoutNames = {
    "logical", "padded", "swizzled", "k_major", "mn_major", "tma_aligned", "ue8m0", "packed_ue8m0"};

/// TMA reads lines that begin at multiples of so many bytes.
constexpr int kTmaBytes = 16;

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
  // Rowwise blocks lie within rows, of which there may be any number.
  const bool is_line_wise = array.usage == Usage::kRowwise && array.block_dim == 1;
  const bool has_whole_rows = is_line_wise || array.rows % length == 0;
  if (has_whole_rows && array.columns % length == 0) return absl::OkStatus();
  return Refuse("scales", of_dims,
                absl::StrCat(is_line_wise ? "the last dim must be a multiple of "
                                          : "both dims must be multiples of ",
                             length, " under ", Name(array.format)));
}

/// Moves all scales in the order of the lines, up to the first that cannot be moved.
template <typename From, typename To>
absl::Status Move(const Tensor& from_scales, Tensor& to_scales, const ScaleGrid& grid,
                  ScaleLayout from, ScaleLayout to) {
  for (int64_t i = 0; i < grid.outer; ++i) {
    for (int64_t j = 0; j < grid.blocks; ++j) {
      const ScaleMoveResult result =
          MoveScale(grid, from, to, i, j, reinterpret_cast<const From*>(from_scales.data()),
                    reinterpret_cast<To*>(to_scales.data()));
      if (result == ScaleMoveResult::kMoved) continue;
      if (result == ScaleMoveResult::kCopiesDiffer) return CopiesDifferError(from, i, j);
      return NotE8m0Error(to, i, j, from_scales.as<float>()[grid.Index(from, i, j)]);
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view ScaleLayoutName(ScaleLayout layout) {
  return kLayoutNames[static_cast<size_t>(layout)];
}

const std::string& ScaleLayoutNames() {
  static const auto& names = *[] {
    auto* joined = new std::string;
    for (const std::string_view name : kLayoutNames) {
      absl::StrAppend(joined, joined->empty() ? "" : ", ", std::string(name));
    }
    return joined;
  }();
  return names;
}

absl::StatusOr<ScaleLayout> ParseScaleLayout(std::string_view name) {
  for (const ScaleLayout layout : kScaleLayouts) {
    if (ScaleLayoutName(layout) == name) return layout;
  }
  return Refuse("scale_layout", absl::StrCat("\"", std::string(name.substr(0, 80)), "\""),
                "unknown name; known: " + ScaleLayoutNames());
}

absl::StatusOr<ScaleGrid> ScaleGridOf(const ScaleArray& array) {
  QG_RETURN_IF_ERROR(CheckArray(array));
  const ScalingTraits& traits = TraitsOf(array.format);
  ScaleGrid grid = traits.is_micro ? MicroGrid(array) : BlockGrid(array);
  grid.lines = array.usage == Usage::kRowwise ? array.rows : array.columns;
  const bool has_tiles = !traits.is_micro && array.block_dim == 2;
  grid.lines_per_scale = has_tiles ? traits.block_length : 1;
  grid.aligned_outer = RoundUp(grid.outer, kTmaBytes / DTypeBytes(ScaleDType(traits.scales)));
  grid.aligned_lines = RoundUp(grid.lines, kTmaBytes / DTypeBytes(DType::kI32));
  return grid;
}

absl::StatusOr<ScaleArrayType> ScaleArrayTypeOf(const ScaleArray& array, ScaleLayout layout) {
  QG_ASSIGN_OR_RETURN(const ScaleGrid grid, ScaleGridOf(array));
  const ScalingTraits& traits = TraitsOf(array.format);
  const auto refuse = [&](std::string_view rule) {
    return Refuse("scale_layout", ScaleLayoutName(layout),
                  absl::StrCat(Name(array.format), " ", std::string(rule)));
  };
  const DType dtype = ScaleDType(traits.scales);
  switch (layout) {
    case ScaleLayout::kLogical:
      return ScaleArrayType{dtype, grid.logical_is_transposed ? Shape{grid.blocks, grid.outer}
                                                              : Shape{grid.outer, grid.blocks}};
    case ScaleLayout::kSwizzled:
      if (!traits.is_micro) {
        return refuse("has no such layout; its GEMM reads the padded one");
      }
      [[fallthrough]];
    case ScaleLayout::kPadded:
      return ScaleArrayType{dtype, {grid.padded_rows, grid.padded_columns}};
    case ScaleLayout::kKMajor:
      return ScaleArrayType{dtype, {grid.outer, grid.blocks}};
    case ScaleLayout::kMnMajor:
      return ScaleArrayType{dtype, {grid.blocks, grid.outer}};
    case ScaleLayout::kTmaAligned:
      return ScaleArrayType{dtype, {grid.blocks, grid.aligned_outer}};
    case ScaleLayout::kUe8m0:
      if (traits.scales == ScaleKind::kE8m0) return refuse("has E8M0 scales in every layout");
      if (traits.scales != ScaleKind::kF32) return refuse("has scales that are no powers of two");
      return ScaleArrayType{DType::kF8E8M0, {grid.outer, grid.blocks}};
    case ScaleLayout::kPackedUe8m0:
      if (traits.scales != ScaleKind::kF32 && traits.scales != ScaleKind::kE8m0) {
        return refuse("has scales that are no powers of two");
      }
      return ScaleArrayType{DType::kI32,
                            {DivideUp(grid.blocks, ScaleGrid::kPackedBlocks), grid.aligned_lines}};
  }
  return absl::InternalError("a scale layout without a type");
}

bool MayFailToMove(const ScaleArray& array, ScaleLayout from, ScaleLayout to) {
  const bool has_f32 = TraitsOf(array.format).scales == ScaleKind::kF32;
  return (has_f32 && HoldsE8m0(to) && !HoldsE8m0(from)) || from == ScaleLayout::kPackedUe8m0;
}

absl::Status NotE8m0Error(ScaleLayout to, int64_t line, int64_t block, float scale) {
  return Refuse("scale_layout", ScaleLayoutName(to),
                absl::StrCat("the scale of line ", line, ", block ", block, " is ", scale,
                             ", which is no power of two from 2^-127 to 2^127"));
}

absl::Status CopiesDifferError(ScaleLayout from, int64_t line, int64_t block) {
  return Refuse("scales", ScaleLayoutName(from),
                absl::StrCat("the lines of tile ", line, " have different scales at block ", block,
                             "; a tile has one"));
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
  const bool is_from_f32 = scales.dtype() == DType::kF32;
  const bool is_to_f32 = wanted.dtype == DType::kF32;
  if (is_from_f32) {
    QG_RETURN_IF_ERROR(is_to_f32 ? (Move<uint32_t, uint32_t>(scales, converted, grid, from, to))
                                 : (Move<uint32_t, uint8_t>(scales, converted, grid, from, to)));
  } else {
    QG_RETURN_IF_ERROR(is_to_f32 ? (Move<uint8_t, uint32_t>(scales, converted, grid, from, to))
                                 : (Move<uint8_t, uint8_t>(scales, converted, grid, from, to)));
  }
  return converted;
}

}  // namespace quantgate
