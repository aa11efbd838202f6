#include "kernels/quantize/quantized_outline.h"

#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/round_up.h"
#include "kernels/base/status_macros.h"
#include "kernels/quantize/general/level_forms.h"
#include "kernels/quantize/scale_layout.h"

namespace quantgate {

absl::StatusOr<Tensor> OutlineTensor(DType dtype, Shape shape) {
  return Tensor::View(dtype, std::move(shape),
                      Buffer::Wrap(nullptr, std::numeric_limits<size_t>::max(), nullptr));
}

Shape GroupShape(QuantizerFormat format, int group, Usage usage, int64_t rows, int64_t columns) {
  if (TraitsOf(format).has_runs) return {DivideUp(rows * columns, int64_t{group})};
  const bool is_rowwise = usage == Usage::kRowwise;
  const int64_t lines = is_rowwise ? rows : columns, length = is_rowwise ? columns : rows;
  if (group == kTensorGroup) return {1};
  if (group == kLineGroup) return {lines};
  return {lines, DivideUp(length, int64_t{group})};
}

ZeroPoint ZeroPointOf(const QuantizedCopy& copy) {
  if (!copy.zero_point.has_value()) return ZeroPoint::kNone;
  return copy.zero_point.dtype() == DType::kF32 ? ZeroPoint::kFloat : ZeroPoint::kInteger;
}

absl::Status CheckZeroPointValues(const std::string& field, const QuantizedCopy& copy) {
  const Tensor& zeros = copy.zero_point;
  const bool is_on_host =
      zeros.has_value() && zeros.data() != nullptr && zeros.space() == MemorySpace::kHost;
  if (!is_on_host || ZeroPointOf(copy) != ZeroPoint::kInteger) return absl::OkStatus();
  const Levels levels = LevelsOf(copy.element);
  for (int64_t i = 0; i < zeros.element_count(); ++i) {
    const int zero = zeros.dtype() == DType::kI8 ? zeros.as<int8_t>()[i] : zeros.as<uint8_t>()[i];
    if (zero >= LowOf(levels) && zero <= HighOf(levels)) continue;
    return Refuse(
        absl::StrCat(field, "[", i, "]"), absl::StrCat(zero),
        absl::StrCat("an integer zero point is a code: of ", std::string(DTypeName(copy.element)),
                     " from ", LowOf(levels), " to ", HighOf(levels)));
  }
  return absl::OkStatus();
}

DType ZeroDType(DType element) {
  return element == DType::kI8 || element == DType::kI4x2 ? DType::kI8 : DType::kU8;
}

absl::StatusOr<QuantizedCopy> OutlineCopy(const QuantizerSpec& spec, Usage usage, DType source,
                                          const Shape& shape) {
  QuantizedCopy copy;
  copy.format = spec.format;
  copy.element = spec.ElementOf(source);
  copy.is_cast = spec.casts();
  copy.block_dim = spec.block_dim;
  copy.e4m3_max = spec.e4m3_max;
  copy.hadamard = spec.hadamard;
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
  const int64_t columns = shape.back();
  const bool is_rowwise = usage == Usage::kRowwise;
  const ScalingTraits& traits = spec.traits();
  const bool is_turned = !is_rowwise && traits.turns_columnwise;
  Shape data = is_rowwise ? shape : is_turned ? Shape{columns, rows} : Shape{rows, columns};
  if (!spec.is_quantized()) data = shape;
  data.back() /= CodesPerElement(copy.element);
  QG_ASSIGN_OR_RETURN(copy.data, OutlineTensor(copy.element, std::move(data)));
  if (!spec.is_quantized()) return copy;
  if (traits.has_levels()) {
    copy.group = ResolveGroup(spec.group, spec.format);
    const Shape scales = GroupShape(copy.format, copy.group, usage, rows, columns);
    QG_ASSIGN_OR_RETURN(copy.scale_inv, OutlineTensor(DType::kF32, scales));
    if (spec.zero_point == ZeroPoint::kNone) return copy;
    const DType zero = spec.zero_point == ZeroPoint::kFloat ? DType::kF32 : ZeroDType(copy.element);
    QG_ASSIGN_OR_RETURN(copy.zero_point, OutlineTensor(zero, scales));
    return copy;
  }
  if (traits.scales == ScaleKind::kTensor) {
    QG_ASSIGN_OR_RETURN(copy.scale_inv, OutlineTensor(DType::kF32, {1}));
    QG_ASSIGN_OR_RETURN(copy.amax, OutlineTensor(DType::kF32, {1}));
    QG_ASSIGN_OR_RETURN(copy.scale, OutlineTensor(DType::kF32, {1}));
    return copy;
  }
  if (traits.scales == ScaleKind::kLine) {
    QG_ASSIGN_OR_RETURN(copy.scale_inv, OutlineTensor(DType::kF32, {is_rowwise ? rows : columns}));
    return copy;
  }
  QG_ASSIGN_OR_RETURN(
      const ScaleArrayType scales,
      ScaleArrayTypeOf({spec.format, spec.block_dim, usage, rows, columns}, ScaleLayout::kLogical));
  QG_ASSIGN_OR_RETURN(copy.scale_inv, OutlineTensor(scales.dtype, scales.shape));
  const bool has_amax = traits.scales == ScaleKind::kTwoLevel && HasTensorScale(spec.scale_rule);
  if (has_amax) {
    const int64_t count = !spec.row_scaled ? 1 : is_rowwise ? rows : columns;
    QG_ASSIGN_OR_RETURN(copy.amax, OutlineTensor(DType::kF32, {count}));
  }
  return copy;
}

}  // namespace quantgate
