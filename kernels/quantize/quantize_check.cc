// Checks quantizers, and tensors that they are to quantize: docs/quantizers.md section 7.1.
#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/quantize/format_quantizers.h"
#include "kernels/quantize/general/level_forms.h"

namespace quantgate {
namespace {

/// The field of the rule of one direction.
std::string PathOf(const Quantizer& quantizer, Usage usage) {
  if (quantizer.rowwise == quantizer.columnwise) return "quantizer";
  return absl::StrCat("quantizer.", std::string(UsageName(usage)));
}

/// Joins names as "a", "a or b", "a, b or c".
template <class Value, class Name>
std::string Alternatives(std::span<const Value> values, Name name) {
  std::string text;
  for (size_t i = 0; i < values.size(); ++i) {
    const char* const separator = i == 0 ? "" : i + 1 == values.size() ? " or " : ", ";
    absl::StrAppend(&text, separator, std::string(name(values[i])));
  }
  return text;
}

absl::Status CheckElement(const QuantizerSpec& spec) {
  const std::span<const DType> elements = spec.traits().elements;
  if (std::find(elements.begin(), elements.end(), spec.element) != elements.end()) {
    return absl::OkStatus();
  }
  return Refuse("element", DTypeName(spec.element),
                absl::StrCat(std::string(spec.traits().name), " has elements ",
                             Alternatives(elements, &DTypeName)));
}

/// The elements that a library's E8M0 rule is for.
absl::Status CheckElementOfRule(const QuantizerSpec& spec) {
  static constexpr DType kCompressedTensors[] = {DType::kF8E4M3, DType::kF6E2M3, DType::kF4E2M1x2};
  static constexpr DType kFp8AndFp4[] = {DType::kF8E4M3, DType::kF4E2M1x2};
  static constexpr DType kFp4[] = {DType::kF4E2M1x2};
  std::span<const DType> elements;
  if (spec.traits().scales == ScaleKind::kE8m0) {
    switch (spec.scale_rule) {
      case ScaleRule::kCompressedTensors:
        elements = kCompressedTensors;
        break;
      case ScaleRule::kModelopt:
      case ScaleRule::kQwix:
        elements = kFp8AndFp4;
        break;
      case ScaleRule::kGguf:
        elements = kFp4;
        break;
      default:
        break;
    }
  }
  if (elements.empty() ||
      std::find(elements.begin(), elements.end(), spec.element) != elements.end()) {
    return absl::OkStatus();
  }
  return Refuse(
      "element", DTypeName(spec.element),
      absl::StrCat("the library of scale_rule ", std::string(ScaleRuleName(spec.scale_rule)),
                   " has ", Alternatives(elements, &DTypeName)));
}

/// The first of the fields about steps that fp32 scales alone have which is not at its default: its
/// name and value.
std::pair<std::string_view, std::string_view> FirstStepOfFp32Scales(const QuantizerSpec& spec) {
  const QuantizerSpec plain;
  if (spec.scale_dtype != plain.scale_dtype)
    return {"scale_dtype", StepDTypeName(spec.scale_dtype)};
  if (spec.element_operation != plain.element_operation) {
    return {"element_operation", ElementOperationName(spec.element_operation)};
  }
  if (spec.operation_dtype != plain.operation_dtype) {
    return {"operation_dtype", StepDTypeName(spec.operation_dtype)};
  }
  if (spec.zero_scale != plain.zero_scale) return {"zero_scale", ZeroScaleName(spec.zero_scale)};
  return {};
}

/// Refuses fields that a library's rule for fp32 scales does not leave open.
absl::Status CheckStepsOfRule(const QuantizerSpec& spec) {
  const bool is_qwix = spec.scale_rule == ScaleRule::kQwix;
  const bool is_float64 = spec.scale_rule == ScaleRule::kFloat64;
  const std::string rule(ScaleRuleName(spec.scale_rule));
  if (is_qwix) {
    const auto [field, value] = FirstStepOfFp32Scales(spec);
    if (!field.empty())
      return Refuse(field, value, "scale_rule qwix says how each step is rounded");
    if (spec.amax_epsilon != 0.0f) {
      return Refuse("amax_epsilon", absl::StrCat(spec.amax_epsilon),
                    "scale_rule qwix has a floor of its own");
    }
  }
  if (spec.power_2_scale && (is_qwix || spec.scale_rule == ScaleRule::kInverse)) {
    return Refuse("power_2_scale", "true", absl::StrCat("scale_rule ", rule, " has none"));
  }
  if (is_float64 && spec.scale_dtype != StepDType::kF32) {
    return Refuse("scale_dtype", StepDTypeName(spec.scale_dtype),
                  "scale_rule float64 rounds to fp32");
  }
  if (is_float64 && spec.zero_scale != ZeroScale::kOne) {
    return Refuse("zero_scale", ZeroScaleName(spec.zero_scale),
                  "under scale_rule float64 no amax is below 1e-12");
  }
  return absl::OkStatus();
}

/// Checks that rounding, overflow and scale rule fit the format.
absl::Status CheckRules(const QuantizerSpec& spec) {
  const std::string format(QuantizerFormatName(spec.format));
  const std::span<const ScaleRule> rules = spec.traits().rules;
  const ScaleRule rule = ResolveScaleRule(spec.scale_rule, spec.format);
  if (std::find(rules.begin(), rules.end(), rule) == rules.end()) {
    std::string names;
    for (const ScaleRule known : rules) {
      absl::StrAppend(&names, names.empty() ? "" : ", ", std::string(ScaleRuleName(known)));
    }
    return Refuse("scale_rule", ScaleRuleName(rule), absl::StrCat(format, " has ", names));
  }
  if (spec.element_rounding == ElementRounding::kStochastic &&
      spec.traits().scales != ScaleKind::kTwoLevel) {
    return Refuse("element_rounding", "stochastic",
                  absl::StrCat("only nvfp4 has it, not ", format));
  }
  if (spec.overflow == Overflow::kNan && !IsFp8(spec.element)) {
    return Refuse("overflow", "nan",
                  absl::StrCat(std::string(DTypeName(spec.element)), " has no NaN"));
  }
  if (spec.traits().has_levels()) return CheckLevelForm(spec);
  QG_RETURN_IF_ERROR(CheckElementOfRule(spec));
  return CheckStepsOfRule(spec);
}

/// Checks that fields of other formats have the defaults, since they would be ignored silently.
absl::Status CheckForeignFields(const QuantizerSpec& spec) {
  const ScalingTraits& traits = spec.traits();
  const bool has_tensor_scale = traits.scales == ScaleKind::kTensor;
  const bool has_fp32_scales = (has_tensor_scale && spec.scaling == Scaling::kCurrent) ||
                               traits.scales == ScaleKind::kLine ||
                               traits.scales == ScaleKind::kF32;
  const std::string rule = absl::StrCat(
      "not a field of ", std::string(traits.name),
      has_tensor_scale && spec.scaling == Scaling::kDelayed ? " with delayed scaling" : "");
  const QuantizerSpec plain;
  if (!spec.is_quantized()) {
    if (!spec.casts() && spec.element != plain.element) {
      return Refuse("element", DTypeName(spec.element), "identity casts to f32, bf16 or f16");
    }
    if (spec.overflow != plain.overflow) {
      return Refuse("overflow", OverflowName(spec.overflow), rule);
    }
    if (spec.scale_rule != plain.scale_rule) {
      return Refuse("scale_rule", ScaleRuleName(spec.scale_rule), rule);
    }
    if (spec.element_rounding != plain.element_rounding) {
      return Refuse("element_rounding", ElementRoundingName(spec.element_rounding), rule);
    }
  }
  if (!spec.is_quantized() && spec.zero_sign != SignOfZero::kKeep) {
    return Refuse("zero_sign", SignOfZeroName(spec.zero_sign), rule);
  }
  QuantizerSpec steps = spec;
  if (traits.has_levels()) steps.operation_dtype = plain.operation_dtype;  // CheckLevelForm.
  const auto [step, value] = FirstStepOfFp32Scales(steps);
  if (!has_fp32_scales && !step.empty()) return Refuse(step, value, rule);
  if (traits.has_levels()) {
    if (spec.overflow != plain.overflow) {
      return Refuse("overflow", OverflowName(spec.overflow), rule);
    }
    if (spec.element_rounding != plain.element_rounding) {
      return Refuse("element_rounding", ElementRoundingName(spec.element_rounding), rule);
    }
    if (spec.zero_sign != plain.zero_sign) {
      return Refuse("zero_sign", SignOfZeroName(spec.zero_sign), rule);
    }
  } else {
    if (spec.group != plain.group) return Refuse("group", GroupText(spec.group), rule);
    if (spec.zero_point != plain.zero_point) {
      return Refuse("zero_point", ZeroPointName(spec.zero_point), rule);
    }
  }
  if (has_tensor_scale && spec.scaling == Scaling::kDelayed && IsLibraryRule(spec.scale_rule)) {
    return Refuse("scale_rule", ScaleRuleName(spec.scale_rule), rule);
  }
  if (!traits.has_blocks() && spec.block_dim != 1) return Refuse("block_dim", "2", rule);
  if (!has_tensor_scale && spec.scaling != Scaling::kCurrent) {
    return Refuse("scaling", "delayed", rule);
  }
  // Delayed scaling makes no scale, but fragments are given the inverse of one and its next amax.
  const bool has_knob = has_fp32_scales || traits.scales == ScaleKind::kE8m0 ||
                        (has_tensor_scale && spec.flush_subnormals == FlushSubnormals::kNever);
  if (!has_knob && spec.flush_subnormals != plain.flush_subnormals) {
    return Refuse("flush_subnormals", FlushSubnormalsName(spec.flush_subnormals), rule);
  }
  if (spec.has_library_steps() && spec.flush_subnormals != plain.flush_subnormals) {
    return Refuse("flush_subnormals", FlushSubnormalsName(spec.flush_subnormals),
                  "it is of Transformer Engine's own steps");
  }
  if (!has_fp32_scales && spec.power_2_scale) return Refuse("power_2_scale", "true", rule);
  if (!has_fp32_scales && spec.amax_epsilon != 0.0f) {
    return Refuse("amax_epsilon", absl::StrCat(spec.amax_epsilon), rule);
  }
  if (traits.scales == ScaleKind::kTwoLevel) return absl::OkStatus();
  if (spec.hadamard) return Refuse("hadamard", "true", rule);
  if (spec.row_scaled) return Refuse("row_scaled", "true", rule);
  if (spec.four_over_six != FourOverSix::kNone) {
    return Refuse("4over6", FourOverSixName(spec.four_over_six), rule);
  }
  if (spec.e4m3_max != 448) return Refuse("e4m3_max", absl::StrCat(spec.e4m3_max), rule);
  return absl::OkStatus();
}

/// Refuses the combinations that NVFP4 does not have.
absl::Status CheckNvfp4(const QuantizerSpec& spec, Usage usage) {
  const bool stochastic = spec.element_rounding == ElementRounding::kStochastic;
  const bool picks = spec.four_over_six != FourOverSix::kNone;
  const bool tiles = spec.block_dim == 2;
  const std::string_view picked = FourOverSixName(spec.four_over_six);
  if (spec.hadamard && tiles) {
    return Refuse("hadamard", "true", "only blocks of rows (block_dim 1) are transformed");
  }
  if (picks && spec.hadamard) return Refuse("4over6", picked, "it and hadamard exclude each other");
  if (picks && spec.element_rounding != ElementRounding::kNearestEven) {
    return Refuse(
        "4over6", picked,
        absl::StrCat("it compares codes rounded to nearest even, and element_rounding is ",
                     std::string(ElementRoundingName(spec.element_rounding))));
  }
  if (spec.row_scaled && (spec.hadamard || tiles || stochastic)) {
    return Refuse("row_scaled", "true",
                  spec.hadamard ? "it does not go with hadamard"
                  : tiles       ? "it does not go with tiles (block_dim 2)"
                                : "it does not go with stochastic rounding");
  }
  if (picks && spec.row_scaled && usage == Usage::kColumnwise) {
    return Refuse("4over6", picked, "a row_scaled columnwise copy cannot have it");
  }
  if (spec.has_library_steps()) {
    // Their rules are of sources as they are, under one scale, to nearest.
    const bool is_rule = IsLibraryRule(spec.scale_rule);
    const bool is_sign = spec.zero_sign != SignOfZero::kKeep;
    const std::string with = absl::StrCat(
        "it does not go with ",
        is_rule   ? absl::StrCat("scale_rule ", std::string(ScaleRuleName(spec.scale_rule)))
        : is_sign ? absl::StrCat("zero_sign ", std::string(SignOfZeroName(spec.zero_sign)))
                  : "element_rounding nearest_zero");
    if (spec.hadamard) return Refuse("hadamard", "true", with);
    if (spec.row_scaled) return Refuse("row_scaled", "true", with);
    if (picks) return Refuse("4over6", picked, with);
    if (stochastic) return Refuse("element_rounding", "stochastic", with);
  }
  if (spec.e4m3_max != 448 && !(spec.e4m3_max == 256 && picks)) {
    return Refuse("e4m3_max", absl::StrCat(spec.e4m3_max), "must be 448, or 256 under 4over6");
  }
  if ((picks || spec.row_scaled) &&
      ResolveScaleRule(spec.scale_rule, spec.format) != ScaleRule::kTwoLevel) {
    return Refuse("scale_rule", ScaleRuleName(spec.scale_rule),
                  "4over6 and row_scaled need two_level");
  }
  return absl::OkStatus();
}

absl::Status CheckSpec(const QuantizerSpec& spec, Usage usage) {
  if (spec.block_dim != 1 && spec.block_dim != 2) {
    return Refuse("block_dim", absl::StrCat(spec.block_dim), "must be 1 or 2");
  }
  if (!(spec.amax_epsilon >= 0.0f)) {
    return Refuse("amax_epsilon", absl::StrCat(spec.amax_epsilon), "must be at least 0");
  }
  QG_RETURN_IF_ERROR(CheckForeignFields(spec));
  if (!spec.is_quantized()) return absl::OkStatus();
  QG_RETURN_IF_ERROR(CheckElement(spec));
  if (IsFnuz(spec.element) && spec.scaling == Scaling::kDelayed) {
    return Refuse("element", DTypeName(spec.element), "delayed scaling has f8_e4m3 and f8_e5m2");
  }
  QG_RETURN_IF_ERROR(CheckRules(spec));
  return spec.traits().scales == ScaleKind::kTwoLevel ? CheckNvfp4(spec, usage) : absl::OkStatus();
}

absl::Status CheckDims(int64_t rows, int64_t columns, int64_t multiple, std::string_view why) {
  if (rows % multiple == 0 && columns % multiple == 0) return absl::OkStatus();
  return Refuse("source", absl::StrCat(rows, "x", columns),
                absl::StrCat(std::string(why), " needs both dims in multiples of ", multiple));
}

/// `usages` are all that are asked for.
absl::Status CheckSource(DType source, int64_t rows, int64_t columns, const Quantizer& quantizer,
                         Usages usages, Usage usage) {
  const QuantizerSpec& spec = quantizer.spec(usage);
  const std::string of(DTypeName(source));
  const int64_t length = BlockLength(spec.format);
  if (spec.traits().is_micro && !usages.columnwise && TakesRaggedRows(spec)) {
    if (columns % length != 0) {
      return Refuse("source", absl::StrCat(rows, "x", columns),
                    absl::StrCat(std::string(QuantizerFormatName(spec.format)),
                                 " needs the last dim in multiples of ", length));
    }
  } else if (spec.traits().is_micro) {
    QG_RETURN_IF_ERROR(CheckDims(rows, columns, length, QuantizerFormatName(spec.format)));
  }
  if (spec.traits().has_levels()) return CheckLevelSource(spec, usage, rows, columns);
  if (spec.hadamard && usage == Usage::kColumnwise && source != DType::kBF16) {
    return Refuse(PathOf(quantizer, usage) + ".hadamard", "true",
                  absl::StrCat("needs a bf16 source, not ", of));
  }
  if (spec.row_scaled && usage == Usage::kColumnwise) {
    if (source != DType::kBF16) {
      return Refuse(PathOf(quantizer, usage) + ".row_scaled", "true",
                    absl::StrCat("a columnwise copy needs a bf16 source, not ", of));
    }
    return CheckDims(rows, columns, 32, "a row-scaled columnwise copy");
  }
  return absl::OkStatus();
}

}  // namespace

bool TakesRaggedRows(const QuantizerSpec& spec) {
  const bool is_plain = spec.traits().scales != ScaleKind::kTwoLevel ||
                        (!spec.row_scaled && spec.four_over_six == FourOverSix::kNone &&
                         spec.element_rounding != ElementRounding::kStochastic);
  return spec.traits().is_micro && spec.block_dim == 1 && is_plain;
}

bool TakesGeneralPath(const QuantizerSpec& spec, const Tensor& source) {
  const bool is_ragged = spec.traits().is_micro && source.rows() % BlockLength(spec.format) != 0;
  return spec.takes_general_path() || is_ragged;
}

absl::Status CheckQuantizer(const Quantizer& quantizer) {
  if (quantizer.rowwise.hadamard) {
    return Refuse("quantizer.rowwise.hadamard", "true", "only columnwise copies are transformed");
  }
  // One rule for both directions may be invalid columnwise as long as no columnwise copy is asked
  // for.
  const bool is_uniform = quantizer.rowwise == quantizer.columnwise;
  QG_RETURN_IF_ERROR(WithinField(PathOf(quantizer, Usage::kRowwise),
                                 CheckSpec(quantizer.rowwise, Usage::kRowwise)));
  QG_RETURN_IF_ERROR(WithinField(
      PathOf(quantizer, Usage::kColumnwise),
      CheckSpec(quantizer.columnwise, is_uniform ? Usage::kRowwise : Usage::kColumnwise)));
  return absl::OkStatus();
}

absl::Status CheckDescription(const QuantizerSpec& spec) {
  if (!spec.traits().has_levels()) return CheckQuantizer(spec);
  QG_RETURN_IF_ERROR(WithinField("quantizer", CheckElement(spec)));
  QuantizerSpec made = spec;
  for (const LevelForm& form : AllLevelForms()) {
    if (form.format != spec.format || form.element != spec.element) continue;
    made.scale_rule = form.rule;
    made.zero_point = form.zero_point;
  }
  return CheckQuantizer(made);
}

absl::Status CheckQuantization(DType source, const Shape& shape, const Quantizer& quantizer,
                               Usages usages) {
  QG_RETURN_IF_ERROR(CheckQuantizer(quantizer));
  if (!IsHighPrecision(source)) {
    return Refuse("source", DTypeName(source), "must be f32, bf16 or f16");
  }
  if (shape.empty()) return Refuse("source", "a scalar", "its rank must be at least 1");
  if (!usages.rowwise && !usages.columnwise) {
    return Refuse("usages", "none", "ask for rowwise, columnwise or both");
  }
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
  const bool reads_rowwise =
      usages.rowwise || quantizer.columnwise_source == ColumnwiseSource::kRowwiseDequantized;
  if (reads_rowwise) {
    QG_RETURN_IF_ERROR(CheckSource(source, rows, shape.back(), quantizer, usages, Usage::kRowwise));
  }
  if (usages.columnwise) {
    QG_RETURN_IF_ERROR(WithinField(PathOf(quantizer, Usage::kColumnwise),
                                   CheckSpec(quantizer.columnwise, Usage::kColumnwise)));
    QG_RETURN_IF_ERROR(
        CheckSource(source, rows, shape.back(), quantizer, usages, Usage::kColumnwise));
  }
  return absl::OkStatus();
}

absl::Status CheckDequantization(const QuantizedTensor& quantized, Usage usage, DType out_dtype) {
  const std::optional<QuantizedCopy>& copy = quantized.copy(usage);
  if (!copy.has_value()) {
    return RefusePrecondition("usage", UsageName(usage), "the tensor has no such copy");
  }
  if (!IsHighPrecision(out_dtype)) {
    return Refuse("out_dtype", DTypeName(out_dtype), "must be f32, bf16 or f16");
  }
  if (TraitsOf(copy->format).scales == ScaleKind::kTwoLevel && usage == Usage::kColumnwise) {
    return StatusOf({.code = absl::StatusCode::kUnimplemented,
                     .field = "usage",
                     .value = "columnwise",
                     .rule = "a columnwise nvfp4 copy has no values of its own; dequantize the "
                             "rowwise one"});
  }
  return absl::OkStatus();
}

}  // namespace quantgate
