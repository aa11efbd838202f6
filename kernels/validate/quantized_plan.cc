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

bool HasOneScale(const std::optional<QuantizedCopy>& copy) {
  return copy.has_value() && TraitsOf(copy->format).scales == ScaleKind::kTensor;
}

absl::Status CheckTensorScale(const std::string& field, const Tensor& scale) {
  if (!scale.has_value()) return absl::OkStatus();
  if (scale.dtype() == DType::kF32 && scale.shape() == Shape{1}) return absl::OkStatus();
  return Refuse(field, TensorText(scale), "it must be f32[1]");
}

/// Checks the scales of single copies, and `common`, which takes their place.
absl::Status CheckGivenScales(const QuantizedTensor& given, const Tensor& common) {
  for (const Usage usage : kDirections) {
    const std::optional<QuantizedCopy>& copy = given.copy(usage);
    if (!copy.has_value() || !copy->scale.has_value()) continue;
    const std::string field = PartField(usage, "scale");
    if (!HasOneScale(copy)) {
      return Refuse(field, TensorText(copy->scale),
                    absl::StrCat("only per-tensor FP8 has one, and these codes are ",
                                 std::string(QuantizerFormatName(copy->format))));
    }
    QG_RETURN_IF_ERROR(CheckTensorScale(field, copy->scale));
    if (!common.has_value()) continue;
    return Refuse(kScaleSlot, TensorText(common),
                  absl::StrCat("it is for every copy, and ", PartName(usage, "scale"),
                               " is given too: give one scale of both, or one of each"));
  }
  return CheckTensorScale(kScaleSlot, common);
}

/// Gives `scale` to the copies that it is of as far as formats tell. Two copies of one format may
/// still be of two rules (SettleCommonScale).
void PlaceCommonScale(const Tensor& scale, QuantizedTensor& given) {
  bool is_placed = false;
  for (const Usage usage : kDirections) {
    std::optional<QuantizedCopy>& copy = given.copy(usage);
    if (!HasOneScale(copy) || (is_placed && given.is_hybrid)) continue;
    copy->scale = scale;
    is_placed = true;
  }
}

/// Takes a common scale from the columnwise copy if its scale_inv is not that of the rowwise one:
/// the two are of rules of their own, and the scale is that of the rowwise one.
absl::Status SettleCommonScale(Engine& engine, QuantizedTensor& codes) {
  if (codes.is_hybrid || !HasOneScale(codes.rowwise) || !HasOneScale(codes.columnwise)) {
    return absl::OkStatus();
  }
  QG_ASSIGN_OR_RETURN(const Tensor rowwise, engine.ToHost(codes.rowwise->scale_inv, nullptr));
  QG_ASSIGN_OR_RETURN(const Tensor columnwise, engine.ToHost(codes.columnwise->scale_inv, nullptr));
  if (*rowwise.as<uint32_t>() == *columnwise.as<uint32_t>()) return absl::OkStatus();
  codes.is_hybrid = true;
  codes.columnwise->scale = Tensor();
  return absl::OkStatus();
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
      const bool has_parts = of_usage.scale_inv.has_value() || of_usage.zero_point.has_value() ||
                             of_usage.amax.has_value() || of_usage.scale.has_value();
      if (!has_parts) continue;
      return RefuseAbsent(PartField(usage, "data"), "scales and zero points come with their codes");
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
  QG_RETURN_IF_ERROR(CheckGivenScales(given, parts.scale));
  given.is_hybrid = given.rowwise.has_value() && given.columnwise.has_value() &&
                    (given.rowwise->scale.has_value() || given.columnwise->scale.has_value() ||
                     !IsOneFormat(*given.rowwise, *given.columnwise));
  plan.has_common_scale_ = parts.scale.has_value();
  if (plan.has_common_scale_) PlaceCommonScale(parts.scale, given);
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
    QG_RETURN_IF_ERROR(CheckZeroPointValues(PartField(usage, "zero_point"), *copy));
    QG_RETURN_IF_ERROR(LoadSlot(PartField(usage, "amax"), load, copy->amax));
    const std::string scale = has_common_scale_ ? kScaleSlot : PartField(usage, "scale");
    QG_RETURN_IF_ERROR(LoadSlot(scale, load, copy->scale));
  }
  return plan;
}

absl::StatusOr<QuantizedTensor> QuantizedPlan::Codes(Engine& engine) const {
  QuantizedTensor codes = given_;
  if (has_common_scale_) QG_RETURN_IF_ERROR(SettleCommonScale(engine, codes));
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
