#include "kernels/validate/quantized_plan.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/quantize/quantized_outline.h"

namespace quantgate {
namespace {

constexpr Usage kDirections[] = {Usage::kRowwise, Usage::kColumnwise};
constexpr char kScaleSlot[] = "tensors[\"scale\"]";

bool HasScales(const QuantizedCopy& copy) {
  return TraitsOf(copy.format).scales != ScaleKind::kNone;
}

/// Whether two directions are copies of one rule, up to a Hadamard transform.
bool IsOneFormat(const QuantizedCopy& a, const QuantizedCopy& b) {
  return a.format == b.format && a.element == b.element && a.block_dim == b.block_dim &&
         a.e4m3_max == b.e4m3_max && a.group == b.group;
}

Usage DirectionOfValues(const QuantizedTensor& quantized) {
  return quantized.rowwise.has_value() ? Usage::kRowwise : Usage::kColumnwise;
}

/// Puts one described direction into `given`.
absl::StatusOr<ScaleLayout> AddDirection(const QuantizedDescription& description, Usage usage,
                                         QuantizedCopy parts, QuantizedTensor& given) {
  QG_ASSIGN_OR_RETURN(DescribedCopy described, DescribeCopy(description, usage, std::move(parts)));
  const Shape& shape = described.shape;
  if (given.shape.empty()) {
    given.shape = shape;
  } else {
    const ScaleArray of_other = ScaleArrayOf(described.copy.format, 1, usage, given.shape);
    const ScaleArray of_this = ScaleArrayOf(described.copy.format, 1, usage, shape);
    if (of_other.rows != of_this.rows || of_other.columns != of_this.columns) {
      return Refuse(PartField(usage, "data"), TensorText(described.copy.data),
                    absl::StrCat("it is of a tensor of ", ShapeText(shape),
                                 ", and the rowwise codes are of ", ShapeText(given.shape)));
    }
  }
  given.copy(usage) = std::move(described.copy);
  return described.scale_layout;
}

absl::Status CheckTensorScale(const Tensor& scale) {
  if (!scale.has_value()) return absl::OkStatus();
  if (scale.dtype() == DType::kF32 && scale.shape() == Shape{1}) return absl::OkStatus();
  return Refuse(kScaleSlot, TensorText(scale), "it must be f32[1]");
}

/// The outlines that the scales of `given` have in the logical layout.
absl::StatusOr<QuantizedTensor> InLogicalLayout(const QuantizedTensor& given) {
  QuantizedTensor logical = given;
  for (const Usage usage : kDirections) {
    std::optional<QuantizedCopy>& copy = logical.copy(usage);
    if (!copy.has_value() || BlockLength(copy->format) == 1) continue;
    QG_ASSIGN_OR_RETURN(
        const ScaleArrayType type,
        ScaleArrayTypeOf(ScaleArrayOf(copy->format, copy->block_dim, usage, given.shape),
                         ScaleLayout::kLogical));
    QG_ASSIGN_OR_RETURN(copy->scale_inv, OutlineTensor(type.dtype, type.shape));
  }
  return logical;
}

}  // namespace

absl::StatusOr<QuantizedPlan> QuantizedPlan::Create(QuantizedParts parts) {
  QuantizedPlan plan;
  QuantizedTensor& given = plan.given_;
  given.source_dtype = parts.source_dtype;
  if (!parts.rowwise.data.has_value() && !parts.columnwise.data.has_value()) {
    return RefuseAbsent(PartField(Usage::kRowwise, "data"),
                        "a quantized tensor has rowwise codes, columnwise codes or both");
  }
  for (const Usage usage : kDirections) {
    const bool is_rowwise = usage == Usage::kRowwise;
    QuantizedCopy& of_usage = is_rowwise ? parts.rowwise : parts.columnwise;
    if (!of_usage.data.has_value()) {
      if (!of_usage.scale_inv.has_value() && !of_usage.amax.has_value()) continue;
      return RefuseAbsent(PartField(usage, "data"), "scales come with their codes");
    }
    const bool is_first = given.shape.empty();
    QG_ASSIGN_OR_RETURN(const ScaleLayout layout,
                        AddDirection(is_rowwise ? parts.of_rowwise : parts.of_columnwise, usage,
                                     std::move(of_usage), given));
    if (!is_first && layout != plan.layout_) {
      return Refuse("description.scale_layout", ScaleLayoutName(layout),
                    absl::StrCat("both directions have one, and rowwise scales are ",
                                 std::string(ScaleLayoutName(plan.layout_))));
    }
    plan.layout_ = layout;
  }
  const bool has_codes = (given.rowwise.has_value() && HasScales(*given.rowwise)) ||
                         (given.columnwise.has_value() && HasScales(*given.columnwise));
  if (!has_codes) {
    const Usage usage = DirectionOfValues(given);
    return Refuse(PartField(usage, "data"), TensorText(given.copy(usage)->data),
                  "identity has no codes; give the tensor itself");
  }
  given.is_hybrid = given.rowwise.has_value() && given.columnwise.has_value() &&
                    !IsOneFormat(*given.rowwise, *given.columnwise);
  QG_RETURN_IF_ERROR(CheckTensorScale(parts.scale));
  given.scale = std::move(parts.scale);
  if (plan.layout_ == ScaleLayout::kLogical) {
    plan.outline_ = given;
  } else {
    QG_ASSIGN_OR_RETURN(plan.outline_, InLogicalLayout(given));
  }
  return plan;
}

absl::Status QuantizedPlan::CheckValues() const {
  const Usage usage = DirectionOfValues(given_);
  const QuantizedCopy& copy = *given_.copy(usage);
  if (usage == Usage::kRowwise || TraitsOf(copy.format).scales != ScaleKind::kTwoLevel) {
    return absl::OkStatus();
  }
  return RefuseAbsent(PartField(Usage::kRowwise, "data"),
                      "columnwise nvfp4 codes are not dequantized, as in Transformer Engine, and "
                      "the values are needed too: give rowwise codes beside them");
}

absl::StatusOr<QuantizedPlan> QuantizedPlan::WithTensors(SlotLoader load) const {
  QuantizedPlan plan = *this;
  for (const Usage usage : kDirections) {
    std::optional<QuantizedCopy>& copy = plan.given_.copy(usage);
    if (!copy.has_value()) continue;
    QG_RETURN_IF_ERROR(LoadSlot(PartField(usage, "data"), load, copy->data));
    QG_RETURN_IF_ERROR(LoadSlot(PartField(usage, "scale_inv"), load, copy->scale_inv));
    QG_RETURN_IF_ERROR(LoadSlot(PartField(usage, "zero_point"), load, copy->zero_point));
    QG_RETURN_IF_ERROR(LoadSlot(PartField(usage, "amax"), load, copy->amax));
  }
  QG_RETURN_IF_ERROR(LoadSlot(kScaleSlot, load, plan.given_.scale));
  return plan;
}

absl::StatusOr<QuantizedTensor> QuantizedPlan::Codes(Engine& engine) const {
  QuantizedTensor codes = given_;
  QG_RETURN_IF_ERROR(ConvertAllScales(engine, layout_, ScaleLayout::kLogical, codes));
  return codes;
}

absl::Status ConvertAllScales(Engine& engine, ScaleLayout from, ScaleLayout to,
                              QuantizedTensor& quantized) {
  if (from == to) return absl::OkStatus();
  for (const Usage usage : kDirections) {
    std::optional<QuantizedCopy>& copy = quantized.copy(usage);
    if (!copy.has_value() || BlockLength(copy->format) == 1) continue;
    QG_ASSIGN_OR_RETURN(
        copy->scale_inv,
        engine.ConvertScales(copy->scale_inv,
                             ScaleArrayOf(copy->format, copy->block_dim, usage, quantized.shape),
                             from, to));
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> ValuesOf(Engine& engine, const QuantizedTensor& quantized,
                                const Cancellation* cancellation) {
  return engine.Dequantize(quantized, DirectionOfValues(quantized), quantized.source_dtype,
                           cancellation);
}

}  // namespace quantgate
