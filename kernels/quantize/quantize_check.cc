// Checks quantizers, and tensors that they are to quantize: docs/quantizers.md section 7.1.
#include <algorithm>
#include <span>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/quantize/format_quantizers.h"

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
  return absl::OkStatus();
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
  if (!spec.is_quantized()) {
    const QuantizerSpec plain;
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
  if (!traits.has_blocks() && spec.block_dim != 1) return Refuse("block_dim", "2", rule);
  if (!has_tensor_scale && spec.scaling != Scaling::kCurrent) {
    return Refuse("scaling", "delayed", rule);
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
  QG_RETURN_IF_ERROR(CheckRules(spec));
  return spec.traits().scales == ScaleKind::kTwoLevel ? CheckNvfp4(spec, usage) : absl::OkStatus();
}

absl::Status CheckDims(int64_t rows, int64_t columns, int64_t multiple, std::string_view why) {
  if (rows % multiple == 0 && columns % multiple == 0) return absl::OkStatus();
  return Refuse("source", absl::StrCat(rows, "x", columns),
                absl::StrCat(std::string(why), " needs both dims in multiples of ", multiple));
}

absl::Status CheckSource(DType source, int64_t rows, int64_t columns, const Quantizer& quantizer,
                         Usage usage) {
  const QuantizerSpec& spec = quantizer.spec(usage);
  const std::string of(DTypeName(source));
  if (spec.traits().is_micro) {
    QG_RETURN_IF_ERROR(
        CheckDims(rows, columns, BlockLength(spec.format), QuantizerFormatName(spec.format)));
  }
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
    QG_RETURN_IF_ERROR(CheckSource(source, rows, shape.back(), quantizer, Usage::kRowwise));
  }
  if (usages.columnwise) {
    QG_RETURN_IF_ERROR(WithinField(PathOf(quantizer, Usage::kColumnwise),
                                   CheckSpec(quantizer.columnwise, Usage::kColumnwise)));
    QG_RETURN_IF_ERROR(CheckSource(source, rows, shape.back(), quantizer, Usage::kColumnwise));
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
