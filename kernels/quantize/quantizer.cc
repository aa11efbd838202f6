#include "kernels/quantize/quantizer.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <span>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"

namespace quantgate {
namespace {

template <class Value>
struct Named {
  Value value;
  std::string_view name;
};

constexpr Named<ScaleRule> kScaleRules[] = {
    {ScaleRule::kUsual, "usual"},
    {ScaleRule::kDivide, "divide"},
    {ScaleRule::kReciprocal, "reciprocal"},
    {ScaleRule::kRoundUp, "round_up"},
    {ScaleRule::kRoundUp, "rceil"},  // torchao's name; docs/quantizers.md section 5 says how far.
    {ScaleRule::kFloor, "floor"},
    {ScaleRule::kCeil, "ceil"},
    {ScaleRule::kEven, "even"},
    {ScaleRule::kNearest, "nearest"},
    {ScaleRule::kTwoLevel, "two_level"},
    {ScaleRule::kTwoLevelClamped, "two_level_clamped"},
    {ScaleRule::kSingleLevel, "single_level"},
    {ScaleRule::kReciprocalProduct, "reciprocal_product"},
    {ScaleRule::kInverse, "inverse"},
    {ScaleRule::kFloat64, "float64"},
    {ScaleRule::kTorchaoRceil, "torchao_rceil"},
    {ScaleRule::kTorchaoFloor, "torchao_floor"},
    {ScaleRule::kTorchaoCeil, "torchao_ceil"},
    {ScaleRule::kTorchaoEven, "torchao_even"},
    {ScaleRule::kGguf, "gguf"},
    {ScaleRule::kTorchaoTwoLevel, "torchao_two_level"},
    {ScaleRule::kTorchaoSingleLevel, "torchao_single_level"},
    {ScaleRule::kVllm, "vllm"},
    {ScaleRule::kCompressedTensors, "compressed_tensors"},
    {ScaleRule::kModelopt, "modelopt"},
    {ScaleRule::kQwix, "qwix"},
    {ScaleRule::kTorchao, "torchao"},
    {ScaleRule::kQuanto, "quanto"},
    {ScaleRule::kTinygemm, "tinygemm"},
    {ScaleRule::kBitsandbytes, "bitsandbytes"},
    {ScaleRule::kBitnet, "bitnet"},
};
constexpr Named<ElementRounding> kRoundings[] = {
    {ElementRounding::kNearestEven, "nearest_even"},
    {ElementRounding::kNearestAway, "nearest_away"},
    {ElementRounding::kNearestZero, "nearest_zero"},
    {ElementRounding::kStochastic, "stochastic"},
};
constexpr Named<Overflow> kOverflows[] = {
    {Overflow::kSaturate, "saturate"},
    {Overflow::kNan, "nan"},
};
constexpr Named<FlushSubnormals> kFlushSubnormals[] = {
    {FlushSubnormals::kShardedUpdate, "sharded_update"},
    {FlushSubnormals::kNever, "never"},
    {FlushSubnormals::kAlways, "always"},
};
constexpr Named<StepDType> kStepDTypes[] = {
    {StepDType::kF32, "f32"},
    {StepDType::kSource, "source"},
};
constexpr Named<ElementOperation> kOperations[] = {
    {ElementOperation::kMultiply, "multiply"},
    {ElementOperation::kDivide, "divide"},
    {ElementOperation::kReciprocal, "reciprocal"},
};
constexpr Named<ZeroScale> kZeroScales[] = {
    {ZeroScale::kOne, "one"},
    {ZeroScale::kDTypeEpsilon, "dtype_epsilon"},
    {ZeroScale::kNone, "none"},
};
constexpr Named<SignOfZero> kZeroSigns[] = {
    {SignOfZero::kKeep, "keep"},
    {SignOfZero::kDrop, "drop"},
    {SignOfZero::kDropRounded, "drop_rounded"},
    {SignOfZero::kNegative, "negative"},
};
constexpr Named<ZeroPoint> kZeroPoints[] = {
    {ZeroPoint::kNone, "none"},
    {ZeroPoint::kInteger, "integer"},
    {ZeroPoint::kFloat, "float"},
};
constexpr Named<FourOverSix> kFourOverSixModes[] = {
    {FourOverSix::kNone, "none"},
    {FourOverSix::kMae, "mae"},
    {FourOverSix::kMse, "mse"},
};

template <class Value>
std::string_view NameOf(std::span<const Named<Value>> names, Value value) {
  const auto found = std::find_if(names.begin(), names.end(),
                                  [&](const auto& entry) { return entry.value == value; });
  return found == names.end() ? "unknown" : found->name;
}

template <class Value>
absl::StatusOr<Value> ParseName(std::span<const Named<Value>> names, std::string_view field,
                                std::string_view name) {
  std::string known;
  for (const Named<Value>& entry : names) {
    if (entry.name == name) return entry.value;
    absl::StrAppend(&known, known.empty() ? "" : ", ", std::string(entry.name));
  }
  return Refuse(field, absl::StrCat("\"", std::string(name), "\""),
                "unknown name; known: " + known);
}

std::string BlockText(const QuantizerSpec& spec) {
  const int length = BlockLength(spec.format);
  return absl::StrCat(spec.block_dim == 2 ? length : 1, "x", length);
}

std::string BoolText(bool value) { return value ? "true" : "false"; }

/// The same of a format of levels.
std::string LevelsText(const QuantizerSpec& spec) {
  const int group = ResolveGroup(spec.group, spec.format);
  const bool is_length = group > 0;
  std::string text = absl::StrCat(
      std::string(DTypeName(spec.element)), " ", std::string(QuantizerFormatName(spec.format)),
      " per ", is_length ? absl::StrCat(group, " elements") : GroupText(group),
      ", scale_rule=", std::string(ScaleRuleName(ResolveScaleRule(spec.scale_rule, spec.format))),
      ", zero_point=", std::string(ZeroPointName(spec.zero_point)));
  if (spec.operation_dtype != StepDType::kF32) {
    absl::StrAppend(&text, ", operation_dtype=", std::string(StepDTypeName(spec.operation_dtype)));
  }
  return text;
}

/// The rule of one direction: the element, the blocks, then all fields of the format that change
/// bits.
std::string SpecText(const QuantizerSpec& spec) {
  if (spec.casts()) return absl::StrCat("identity cast to ", std::string(DTypeName(spec.element)));
  if (!spec.is_quantized()) return "identity";
  std::string text(DTypeName(spec.element));
  const bool is_tensor = spec.traits().scales == ScaleKind::kTensor;
  const bool is_line = spec.traits().scales == ScaleKind::kLine;
  const bool is_delayed = is_tensor && spec.scaling == Scaling::kDelayed;
  if (spec.traits().has_levels()) return LevelsText(spec);
  if (is_tensor) {
    absl::StrAppend(&text, " per tensor", is_delayed ? ", scale delayed" : "");
  } else if (is_line) {
    absl::StrAppend(&text, " ", std::string(QuantizerFormatName(spec.format)), " per line");
  } else {
    absl::StrAppend(&text, " ", std::string(QuantizerFormatName(spec.format)), " ",
                    BlockText(spec));
  }
  if (!is_delayed) {
    const ScaleRule rule = ResolveScaleRule(spec.scale_rule, spec.format);
    absl::StrAppend(&text, ", scale_rule=", std::string(ScaleRuleName(rule)));
  }
  if ((is_tensor && !is_delayed) || is_line || spec.traits().scales == ScaleKind::kF32) {
    absl::StrAppend(&text, ", power_2_scale=", BoolText(spec.power_2_scale),
                    ", amax_epsilon=", spec.amax_epsilon);
  }
  if (spec.traits().scales == ScaleKind::kTwoLevel) {
    absl::StrAppend(&text, ", hadamard=", BoolText(spec.hadamard),
                    ", row_scaled=", BoolText(spec.row_scaled),
                    ", 4over6=", std::string(FourOverSixName(spec.four_over_six)),
                    ", e4m3_max=", spec.e4m3_max);
  }
  absl::StrAppend(&text,
                  ", element_rounding=", std::string(ElementRoundingName(spec.element_rounding)),
                  ", overflow=", std::string(OverflowName(spec.overflow)));
  const QuantizerSpec plain;
  const auto add = [&](const char* field, bool differs, std::string_view name) {
    if (differs) absl::StrAppend(&text, ", ", field, "=", std::string(name));
  };
  add("scale_dtype", spec.scale_dtype != plain.scale_dtype, StepDTypeName(spec.scale_dtype));
  add("element_operation", spec.element_operation != plain.element_operation,
      ElementOperationName(spec.element_operation));
  add("operation_dtype", spec.operation_dtype != plain.operation_dtype,
      StepDTypeName(spec.operation_dtype));
  add("zero_scale", spec.zero_scale != plain.zero_scale, ZeroScaleName(spec.zero_scale));
  add("zero_sign", spec.zero_sign != plain.zero_sign, SignOfZeroName(spec.zero_sign));
  add("flush_subnormals", spec.flush_subnormals != plain.flush_subnormals,
      FlushSubnormalsName(spec.flush_subnormals));
  return text;
}

std::optional<float> ScalarOf(const Tensor& tensor) {
  if (!tensor.has_value() || tensor.element_count() != 1) return std::nullopt;
  return *tensor.as<float>();
}

bool SameBits(std::optional<float> a, std::optional<float> b) {
  return a.has_value() == b.has_value() &&
         (!a.has_value() || std::bit_cast<uint32_t>(*a) == std::bit_cast<uint32_t>(*b));
}

std::map<int, int64_t> CountScaleCodes(const QuantizedCopy& copy) {
  std::map<int, int64_t> counts;
  if (!TraitsOf(copy.format).has_many_scales()) return counts;
  const Tensor& scales = copy.scale_inv;
  int64_t dense[256] = {};
  for (int64_t i = 0; i < scales.element_count(); ++i) {
    const bool is_fp32 = scales.dtype() == DType::kF32;
    ++dense[is_fp32 ? scales.as<uint32_t>()[i] >> 23 & 0xFF : scales.as<uint8_t>()[i]];
  }
  for (int code = 0; code < 256; ++code) {
    if (dense[code] != 0) counts[code] = dense[code];
  }
  return counts;
}

}  // namespace

std::string_view ScaleRuleName(ScaleRule rule) { return NameOf<ScaleRule>(kScaleRules, rule); }

std::string_view ElementRoundingName(ElementRounding rounding) {
  return NameOf<ElementRounding>(kRoundings, rounding);
}

std::string_view OverflowName(Overflow overflow) { return NameOf<Overflow>(kOverflows, overflow); }

std::string_view FourOverSixName(FourOverSix mode) {
  return NameOf<FourOverSix>(kFourOverSixModes, mode);
}

std::string_view FlushSubnormalsName(FlushSubnormals where) {
  return NameOf<FlushSubnormals>(kFlushSubnormals, where);
}

absl::StatusOr<FlushSubnormals> ParseFlushSubnormals(std::string_view name) {
  return ParseName<FlushSubnormals>(kFlushSubnormals, "flush_subnormals", name);
}

std::string_view StepDTypeName(StepDType dtype) { return NameOf<StepDType>(kStepDTypes, dtype); }

std::string_view ElementOperationName(ElementOperation operation) {
  return NameOf<ElementOperation>(kOperations, operation);
}

std::string_view ZeroScaleName(ZeroScale zero_scale) {
  return NameOf<ZeroScale>(kZeroScales, zero_scale);
}

std::string_view SignOfZeroName(SignOfZero zero_sign) {
  return NameOf<SignOfZero>(kZeroSigns, zero_sign);
}

absl::StatusOr<ScaleRule> ParseScaleRule(std::string_view name) {
  return ParseName<ScaleRule>(kScaleRules, "scale_rule", name);
}

absl::StatusOr<ElementRounding> ParseElementRounding(std::string_view name) {
  return ParseName<ElementRounding>(kRoundings, "element_rounding", name);
}

absl::StatusOr<Overflow> ParseOverflow(std::string_view name) {
  return ParseName<Overflow>(kOverflows, "overflow", name);
}

absl::StatusOr<StepDType> ParseStepDType(std::string_view field, std::string_view name) {
  return ParseName<StepDType>(kStepDTypes, field, name);
}

absl::StatusOr<ElementOperation> ParseElementOperation(std::string_view name) {
  return ParseName<ElementOperation>(kOperations, "element_operation", name);
}

absl::StatusOr<ZeroScale> ParseZeroScale(std::string_view name) {
  return ParseName<ZeroScale>(kZeroScales, "zero_scale", name);
}

absl::StatusOr<SignOfZero> ParseSignOfZero(std::string_view name) {
  return ParseName<SignOfZero>(kZeroSigns, "zero_sign", name);
}

std::string_view ZeroPointName(ZeroPoint zero_point) {
  return NameOf<ZeroPoint>(kZeroPoints, zero_point);
}

absl::StatusOr<ZeroPoint> ParseZeroPoint(std::string_view name) {
  return ParseName<ZeroPoint>(kZeroPoints, "zero_point", name);
}

absl::StatusOr<int> ParseGroup(std::string_view text) {
  for (const int group : {kTensorGroup, kLineGroup}) {
    if (GroupText(group) == text) return group;
  }
  int length = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), length);
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  if (is_number && length >= 2 && length <= kGroupMax) return length;
  return Refuse("group", absl::StrCat("\"", std::string(text.substr(0, 80)), "\""),
                absl::StrCat("must be tensor, row or a number from 2 to ", kGroupMax));
}

