#include "kernels/quantize/general/level_forms.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"

namespace quantgate {
namespace {

using enum QuantizerFormat;
using enum ScaleRule;
using enum DType;

constexpr LevelForm kForms[] = {
    {kInt8, kTorchao, kI8, ZeroPoint::kNone},
    {kInt8, kTorchao, kI8, ZeroPoint::kInteger},
    {kInt8, kTorchao, kU8, ZeroPoint::kInteger},
    {kInt8, kCompressedTensors, kI8, ZeroPoint::kNone},
    {kInt8, kCompressedTensors, kI8, ZeroPoint::kInteger},
    {kInt8, kModelopt, kI8, ZeroPoint::kNone},
    {kInt8, kQuanto, kI8, ZeroPoint::kNone},
    {kInt8, kBitsandbytes, kI8, ZeroPoint::kNone},
    {kInt8, kBitnet, kI8, ZeroPoint::kNone},
    {kInt8, kGguf, kI8, ZeroPoint::kNone},
    {kInt8, kQwix, kI8, ZeroPoint::kNone},
    {kInt8, kQwix, kI8, ZeroPoint::kInteger},
    {kInt4, kTorchao, kI4x2, ZeroPoint::kNone},
    {kInt4, kTorchao, kI4x2, ZeroPoint::kInteger},
    {kInt4, kTorchao, kU4x2, ZeroPoint::kInteger},
    {kInt4, kCompressedTensors, kI4x2, ZeroPoint::kNone},
    {kInt4, kCompressedTensors, kI4x2, ZeroPoint::kInteger},
    {kInt4, kModelopt, kI4x2, ZeroPoint::kNone},
    {kInt4, kQuanto, kU4x2, ZeroPoint::kFloat},
    {kInt4, kQuanto, kU4x2, ZeroPoint::kInteger},
    {kInt4, kTinygemm, kI4x2, ZeroPoint::kFloat},
    {kInt4, kGguf, kI4x2, ZeroPoint::kNone},
    {kInt4, kGguf, kU4x2, ZeroPoint::kFloat},
    {kInt4, kQwix, kI4x2, ZeroPoint::kNone},
    {kInt4, kQwix, kI4x2, ZeroPoint::kInteger},
    {kNf4, kBitsandbytes, kNf4x2, ZeroPoint::kNone},
    {kNf4, kTorchao, kNf4x2, ZeroPoint::kNone},
    {kNf4, kModelopt, kNf4x2, ZeroPoint::kNone},
    {kNf4, kQwix, kNf4x2, ZeroPoint::kNone},
    {QuantizerFormat::kBnbFp4, kBitsandbytes, kBnbFp4x2, ZeroPoint::kNone},
};

std::string FormText(const LevelForm& form) {
  return absl::StrCat(std::string(DTypeName(form.element)), " with zero_point ",
                      std::string(ZeroPointName(form.zero_point)));
}

}  // namespace

std::span<const LevelForm> AllLevelForms() { return kForms; }

LevelForm FirstForm(QuantizerFormat format, ScaleRule rule, std::optional<ZeroPoint> zero_point) {
  rule = ResolveScaleRule(rule, format);
  for (const LevelForm& form : kForms) {
    if (form.format == format && form.rule == rule &&
        form.zero_point == zero_point.value_or(form.zero_point)) {
      return form;
    }
  }
  return {format, rule, TraitsOf(format).elements.front(), zero_point.value_or(ZeroPoint::kNone)};
}

Levels LevelsOf(DType element) {
  switch (element) {
    case DType::kU8:
      return Levels::kU8;
    case DType::kI4x2:
      return Levels::kI4;
    case DType::kU4x2:
      return Levels::kU4;
    case DType::kNf4x2:
      return Levels::kNf4;
    case DType::kBnbFp4x2:
      return Levels::kBnbFp4;
    default:
      return Levels::kI8;
  }
}

absl::Status CheckLevelForm(const QuantizerSpec& spec) {
  const ScalingTraits& traits = spec.traits();
  const int group = ResolveGroup(spec.group, spec.format);
  const bool is_length = group >= 2 && group <= kGroupMax;
  if (traits.has_runs ? !is_length : !is_length && group != kTensorGroup && group != kLineGroup) {
    return Refuse("group", GroupText(group),
                  absl::StrCat(std::string(traits.name), " has a scale per ",
                               traits.has_runs ? "" : "tensor, per row or per ", "2 to ", kGroupMax,
                               " elements"));
  }
  const ScaleRule rule = ResolveScaleRule(spec.scale_rule, spec.format);
  if (spec.operation_dtype != StepDType::kF32 && (rule != kTorchao || traits.has_runs)) {
    return Refuse("operation_dtype", StepDTypeName(spec.operation_dtype),
                  absl::StrCat("of ", std::string(traits.name),
                               ", scale_rule torchao of integers alone leaves it open"));
  }
  std::string forms;
  for (const LevelForm& form : kForms) {
    if (form.format != spec.format || form.rule != rule) continue;
    if (form.element == spec.element && form.zero_point == spec.zero_point) {
      return absl::OkStatus();
    }
    absl::StrAppend(&forms, forms.empty() ? "" : ", ", FormText(form));
  }
  return Refuse("zero_point", ZeroPointName(spec.zero_point),
                absl::StrCat("the element is ", std::string(DTypeName(spec.element)), ", and ",
                             std::string(traits.name), " by the rule ",
                             std::string(ScaleRuleName(rule)), " has ", forms));
}

absl::Status CheckZeroPoint(QuantizerFormat format, DType element, ZeroPoint zero_point) {
  std::vector<std::string> names;
  for (const ZeroPoint known : {ZeroPoint::kNone, ZeroPoint::kInteger, ZeroPoint::kFloat}) {
    const bool has_form =
        std::any_of(std::begin(kForms), std::end(kForms), [&](const LevelForm& form) {
          return form.format == format && form.element == element && form.zero_point == known;
        });
    if (has_form && known == zero_point) return absl::OkStatus();
    if (has_form) names.emplace_back(ZeroPointName(known));
  }
  return Refuse("zero_point", ZeroPointName(zero_point),
                absl::StrCat("codes ", std::string(DTypeName(element)), " of ",
                             std::string(TraitsOf(format).name), " have zero_point ",
                             absl::StrJoin(names, " or ")));
}

absl::Status CheckLevelSource(const QuantizerSpec& spec, Usage usage, int64_t rows,
                              int64_t columns) {
  const std::string name(spec.traits().name);
  if (spec.traits().has_runs && usage == Usage::kColumnwise) {
    return Refuse("usages", "columnwise",
                  absl::StrCat(name, " has scales of runs of the row-major tensor: rowwise alone"));
  }
  const int64_t length = usage == Usage::kRowwise ? columns : rows;
  if (length % CodesPerElement(spec.element) == 0) return absl::OkStatus();
  return Refuse("source", absl::StrCat(rows, "x", columns),
                absl::StrCat(std::string(UsageName(usage)), " codes of ", name, " are two a byte: ",
                             usage == Usage::kRowwise ? "K" : "M", " must be even"));
}

}  // namespace quantgate
