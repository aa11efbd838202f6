#include "server/wire/quantized_parts.h"

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "server/wire/convert_tensor.h"
#include "server/wire/request_fields.h"

namespace quantgate {
namespace {

v1::QuantizedDirection DirectionToProto(const QuantizedCopy& copy) {
  v1::QuantizedDirection proto;
  proto.set_format(std::string(QuantizerFormatName(copy.format)));
  proto.set_element(std::string(DTypeName(copy.element)));
  proto.set_block_dim(copy.block_dim);
  proto.set_e4m3_max(copy.e4m3_max);
  proto.set_hadamard(copy.hadamard);
  return proto;
}

absl::StatusOr<QuantizerFormat> FormatFromName(const std::string& name, const std::string& field) {
  for (const ScalingTraits& traits : AllQuantizerFormats()) {
    if (traits.name == name) return traits.format;
  }
  return Refuse(field, Printable(name), "must be one of " + QuantizerFormatNames());
}

/// The quantizer that a direction's description stands for.
absl::StatusOr<QuantizerSpec> SpecFromProto(const v1::QuantizedDirection& proto,
                                            const std::string& field) {
  QuantizerSpec spec;
  QG_ASSIGN_OR_RETURN(spec.format, FormatFromName(proto.format(), field + ".format"));
  if (spec.is_quantized()) spec.element = spec.traits().elements.front();
  if (!proto.element().empty() && spec.is_quantized()) {
    const auto element = ParseDType(proto.element());
    if (!element.ok()) {
      return Refuse(field + ".element", Printable(proto.element()),
                    "must be the name of an element dtype");
    }
    spec.element = *element;
  }
  if (proto.block_dim() != 0) spec.block_dim = proto.block_dim();
  if (proto.e4m3_max() != 0) spec.e4m3_max = proto.e4m3_max();
  // A description has the bound of 4over6, not its rule, which dequantization does not need.
  if (spec.e4m3_max == 256) spec.four_over_six = FourOverSix::kMae;
  if (absl::Status status = CheckQuantizer(spec); !status.ok()) {
    return Refuse(field, proto.format(), std::string(status.message()));
  }
  return spec;
}

}  // namespace

absl::StatusOr<ScaleLayout> ScaleLayoutFromName(const std::string& name, const std::string& field) {
  if (name.empty()) return ScaleLayout::kLogical;
  const auto layout = ParseScaleLayout(name);
  if (layout.ok()) return *layout;
  return Refuse(field, Printable(name), "must be logical, padded or swizzled");
}

v1::QuantizedDescription QuantizedDescriptionToProto(const QuantizedTensor& quantized,
                                                     ScaleLayout scale_layout) {
  v1::QuantizedDescription proto;
  if (scale_layout != ScaleLayout::kLogical) {
    proto.set_scale_layout(std::string(ScaleLayoutName(scale_layout)));
  }
  proto.mutable_shape()->Add(quantized.shape.begin(), quantized.shape.end());
  if (quantized.rowwise.has_value()) {
    *proto.mutable_rowwise() = DirectionToProto(*quantized.rowwise);
  }
  if (quantized.columnwise.has_value()) {
    *proto.mutable_columnwise() = DirectionToProto(*quantized.columnwise);
  }
  return proto;
}

absl::StatusOr<QuantizedDescription> QuantizedDescriptionFromProto(
    const v1::QuantizedDescription& proto, Usage usage) {
  QuantizedDescription description;
  const bool is_rowwise = usage == Usage::kRowwise;
  if (is_rowwise ? proto.has_rowwise() : proto.has_columnwise()) {
    const v1::QuantizedDirection& direction = is_rowwise ? proto.rowwise() : proto.columnwise();
    QG_ASSIGN_OR_RETURN(
        description.spec,
        SpecFromProto(direction, absl::StrCat("description.", std::string(UsageName(usage)))));
    description.spec->hadamard = direction.hadamard();
  }
  description.shape.assign(proto.shape().begin(), proto.shape().end());
  QG_ASSIGN_OR_RETURN(description.scale_layout,
                      ScaleLayoutFromName(proto.scale_layout(), "description.scale_layout"));
  return description;
}

}  // namespace quantgate
