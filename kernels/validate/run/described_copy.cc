#include "kernels/validate/run/described_copy.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/quantize/quantized_outline.h"

namespace quantgate {
namespace {

std::string DirectionField(Usage usage) {
  return absl::StrCat("description.", std::string(UsageName(usage)));
}

absl::Status Doubt(Usage usage, const std::string& what) {
  return RefuseAbsent(
      DirectionField(usage),
      absl::StrCat(what, "; say format, element, block_dim, e4m3_max and, of levels, group"));
}

/// The only format with such scales and elements; absent if there are several, or none.
std::optional<QuantizerFormat> OnlyFormatOf(ScaleKind scales, DType element) {
  std::optional<QuantizerFormat> only;
  for (const ScalingTraits& traits : AllQuantizerFormats()) {
    const bool has_element =
        std::find(traits.elements.begin(), traits.elements.end(), element) != traits.elements.end();
    if (traits.scales != scales || !has_element) continue;
    if (only.has_value()) return std::nullopt;
    only = traits.format;
  }
  return only;
}

/// The kind of scales of this dtype and shape; absent for a dtype that no scales have.
std::optional<ScaleKind> ScaleKindOf(const Tensor& scale) {
  if (scale.dtype() == DType::kF32) {
    // Of one line, a scale of the line is one of the tensor.
    if (scale.rank() == 1) return scale.shape() == Shape{1} ? ScaleKind::kTensor : ScaleKind::kLine;
    return ScaleKind::kF32;
  }
  for (const ScaleKind scales : {ScaleKind::kE8m0, ScaleKind::kTwoLevel}) {
    if (scale.dtype() == ScaleDType(scales)) return scales;
  }
  return std::nullopt;
}

/// The format of levels whose codes have this element; absent if there is none. u8 may be anything.
std::optional<QuantizerFormat> LevelFormatOf(DType element) {
  for (const ScalingTraits& traits : AllQuantizerFormats()) {
    const bool has_element =
        std::find(traits.elements.begin(), traits.elements.end(), element) != traits.elements.end();
    if (traits.has_levels() && has_element && element != DType::kU8) return traits.format;
  }
  return std::nullopt;
}

/// The same, and its group, which the number of scales tells if all groups are whole.
absl::StatusOr<QuantizerSpec> InferLevels(QuantizerFormat format, Usage usage, const Tensor& data,
                                          const Tensor& scale) {
  QuantizerSpec spec = {.format = format, .element = data.dtype()};
  const bool has_runs = spec.traits().has_runs;
  const int64_t codes = data.columns() * CodesPerElement(data.dtype());
  const int64_t lines = has_runs ? 1 : data.rows(), length = has_runs ? data.rows() * codes : codes;
  const int64_t scales = scale.element_count();
  if (!has_runs && scales == 1) {
    spec.group = kTensorGroup;
  } else if (!has_runs && scales == lines) {
    spec.group = kLineGroup;
  } else if (lines > 0 && scales > 0 && scales % lines == 0 && length % (scales / lines) == 0 &&
             length / (scales / lines) <= kGroupMax) {
    spec.group = static_cast<int>(length / (scales / lines));
  } else {
    return RefuseAbsent(DirectionField(usage),
                        absl::StrCat("codes ", TensorText(data), " with scales ", TensorText(scale),
                                     " do not tell the group; say it"));
  }
  return spec;
}

/// The shape of the source, from the codes alone.
absl::StatusOr<Shape> SourceShape(const QuantizerSpec& spec, Usage usage, const Tensor& data) {
  Shape shape = data.shape();
  if (shape.empty()) {
    return Refuse(PartField(usage, "data"), TensorText(data), "the rank is at least 1");
  }
  if (spec.is_quantized()) shape.back() *= CodesPerElement(spec.element);
  const bool is_turned = usage == Usage::kColumnwise && spec.traits().turns_columnwise;
  if (!is_turned) return shape;
  if (shape.size() != 2) {
    return Refuse(PartField(usage, "data"), TensorText(data),
                  "columnwise codes are the transpose [K][M]");
  }
  return Shape{shape[1], shape[0]};
}

/// The block formats whose scales in `layout` have the dtype and shape of the given ones.
std::vector<QuantizerSpec> SpecsOfLayout(Usage usage, const QuantizedCopy& outlines,
                                         ScaleLayout layout) {
  const Tensor& data = outlines.data;
  const Tensor& scale = outlines.scale_inv;
  std::vector<QuantizerSpec> found;
  for (const ScalingTraits& traits : AllQuantizerFormats()) {
    if (!traits.has_blocks()) continue;
    for (const DType element : traits.elements) {
      if (element != data.dtype() && data.dtype() != DType::kU8) continue;
      for (const int block_dim : {1, 2}) {
        if (block_dim == 2 && traits.is_micro) continue;  // Stored as those of lines.
        QuantizerSpec spec;
        spec.format = traits.format;
        spec.element = element;
        spec.block_dim = block_dim;
        const auto shape = SourceShape(spec, usage, data);
        if (!shape.ok()) continue;
        const auto type =
            ScaleArrayTypeOf(ScaleArrayOf(traits.format, block_dim, usage, *shape), layout);
        const bool has_type = type.ok() && type->shape == scale.shape() &&
                              (type->dtype == scale.dtype() ||
                               (scale.dtype() == DType::kU8 && DTypeBytes(type->dtype) == 1));
        if (has_type) found.push_back(spec);
      }
    }
  }
  return found;
}

/// The only one of them.
absl::StatusOr<QuantizerSpec> InferSpecOfLayout(Usage usage, const QuantizedCopy& outlines,
                                                ScaleLayout layout) {
  const std::vector<QuantizerSpec> found = SpecsOfLayout(usage, outlines, layout);
  if (found.size() == 1) return found.front();
  return Doubt(usage, absl::StrCat("codes ", TensorText(outlines.data), " with ",
                                   std::string(ScaleLayoutName(layout)), " scales ",
                                   TensorText(outlines.scale_inv), " may be of ",
                                   found.empty() ? "no format" : "several formats"));
}

/// The length of blocks under fp32 scales: the usual one, which the table of formats has first,
/// where their shape may be its or is no other's; else the only one whose it is.
absl::StatusOr<QuantizerFormat> InferFp8Block(Usage usage, const QuantizedCopy& outlines) {
  const auto all = AllQuantizerFormats();
  const auto usual = std::find_if(all.begin(), all.end(), [](const ScalingTraits& traits) {
    return traits.scales == ScaleKind::kF32;
  });
  std::vector<QuantizerSpec> found = SpecsOfLayout(usage, outlines, ScaleLayout::kLogical);
  std::erase_if(found,
                [](const QuantizerSpec& spec) { return spec.traits().scales != ScaleKind::kF32; });
  if (found.empty()) return usual->format;
  const QuantizerFormat first = found.front().format;  // In the table's order.
  const bool is_of_one =
      std::all_of(found.begin(), found.end(),
                  [first](const QuantizerSpec& spec) { return spec.format == first; });
  if (first == usual->format || is_of_one) return first;
  return Doubt(usage, absl::StrCat("codes ", TensorText(outlines.data), " with scales ",
                                   TensorText(outlines.scale_inv), " may be of several formats"));
}

/// The format, if dtypes and shapes leave no doubt.
absl::StatusOr<QuantizerSpec> InferSpec(Usage usage, const QuantizedCopy& outlines,
                                        ScaleLayout layout) {
  const Tensor& data = outlines.data;
  const Tensor& scale = outlines.scale_inv;
  QuantizerSpec spec;
  spec.element = data.dtype();
  if (!scale.has_value()) {
    if (IsHighPrecision(data.dtype())) return spec;  // Identity.
    return RefuseAbsent(PartField(usage, "scale_inv"), "codes need their scales");
  }
  if (const auto levels = LevelFormatOf(data.dtype()); levels.has_value()) {
    return InferLevels(*levels, usage, data, scale);
  }
  if (layout != ScaleLayout::kLogical && scale.rank() == 2 && !outlines.amax.has_value()) {
    return InferSpecOfLayout(usage, outlines, layout);
  }
  const std::optional<ScaleKind> scales = ScaleKindOf(scale);
  if (scales == ScaleKind::kTwoLevel && data.dtype() == DType::kU8) {
    spec.element = DType::kF4E2M1x2;
  }
  std::optional<QuantizerFormat> format =
      scales.has_value() ? OnlyFormatOf(*scales, spec.element) : std::nullopt;
  if (scales == ScaleKind::kF32 && (IsFp8(spec.element) || IsFnuz(spec.element))) {
    QG_ASSIGN_OR_RETURN(format, InferFp8Block(usage, outlines));
  }
  if (!format.has_value()) {
    return Doubt(usage, absl::StrCat("codes ", TensorText(data), " with scales ", TensorText(scale),
                                     " may be of several formats"));
  }
  spec.format = *format;
  if (scales == ScaleKind::kF32) {
    // Tiles have one scale for 128 rows; one row has the same scales either way.
    const bool has_one_per_row = scale.rank() == 2 && scale.shape()[0] == data.rows();
    spec.block_dim = has_one_per_row ? 1 : 2;
  }
  if (scales == ScaleKind::kTwoLevel) {
    if (outlines.amax.has_value()) {
      return Doubt(usage, "nvfp4 codes do not say whether their scales are bound by 448 or by 256");
    }
    spec.scale_rule = ScaleRule::kSingleLevel;
  }
  return spec;
}

/// Gives U8 codes and scales, which files have for dtypes that they lack, their dtypes.
absl::Status RetypeTensor(DType dtype, const std::string& field, Tensor& tensor) {
  if (!tensor.has_value() || tensor.dtype() == dtype) return absl::OkStatus();
  if (tensor.dtype() == DType::kU8 && DTypeBytes(dtype) == 1) {
    QG_ASSIGN_OR_RETURN(tensor, tensor.Reinterpret(dtype, tensor.shape()));
    return absl::OkStatus();
  }
  return Refuse(field, TensorText(tensor),
                absl::StrCat("expected ", std::string(DTypeName(dtype))));
}

/// What the zero points of codes of levels are, by their dtype: as the description says, and as
/// some rule has them.
absl::StatusOr<ZeroPoint> CheckedZeroPoint(const QuantizedDescription& description, Usage usage,
                                           const QuantizerSpec& spec, const QuantizedCopy& copy) {
  const ZeroPoint zero_point = ZeroPointOf(copy);
  std::string rule;
  if (description.zero_point.has_value() && *description.zero_point != zero_point) {
    rule = absl::StrCat("the description of the codes says zero_point=",
                        std::string(ZeroPointName(*description.zero_point)));
  } else if (const absl::Status status = CheckZeroPoint(spec.format, spec.element, zero_point);
             !status.ok()) {
    rule = RefusalOf(status)->rule;
  } else {
    return zero_point;
  }
  const std::string field = PartField(usage, "zero_point");
  if (!copy.zero_point.has_value()) return RefuseAbsent(field, rule);
  return Refuse(field, TensorText(copy.zero_point), rule);
}

absl::Status CheckGivenPart(const char* part, Usage usage, const Tensor& given,
                            const Tensor& expected) {
  if (given.has_value() == expected.has_value() &&
      (!given.has_value() ||
       (given.dtype() == expected.dtype() && given.shape() == expected.shape()))) {
    return absl::OkStatus();
  }
  const std::string field = PartField(usage, part);
  if (!given.has_value()) {
    return RefuseAbsent(field, absl::StrCat("expected ", TensorText(expected)));
  }
  return Refuse(field, TensorText(given), absl::StrCat("expected ", TensorText(expected)));
}

/// Gives scales of groups their shape: libraries keep dims of 1, and those of runs by rows.
absl::Status Reshape(const Tensor& expected, Tensor& given) {
  if (!given.has_value() || !expected.has_value() ||
      given.element_count() != expected.element_count()) {
    return absl::OkStatus();
  }
  QG_ASSIGN_OR_RETURN(given, given.Reinterpret(given.dtype(), expected.shape()));
  return absl::OkStatus();
}

int64_t ElementCountOf(const Shape& shape) {
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  return count;
}

}  // namespace

std::string PartName(Usage usage, const char* part) {
  const std::string direction(UsageName(usage));
  return std::string(part) == "amax" ? absl::StrCat("amax_", direction)
                                     : absl::StrCat(direction, "_", part);
}

std::string PartField(Usage usage, const char* part) {
  return absl::StrCat("tensors[\"", PartName(usage, part), "\"]");
}

ScaleArray ScaleArrayOf(QuantizerFormat format, int block_dim, Usage usage, const Shape& shape) {
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
  return {format, block_dim, usage, rows, shape.back()};
}

Shape FlattenScales(const Shape& scales, const Shape& codes, ScaleLayout layout) {
  const bool has_lines = layout == ScaleLayout::kLogical || layout == ScaleLayout::kKMajor ||
                         layout == ScaleLayout::kUe8m0;
  if (!has_lines || scales.size() < 3 || scales.size() != codes.size()) return scales;
  const size_t row_dim = scales.size() - 2;
  if (!std::equal(scales.begin(), scales.begin() + row_dim, codes.begin())) return scales;
  // A row has one scale, or one for each block of some format.
  const auto formats = AllQuantizerFormats();
  const bool is_whole =
      std::any_of(formats.begin(), formats.end(), [&](const ScalingTraits& traits) {
        return scales[row_dim] * traits.block_length == codes[row_dim];
      });
  if (!is_whole) return scales;
  int64_t rows = 1;
  for (size_t i = 0; i <= row_dim; ++i) rows *= scales[i];
  return {rows, scales.back()};
}

absl::StatusOr<DescribedCopy> DescribeCopy(const QuantizedDescription& description, Usage usage,
                                           QuantizedCopy outlines) {
  if (Tensor& scales = outlines.scale_inv; scales.has_value()) {
    QG_ASSIGN_OR_RETURN(
        scales,
        scales.Reinterpret(scales.dtype(), FlattenScales(scales.shape(), outlines.data.shape(),
                                                         description.scale_layout)));
  }
  QuantizerSpec spec;
  if (description.spec.has_value()) {
    spec = *description.spec;
  } else {
    QG_ASSIGN_OR_RETURN(spec, InferSpec(usage, outlines, description.scale_layout));
  }
  DescribedCopy described;
  QuantizedCopy& copy = described.copy;
  copy = std::move(outlines);
  const DType element = spec.is_quantized() ? spec.element : copy.data.dtype();
  QG_RETURN_IF_ERROR(RetypeTensor(element, PartField(usage, "data"), copy.data));
  QG_ASSIGN_OR_RETURN(described.shape, SourceShape(spec, usage, copy.data));
  if (!description.shape.empty()) {
    // A columnwise copy does not tell the leading dims.
    const Shape& told = description.shape;
    const bool fits = CheckedElementCount(told, DType::kF32, "shape").ok() && !told.empty() &&
                      told.back() == described.shape.back() &&
                      ElementCountOf(told) == ElementCountOf(described.shape);
    if (!fits) {
      return Refuse("description.shape", ShapeText(told),
                    absl::StrCat("the codes are of ", ShapeText(described.shape)));
    }
    described.shape = told;
  }
  const bool has_two_levels = spec.traits().scales == ScaleKind::kTwoLevel;
  spec.row_scaled = has_two_levels && copy.amax.has_value() && copy.amax.shape() != Shape{1};
  if (has_two_levels && !copy.amax.has_value()) {
    spec.scale_rule = ScaleRule::kSingleLevel;
  }
  if (spec.traits().has_levels()) {
    QG_ASSIGN_OR_RETURN(spec.zero_point, CheckedZeroPoint(description, usage, spec, copy));
  }
  QG_ASSIGN_OR_RETURN(QuantizedCopy expected,
                      OutlineCopy(spec, usage, copy.data.dtype(), described.shape));
  described.scale_layout = description.scale_layout;
  if (described.scale_layout != ScaleLayout::kLogical && BlockLength(spec.format) > 1) {
    const auto type = ScaleArrayTypeOf(
        ScaleArrayOf(spec.format, spec.block_dim, usage, described.shape), described.scale_layout);
    if (!type.ok()) {
      return Refuse("description.scale_layout", ScaleLayoutName(described.scale_layout),
                    std::string(type.status().message()));
    }
    QG_ASSIGN_OR_RETURN(expected.scale_inv, OutlineTensor(type->dtype, type->shape));
  }
  if (copy.scale_inv.has_value() && expected.scale_inv.has_value()) {
    QG_RETURN_IF_ERROR(
        RetypeTensor(expected.scale_inv.dtype(), PartField(usage, "scale_inv"), copy.scale_inv));
  }
  if (spec.traits().has_levels()) {
    QG_RETURN_IF_ERROR(Reshape(expected.scale_inv, copy.scale_inv));
    QG_RETURN_IF_ERROR(Reshape(expected.zero_point, copy.zero_point));
  }
  QG_RETURN_IF_ERROR(CheckGivenPart("data", usage, copy.data, expected.data));
  QG_RETURN_IF_ERROR(CheckGivenPart("zero_point", usage, copy.zero_point, expected.zero_point));
  QG_RETURN_IF_ERROR(CheckGivenPart("scale_inv", usage, copy.scale_inv, expected.scale_inv));
  // Per-tensor FP8 does not need its amax to dequantize.
  if (has_two_levels) {
    QG_RETURN_IF_ERROR(CheckGivenPart("amax", usage, copy.amax, expected.amax));
  }
  expected.data = copy.data;
  expected.scale_inv = copy.scale_inv;
  expected.zero_point = copy.zero_point;
  expected.amax = copy.amax;
  expected.scale = copy.scale;
  if (description.spec.has_value()) expected.hadamard = description.spec->hadamard;
  copy = std::move(expected);
  return described;
}

}  // namespace quantgate
