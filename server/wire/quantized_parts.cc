#include "server/wire/quantized_parts.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/quantize/quantized_outline.h"
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
  if (TraitsOf(copy.format).has_levels()) {
    proto.set_group(GroupText(copy.group));
    proto.set_zero_point(std::string(ZeroPointName(ZeroPointOf(copy))));
  }
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
  if (!proto.group().empty()) {
    const auto group = ParseGroup(proto.group());
    if (!group.ok()) return WithinField(field, group.status());
    spec.group = *group;
  }
  if (absl::Status status = CheckDescription(spec); !status.ok()) {
    return Refuse(field, proto.format(), std::string(status.message()));
  }
  return spec;
}

/// The zero points that a direction's description says; absent where it does not.
absl::StatusOr<std::optional<ZeroPoint>> ZeroPointFromProto(const v1::QuantizedDirection& proto,
                                                            const QuantizerSpec& spec,
                                                            const std::string& field) {
  if (proto.zero_point().empty()) return std::nullopt;
  if (!spec.traits().has_levels()) {
    return Refuse(field + ".zero_point", Printable(proto.zero_point()),
                  absl::StrCat("not a field of ", std::string(spec.traits().name)));
  }
  const auto zero_point = ParseZeroPoint(proto.zero_point());
  if (!zero_point.ok()) {
    return Refuse(field + ".zero_point", Printable(proto.zero_point()),
                  "must be none, integer or float");
  }
  if (const absl::Status status = CheckZeroPoint(spec.format, spec.element, *zero_point);
      !status.ok()) {
    return WithinField(field, status);
  }
  return *zero_point;
}

}  // namespace

std::string SlotOfPart(const std::string& part) { return absl::StrCat("tensors[\"", part, "\"]"); }

std::string PartOfSlot(const std::string& slot) {
  const size_t begin = slot.find('"') + 1;
  return slot.substr(begin, slot.rfind('"') - begin);
}

std::vector<NamedTensor> PartsOf(const QuantizedTensor& quantized) {
  std::vector<NamedTensor> parts;
  const auto add = [&](const char* name, const Tensor& tensor) {
    if (tensor.has_value()) parts.push_back({name, tensor});
  };
  for (const QuantizedPart& part : kQuantizedParts) {
    const std::optional<QuantizedCopy>& copy = quantized.copy(part.usage);
    if (!copy.has_value()) continue;
    const bool is_scale = part.member == &QuantizedCopy::scale;
    if (!is_scale || quantized.has_two_scales()) add(part.name, (*copy).*part.member);
  }
  if (quantized.has_two_scales()) return parts;
  const bool is_of_rowwise = quantized.rowwise.has_value() && quantized.rowwise->scale.has_value();
  const std::optional<QuantizedCopy>& scaled =
      is_of_rowwise ? quantized.rowwise : quantized.columnwise;
  if (scaled.has_value()) add(kScalePart, scaled->scale);
  return parts;
}

absl::StatusOr<ScaleLayout> ScaleLayoutFromName(const std::string& name, const std::string& field) {
  if (name.empty()) return ScaleLayout::kLogical;
  const auto layout = ParseScaleLayout(name);
  if (layout.ok()) return *layout;
  return Refuse(field, Printable(name), "must be one of " + ScaleLayoutNames());
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
    const std::string field = absl::StrCat("description.", std::string(UsageName(usage)));
    QG_ASSIGN_OR_RETURN(description.spec, SpecFromProto(direction, field));
    QG_ASSIGN_OR_RETURN(description.zero_point,
                        ZeroPointFromProto(direction, *description.spec, field));
    description.spec->hadamard = direction.hadamard();
  }
  description.shape.assign(proto.shape().begin(), proto.shape().end());
  QG_ASSIGN_OR_RETURN(description.scale_layout,
                      ScaleLayoutFromName(proto.scale_layout(), "description.scale_layout"));
  return description;
}

