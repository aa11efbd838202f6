// Decides which rule makes which copy, and from what, for every engine.
#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/numerics/scale_rule.h"
#include "kernels/quantize/format_quantizers.h"

namespace quantgate {
namespace {

/// The value of an amax in device memory is not looked at. NaN is a maximum that a reduction over
/// ranks can give.
absl::Status CheckGroupAmax(const Tensor& amax, std::string_view field) {
  if (!amax.has_value()) return absl::OkStatus();
  if (amax.dtype() != DType::kF32 || amax.element_count() != 1) {
    return Refuse(field, TensorText(amax), "must be f32[1]");
  }
  const float value = amax.space() == MemorySpace::kHost ? *amax.as<float>() : 0.0f;
  if (!std::signbit(value) || std::isnan(value)) return absl::OkStatus();
  return Refuse(field, absl::StrCat(value), "a maximum of magnitudes is at least 0");
}

absl::Status CheckOffset(int64_t offset, std::string_view field) {
  if (offset % 16 == 0) return absl::OkStatus();
  return Refuse(field, absl::StrCat(offset), "must be a multiple of 16");
}

/// The value of a scale in device memory is not looked at.
absl::Status CheckGivenScale(const Tensor& scale, std::string_view field, bool is_delayed) {
  if (!is_delayed) {
    return scale.has_value() ? Refuse(field, "given", "only delayed scaling takes one")
                             : absl::OkStatus();
  }
  if (!scale.has_value() || scale.dtype() != DType::kF32 || scale.element_count() != 1) {
    return Refuse(field, TensorText(scale), "delayed scaling needs an f32 of one element");
  }
  const float value = scale.space() == MemorySpace::kHost ? *scale.as<float>() : 1.0f;
  if (value > 0.0f && value <= MaxFinite<Float32>()) return absl::OkStatus();
  return Refuse(field, absl::StrCat(value), "must be positive and finite");
}

/// INVALID_ARGUMENT for a missing, unwanted or impossible argument.
absl::Status CheckArguments(const Quantizer& quantizer, const QuantizeArguments& arguments) {
  QG_RETURN_IF_ERROR(CheckGroupAmax(arguments.group_amax_rowwise, "group_amax_rowwise"));
  QG_RETURN_IF_ERROR(CheckGroupAmax(arguments.group_amax_columnwise, "group_amax_columnwise"));
  const std::vector<Usage> delayed = quantizer.delayed_directions();
  for (const auto& [usage, field, scale] :
       {std::tuple(Usage::kRowwise, "scale", &arguments.scale),
        std::tuple(Usage::kColumnwise, "columnwise_scale", &arguments.columnwise_scale)}) {
    const bool is_delayed = std::find(delayed.begin(), delayed.end(), usage) != delayed.end();
    QG_RETURN_IF_ERROR(CheckGivenScale(*scale, field, is_delayed));
  }
  QG_RETURN_IF_ERROR(CheckOffset(arguments.row_offset, "row_offset"));
  return CheckOffset(arguments.column_offset, "column_offset");
}

/// Quantizes by one rule. `hadamard` is that of the columnwise copy.
absl::StatusOr<QuantizedTensor> QuantizeOneRule(const Tensor& source, QuantizerSpec spec,
                                                bool hadamard, Usages usages,
                                                const QuantizeArguments& arguments,
                                                RuleQuantizer quantize) {
  spec.scale_rule = ResolveScaleRule(spec.scale_rule, spec.format);
  spec.group = ResolveGroup(spec.group, spec.format);
  QuantizedTensor quantized;
  quantized.source_dtype = source.dtype();
  quantized.shape = source.shape();
  QG_RETURN_IF_ERROR(quantize({source, spec, hadamard, usages, arguments}, quantized));
  return quantized;
}

/// Quantizes each direction by its own rule, the columnwise one perhaps from the rowwise codes.
absl::StatusOr<QuantizedTensor> QuantizeTwoRules(const Tensor& source, const Quantizer& quantizer,
                                                 Usages usages, const QuantizeArguments& arguments,
                                                 RuleQuantizer quantize,
                                                 RowwiseDequantizer dequantize) {
  const bool is_from_codes = quantizer.columnwise_source == ColumnwiseSource::kRowwiseDequantized;
  QuantizedTensor rowwise;
  if (usages.rowwise || is_from_codes) {
    QG_ASSIGN_OR_RETURN(rowwise, QuantizeOneRule(source, quantizer.rowwise, false, {true, false},
                                                 arguments, quantize));
  }
  rowwise.is_hybrid = true;
  if (!usages.columnwise) return rowwise;
  Tensor columnwise_source = source;
  if (is_from_codes) {
    QG_ASSIGN_OR_RETURN(columnwise_source, dequantize(rowwise, source.dtype()));
  }
  QuantizeArguments of_columnwise = arguments;
  of_columnwise.scale = arguments.columnwise_scale;
  QG_ASSIGN_OR_RETURN(
      QuantizedTensor columnwise,
      QuantizeOneRule(columnwise_source, quantizer.columnwise, quantizer.columnwise.hadamard,
                      {false, true}, of_columnwise, quantize));
  columnwise.is_hybrid = true;
  if (is_from_codes) columnwise.columnwise->is_cast = false;
  if (!usages.rowwise) return columnwise;
  rowwise.columnwise = std::move(columnwise.columnwise);
  return rowwise;
}

}  // namespace

bool ReadsGroupAmax(const QuantizerSpec& spec) {
  switch (spec.traits().scales) {
    case ScaleKind::kTensor:
      return spec.scaling == Scaling::kCurrent;
    case ScaleKind::kTwoLevel:
      return !spec.row_scaled && HasTensorScale(ResolveScaleRule(spec.scale_rule, spec.format));
    default:
      return false;
  }
}

absl::Status CheckGroupAmaxes(const Quantizer& quantizer, Usages usages) {
  if (!usages.columnwise || !ReadsGroupAmax(quantizer.columnwise) ||
      quantizer.columnwise_source == ColumnwiseSource::kOriginal) {
    return absl::OkStatus();
  }
  return Refuse("quantizer.columnwise_source", "rowwise_dequantized",
                "the columnwise amax is that of the rowwise codes, which no group amax can come "
                "before");
}

absl::StatusOr<AmaxPlan> PlanAmaxes(const Tensor& source, const Quantizer& quantizer,
                                    Usages usages) {
  if (!source.has_value()) return RefuseAbsent("source", "it must be given");
  QG_RETURN_IF_ERROR(CheckQuantization(source.dtype(), source.shape(), quantizer, usages));
  QG_RETURN_IF_ERROR(CheckGroupAmaxes(quantizer, usages));
  AmaxPlan plan;
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    const QuantizerSpec& spec = quantizer.spec(usage);
    if (!HasUsage(usages, usage) || !ReadsGroupAmax(spec)) continue;
    // Per-tensor FP8 has one amax for both copies.
    const bool is_shared = spec.traits().scales == ScaleKind::kTensor;
    (usage == Usage::kRowwise || is_shared ? plan.rowwise : plan.columnwise) = true;
    plan.is_transformed = usage == Usage::kColumnwise && spec.hadamard;
  }
  return plan;
}

float LargestFiniteOf(DType source) {
  if (source == DType::kBF16) return MaxFinite<BFloat16>();
  return source == DType::kF16 ? MaxFinite<Float16>() : MaxFinite<Float32>();
}

absl::StatusOr<QuantizedTensor> QuantizeByRules(const Tensor& source, const Quantizer& quantizer,
                                                Usages usages, const QuantizeArguments& arguments,
                                                RuleQuantizer quantize,
                                                RowwiseDequantizer dequantize) {
  if (!source.has_value()) return RefuseAbsent("source", "it must be given");
  QG_RETURN_IF_ERROR(CheckQuantization(source.dtype(), source.shape(), quantizer, usages));
  QG_RETURN_IF_ERROR(CheckArguments(quantizer, arguments));
  if (quantizer.has_one_rule()) {
    return QuantizeOneRule(source, quantizer.rowwise, quantizer.columnwise.hadamard, usages,
                           arguments, quantize);
  }
  return QuantizeTwoRules(source, quantizer, usages, arguments, quantize, dequantize);
}

}  // namespace quantgate
