#include "kernels/quantize/quantizer.h"

#include <algorithm>
#include <bit>
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
};
constexpr Named<ElementRounding> kRoundings[] = {
    {ElementRounding::kNearestEven, "nearest_even"},
    {ElementRounding::kNearestAway, "nearest_away"},
    {ElementRounding::kStochastic, "stochastic"},
};
constexpr Named<Overflow> kOverflows[] = {
    {Overflow::kSaturate, "saturate"},
    {Overflow::kNan, "nan"},
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

/// The rule of one direction: the element, the blocks, then all fields of the format that change
/// bits.
std::string SpecText(const QuantizerSpec& spec) {
  if (spec.casts()) return absl::StrCat("identity cast to ", std::string(DTypeName(spec.element)));
  if (!spec.is_quantized()) return "identity";
  std::string text(DTypeName(spec.element));
  const bool is_tensor = spec.traits().scales == ScaleKind::kTensor;
  const bool is_line = spec.traits().scales == ScaleKind::kLine;
  const bool is_delayed = is_tensor && spec.scaling == Scaling::kDelayed;
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

absl::StatusOr<ScaleRule> ParseScaleRule(std::string_view name) {
  return ParseName<ScaleRule>(kScaleRules, "scale_rule", name);
}

absl::StatusOr<ElementRounding> ParseElementRounding(std::string_view name) {
  return ParseName<ElementRounding>(kRoundings, "element_rounding", name);
}

absl::StatusOr<Overflow> ParseOverflow(std::string_view name) {
  return ParseName<Overflow>(kOverflows, "overflow", name);
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
  summary.scale = ScalarOf(quantized.scale);
  if (TraitsOf(first.format).scales == ScaleKind::kTensor)
    summary.scale_inv = ScalarOf(first.scale_inv);
  summary.counts = quantized.counts;
  summary.scale_codes = CountScaleCodes(first);
  return summary;
}

}  // namespace quantgate