int ResolveGroup(int group, QuantizerFormat format) {
  return group == 0 ? TraitsOf(format).group : group;
}

ScaleRule ResolveScaleRule(ScaleRule rule, QuantizerFormat format) {
  const std::span<const ScaleRule> rules = TraitsOf(format).rules;
  return rule == ScaleRule::kUsual && !rules.empty() ? rules.front() : rule;
}

std::string_view ColumnwiseSourceName(ColumnwiseSource source) {
  return source == ColumnwiseSource::kOriginal ? "original" : "rowwise_dequantized";
}

std::string QuantizerText(const Quantizer& quantizer) {
  if (quantizer.is_uniform()) {
    return SpecText(quantizer.rowwise);
  }
  return absl::StrCat(
      "rowwise ", SpecText(quantizer.rowwise), "; columnwise ", SpecText(quantizer.columnwise),
      "; columnwise_source=", std::string(ColumnwiseSourceName(quantizer.columnwise_source)));
}

QuantizationSummary SummarizeCpu(const QuantizedTensor& quantized) {
  const QuantizedCopy& first =
      quantized.rowwise.has_value() ? *quantized.rowwise : *quantized.columnwise;
  QuantizationSummary summary;
  summary.amax = ScalarOf(first.amax);
  if (quantized.columnwise.has_value()) {
    const std::optional<float> columnwise = ScalarOf(quantized.columnwise->amax);
    if (!SameBits(columnwise, summary.amax)) summary.amax_columnwise = columnwise;
  }
  summary.scale = ScalarOf(first.scale);
  if (TraitsOf(first.format).scales == ScaleKind::kTensor)
    summary.scale_inv = ScalarOf(first.scale_inv);
  summary.counts = quantized.counts;
  summary.scale_codes = CountScaleCodes(first);
  return summary;
}

}  // namespace quantgate