absl::StatusOr<SlotReferences> PartReferencesFromProto(
    const google::protobuf::Map<std::string, v1::TensorSource>& proto, const std::string& field,
    bool with_scale, int64_t tensor_bytes_max) {
  const std::string path = field.empty() ? "" : absl::StrCat(field, ".");
  SlotReferences references;
  for (const auto& [name, source] : InOrder(proto)) {
    const std::string part_name = name;
    const auto part = std::find_if(kQuantizedParts.begin(), kQuantizedParts.end(),
                                   [&](const QuantizedPart& one) { return one.name == part_name; });
    const bool is_part = name == kScalePart || part != kQuantizedParts.end();
    const bool is_scale = name == kScalePart ||
                          (part != kQuantizedParts.end() && part->member == &QuantizedCopy::scale);
    if (name == kAmaxHistoryPart || (is_scale && !with_scale)) continue;
    if (!is_part) {
      std::vector<std::string> names;
      for (const QuantizedPart& one : kQuantizedParts) names.emplace_back(one.name);
      return Refuse(
          absl::StrCat(path, "tensors[", Printable(name), "]"), "given",
          absl::StrCat("not a name that Quantize gives; those are ", absl::StrJoin(names, ", "),
                       ", ", kScalePart, " and ", kAmaxHistoryPart));
    }
    const std::string slot = SlotOfPart(name);
    QG_ASSIGN_OR_RETURN(TensorReference reference,
                        TensorReferenceFromProto(*source, path + slot, tensor_bytes_max));
    if (reference.has_value()) references.emplace(slot, std::move(reference));
  }
  return references;
}

absl::StatusOr<QuantizedReference> QuantizedReferenceFromProto(const v1::QuantizedSource& proto,
                                                               const std::string& field,
                                                               bool needs_source_dtype,
                                                               int64_t tensor_bytes_max) {
  QuantizedReference reference;
  reference.field = field;
  QG_ASSIGN_OR_RETURN(reference.parts,
                      PartReferencesFromProto(proto.tensors(), field, true, tensor_bytes_max));
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    auto description = QuantizedDescriptionFromProto(proto.description(), usage);
    if (!description.ok()) return WithinField(field, description.status());
    (usage == Usage::kRowwise ? reference.rowwise : reference.columnwise) = *std::move(description);
  }
  if (proto.source_dtype().empty()) {
    if (!needs_source_dtype) return reference;
    return RefuseAbsent(field + ".source_dtype",
                        "it is the dtype that the codes were made from, f32, bf16 or f16, which "
                        "what is computed from them has");
  }
  const auto dtype = ParseDType(proto.source_dtype());
  if (!dtype.ok() || !IsHighPrecision(*dtype)) {
    return Refuse(field + ".source_dtype", Printable(proto.source_dtype()),
                  "must be f32, bf16 or f16");
  }
  reference.source_dtype = *dtype;
  return reference;
}

absl::StatusOr<QuantizedPlan> OutlineOf(const QuantizedReference& reference) {
  QuantizedParts parts;
  for (const QuantizedPart& part : kQuantizedParts) {
    QuantizedCopy& copy = part.usage == Usage::kRowwise ? parts.rowwise : parts.columnwise;
    copy.*part.member = OutlineOf(reference.parts, SlotOfPart(part.name));
  }
  parts.scale = OutlineOf(reference.parts, SlotOfPart(kScalePart));
  parts.of_rowwise = reference.rowwise;
  parts.of_columnwise = reference.columnwise;
  parts.source_dtype = reference.source_dtype.value_or(DType::kF32);
  absl::StatusOr<QuantizedPlan> plan = QuantizedPlan::Create(std::move(parts));
  if (!plan.ok()) return WithinField(reference.field, plan.status());
  return plan;
}

absl::StatusOr<int64_t> LoadedBytesOf(const QuantizedReference& reference) {
  QG_ASSIGN_OR_RETURN(const QuantizedPlan plan, OutlineOf(reference));
  const QuantizedTensor& codes = plan.outline();
  QG_ASSIGN_OR_RETURN(const Tensor values, OutlineTensor(codes.source_dtype, codes.shape));
  size_t bytes = values.byte_size();
  for (const auto& [slot, part] : reference.parts) bytes += OutlineOf(part).byte_size();
  if (plan.scale_layout() == ScaleLayout::kLogical) return static_cast<int64_t>(bytes);
  for (const std::optional<QuantizedCopy>* copy : {&codes.rowwise, &codes.columnwise}) {
    const bool is_converted = copy->has_value() && BlockLength((*copy)->format) > 1;
    if (is_converted) bytes += (*copy)->scale_inv.byte_size();
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace quantgate
